/** This user's clusters, kept up to date by the server's events: nothing is polled. */

import { Event, EventManager, ServerConnection, ServiceManager } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { Api, ICluster, IRank, RequestError } from './api';
import { IClusterChange, IClusters } from './tokens';

/** The schema of the server's events: jdist/server/events.yaml. */
const SCHEMA = 'https://schema.jupyter.org/jdist/cluster/v1';
/** How often a cluster is asked for again because it has changed meanwhile. */
const AGAIN = 3;

/** What the server tells when a cluster has come, changed or gone. */
interface IChange {
  action: 'changed' | 'gone';
  name: string;
  cluster: ICluster;
  ranks: IRank[];
  notices: string[];
}

/**
 * The clusters by name, as the server last told them, and which of them is looked at.
 *
 * The list is asked for whenever the connection over which events come has been opened, since what happened before
 * nobody tells; a cluster's ranks once it is looked at. After that events say what changes.
 */
export class Clusters implements IClusters, IDisposable {
  constructor(services: ServiceManager.IManager) {
    this.api = new Api(services.serverSettings);
    // A manager of our own, since Lab's does not say when its connection is there again.
    this._events = new EventManager({ serverSettings: telling(services.serverSettings, () => void this.refresh()) });
    this._events.stream.connect(this._onEvent, this);
    this.ready = this.refresh();
  }

  readonly api: Api;
  /** Settled once the first list has been asked for; `problem` says whether in vain. */
  readonly ready: Promise<void>;

  /** Something about a cluster, the list, `current` or `problem` is different. */
  get changed(): ISignal<this, IClusterChange> {
    return this._changed;
  }

  /** By name, in the order of names. */
  get all(): ICluster[] {
    return [...this._all.values()].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  }

  get(name: string): ICluster | undefined {
    return this._all.get(name);
  }

  /** Whether the list has been asked for and answered, or refused. */
  get isKnown(): boolean {
    return this._isKnown;
  }

  /** Why there is no list; null if there is one. */
  get problem(): RequestError | null {
    return this._problem;
  }

  /** The cluster that is looked at: the one chosen, else the first there was; another that comes changes nothing. */
  get current(): ICluster | undefined {
    return this._all.get(this._chosen) ?? this._all.get(this._seen) ?? this.all[0];
  }

  /** Looks at this cluster from now on; at the first one while there is none of this name. */
  async choose(name: string): Promise<void> {
    this._chosen = name;
    this._tell('');
    await this._loadCurrent();
  }

  /** Asks the server for everything again. */
  async refresh(): Promise<void> {
    const heard = new Map(this._heard);
    const asked = ++this._asked;
    try {
      const found = await this.api.list();
      if (this._isDisposed || asked < this._answered) {
        return; // a later question was answered first
      }
      this._answered = asked;
      this._take(found, name => heard.get(name) !== this._heard.get(name));
      this._problem = null;
    } catch (error) {
      if (asked < this._answered) {
        return;
      }
      this._answered = asked;
      this._problem = error instanceof RequestError ? error : new RequestError(0, String(error));
    }
    this._isKnown = true;
    this._tell('');
    await this._loadCurrent();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    this._events.dispose();
    Signal.clearData(this);
  }

  /** Takes a list, but for the clusters of which more has been heard since it was asked for. */
  private _take(found: ICluster[], isNewer: (name: string) => boolean): void {
    const heard = Date.now();
    const all = new Map<string, ICluster>();
    for (const each of found.filter(each => !isNewer(each.name))) {
      all.set(each.name, { ...each, heard, ranks: this._all.get(each.name)?.ranks });
    }
    [...this._all.values()].filter(each => isNewer(each.name)).forEach(each => all.set(each.name, each));
    this._all = all;
    this._loaded = '';
  }

  private _tell(name: string, notices: string[] = []): void {
    this._seen = this.current?.name ?? '';
    this._changed.emit({ name, notices });
  }

  private async _loadCurrent(): Promise<void> {
    const name = this.current?.name ?? '';
    if (this._problem || !name || name === this._loaded) {
      return;
    }
    this._loaded = name;
    try {
      for (let i = 0; i < AGAIN; i++) {
        const heard = this._heard.get(name);
        const found = await this.api.cluster(name);
        if (this._isDisposed || this._loaded !== name) {
          return;
        }
        if (heard === this._heard.get(name) || i === AGAIN - 1) {
          const now = Date.now();
          found.ranks?.forEach(row => (row.heard = now));
          this._all.set(name, { ...found, heard: now });
          break;
        }
      }
      this._tell(name);
    } catch (error) {
      this._loaded = '';
      console.warn(`jdist: ${name}:`, error);
    }
  }

  private _onEvent(_: unknown, event: Event.Emission): void {
    if (event.schema_id !== SCHEMA) {
      return;
    }
    const change = event as unknown as IChange;
    const { name } = change;
    const known = this._all.get(name);
    this._heard.set(name, (this._heard.get(name) ?? 0) + 1);
    if (change.action === 'gone') {
      this._all.delete(name);
      this._loaded = this._loaded === name ? '' : this._loaded;
    } else {
      const heard = Date.now();
      change.ranks.forEach(row => (row.heard = heard));
      this._all.set(name, { ...change.cluster, heard, ranks: merged(known?.ranks, change) });
      if (!isOf(known, change.cluster)) {
        this._loaded = this._loaded === name ? '' : this._loaded;
      }
    }
    this._tell(name, change.notices);
    void this._loadCurrent();
  }

  private readonly _events: EventManager;
  private _all = new Map<string, ICluster>();
  /** How many events there were about each. */
  private _heard = new Map<string, number>();
  private _chosen = '';
  private _seen = '';
  /** How often the list has been asked for, and the last of these questions that has been answered. */
  private _asked = 0;
  private _answered = 0;
  /** The cluster whose ranks have been asked for. */
  private _loaded = '';
  private _isKnown = false;
  private _problem: RequestError | null = null;
  private _isDisposed = false;
  private _changed = new Signal<this, IClusterChange>(this);
}

/** Whether what is known is of the very cluster, with as many ranks, that the server tells of. */
function isOf(known: ICluster | undefined, told: ICluster): boolean {
  return known?.generation === told.generation && known?.world_size === told.world_size;
}

/** The rows that are known with those that have changed; rows from the world's size on are gone. */
function merged(known: IRank[] | undefined, change: IChange): IRank[] {
  const rows = new Map((known ?? []).map(row => [row.rank, row]));
  change.ranks.forEach(row => rows.set(row.rank, row));
  const size = change.cluster.world_size ?? rows.size;
  return [...rows.values()].filter(row => row.rank < size).sort((a, b) => a.rank - b.rank);
}

/** The settings, but for sockets that say when they are open. */
function telling(settings: ServerConnection.ISettings, opened: () => void): ServerConnection.ISettings {
  class Telling extends settings.WebSocket {
    constructor(url: string | URL, protocols?: string | string[]) {
      super(url, protocols);
      this.addEventListener('open', opened);
    }
  }
  return { ...settings, WebSocket: Telling };
}
