/** This user's clusters, kept up to date by the server's events, without polling. */

import { Event, EventManager, ServerConnection, ServiceManager } from '@jupyterlab/services';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { Api, ICluster, IRank, RequestError } from './api';
import { IClusterEvent } from './generated/server';
import { hostOf } from './states';
import { IClusterChange, IClusters } from './tokens';

/** The schema of the server's events: events.yaml of jdist/server. */
const SCHEMA = 'https://schema.jupyter.org/jdist/cluster/v1';
/** How often a cluster is requested at most, because it has changed during the request. */
const ATTEMPTS = 3;
/** Milliseconds between two looks at a cluster of another host: the server follows it for five minutes after each. */
const LOOK_EVERY = 60_000;

/**
 * The clusters by name, as the server last reported them, and which of them the panel shows.
 *
 * The list is requested whenever the connection for events has been opened, because earlier events are not repeated; the
 * ranks of a cluster are requested when it is shown. From then on, events report what changes.
 */
export class Clusters implements IClusters, IDisposable {
  constructor(services: ServiceManager.IManager) {
    this.api = new Api(services.serverSettings);
    // A manager of our own, since JupyterLab's does not report that its connection has been opened again.
    this._events = new EventManager({
      serverSettings: withHandlers(services.serverSettings, {
        open: () => void this.refresh(),
        close: () => this._onLost()
      })
    });
    this._events.stream.connect(this._onEvent, this);
    this.ready = this.refresh();
    this._clock = window.setInterval(() => this._lookAll(), LOOK_EVERY);
  }

  readonly api: Api;
  readonly ready: Promise<void>;

  get changed(): ISignal<this, IClusterChange> {
    return this._changed;
  }

  get all(): ICluster[] {
    return [...this._all.values()].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  }

  get(name: string): ICluster | undefined {
    return this._all.get(name);
  }

  get isKnown(): boolean {
    return this._isKnown;
  }

  get lostAt(): number | null {
    return this._lostAt;
  }

  get problem(): RequestError | null {
    return this._problem;
  }

  get current(): ICluster | undefined {
    return this._all.get(this._chosen) ?? this._all.get(this._current) ?? this.all[0];
  }

  async choose(name: string): Promise<void> {
    this._chosen = name;
    if (hostOf(name) && !this._all.has(name)) {
      await this._lookAt(name);
    }
    this._emit('');
    await this._loadCurrent();
  }

  look(name: string): IDisposable {
    this._looks.push(name);
    void this._lookAt(name);
    return new DisposableDelegate(() => this._looks.splice(this._looks.indexOf(name), 1));
  }

  async refresh(): Promise<void> {
    const before = new Map(this._eventCounts);
    const request = ++this._requested;
    try {
      const found = await this.api.list();
      if (this._isDisposed || request < this._answered) {
        return; // a later request was answered first
      }
      this._answered = request;
      this._accept(found, name => before.get(name) !== this._eventCounts.get(name));
      this._problem = null;
      this._lostAt = null;
    } catch (error) {
      if (request < this._answered) {
        return;
      }
      this._answered = request;
      this._problem = error instanceof RequestError ? error : new RequestError(0, String(error));
    }
    this._isKnown = true;
    this._emit('');
    await this._loadCurrent();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    window.clearInterval(this._clock);
    this._events.dispose();
    Signal.clearData(this);
  }

  /** Accepts a list, except for clusters of which events have arrived since it was requested. */
  private _accept(found: ICluster[], isNewer: (name: string) => boolean): void {
    const receivedAt = Date.now();
    const all = new Map<string, ICluster>();
    for (const each of found.filter(each => !isNewer(each.name))) {
      all.set(each.name, { ...each, receivedAt, ranks: this._all.get(each.name)?.ranks });
    }
    [...this._all.values()].filter(each => isNewer(each.name)).forEach(each => all.set(each.name, each));
    this._all = all;
    this._loaded = '';
  }

  private _emit(name: string, notices: string[] = []): void {
    this._current = this.current?.name ?? '';
    this._changed.emit({ name, notices });
  }

  private _onLost(): void {
    if (!this._isDisposed && this._lostAt === null) {
      this._lostAt = Date.now();
      this._emit('');
    }
  }

  private async _loadCurrent(): Promise<void> {
    const name = this.current?.name ?? '';
    if (this._problem || !name || name === this._loaded) {
      return;
    }
    this._loaded = name;
    try {
      await this._load(name, () => this._loaded === name);
    } catch (error) {
      this._loaded = '';
      console.warn(`jdist: ${name}:`, error);
    }
  }

  /** Requests all that is known of a cluster, as long as that `isWanted`. */
  private async _load(name: string, isWanted: () => boolean): Promise<void> {
    for (let i = 0; i < ATTEMPTS; i++) {
      const before = this._eventCounts.get(name);
      const found = await this.api.cluster(name);
      if (this._isDisposed || !isWanted()) {
        return;
      }
      if (before === this._eventCounts.get(name) || i === ATTEMPTS - 1) {
        const now = Date.now();
        found.ranks?.forEach(row => (row.receivedAt = now));
        this._all.set(name, { ...found, receivedAt: now });
        break;
      }
    }
    this._emit(name);
  }

  /** Looks at all clusters of other hosts that the page shows. */
  private _lookAll(): void {
    const shown = new Set([...this._looks, this.current?.name ?? '']);
    [...shown].filter(hostOf).forEach(name => void this._lookAt(name));
  }

  private async _lookAt(name: string): Promise<void> {
    try {
      await this._load(name, () => true);
    } catch (error) {
      console.warn(`jdist: ${name}:`, error); // it is not there, or the server does not answer
    }
  }

  private _onEvent(_: unknown, event: Event.Emission): void {
    if (event.schema_id !== SCHEMA) {
      return;
    }
    const change = event as unknown as IClusterEvent;
    const { name } = change;
    const known = this._all.get(name);
    this._eventCounts.set(name, (this._eventCounts.get(name) ?? 0) + 1);
    if (change.action === 'gone') {
      this._all.delete(name);
      this._loaded = this._loaded === name ? '' : this._loaded;
    } else {
      const receivedAt = Date.now();
      const ranks: IRank[] = change.ranks;
      ranks.forEach(row => (row.receivedAt = receivedAt));
      this._all.set(name, { ...change.cluster, receivedAt, ranks: mergeRanks(known?.ranks, change) });
      if (!isSame(known, change.cluster)) {
        this._loaded = this._loaded === name ? '' : this._loaded;
      }
    }
    this._emit(name, change.notices);
    void this._loadCurrent();
  }

  private readonly _events: EventManager;
  private readonly _clock: number;
  private _all = new Map<string, ICluster>();
  /** The clusters of other hosts that parts of the page show, once for each part. */
  private readonly _looks: string[] = [];
  /** How many events of each cluster have arrived. */
  private _eventCounts = new Map<string, number>();
  private _chosen = '';
  private _current = '';
  /** The number of requests for the list, and the latest one that has been answered. */
  private _requested = 0;
  private _answered = 0;
  /** The cluster whose ranks have been requested. */
  private _loaded = '';
  private _isKnown = false;
  private _lostAt: number | null = null;
  private _problem: RequestError | null = null;
  private _isDisposed = false;
  private _changed = new Signal<this, IClusterChange>(this);
}

/** Whether the event is of the cluster that is known, with as many ranks, and not of a later one of the same name. */
function isSame(known: ICluster | undefined, reported: ICluster): boolean {
  return known?.generation === reported.generation && known?.world_size === reported.world_size;
}

/** The known ranks with those that have changed, without those that the world no longer has. */
function mergeRanks(known: IRank[] | undefined, change: IClusterEvent): IRank[] {
  const rows = new Map((known ?? []).map(row => [row.rank, row]));
  change.ranks.forEach(row => rows.set(row.rank, row));
  const size = change.cluster.world_size ?? rows.size;
  return [...rows.values()].filter(row => row.rank < size).sort((a, b) => a.rank - b.rank);
}

/** The settings with web sockets that call `open` when they have been opened, and `close` when they have been closed. */
function withHandlers(
  settings: ServerConnection.ISettings,
  handlers: { open: () => void; close: () => void }
): ServerConnection.ISettings {
  class ObservedWebSocket extends settings.WebSocket {
    constructor(url: string | URL, protocols?: string | string[]) {
      super(url, protocols);
      this.addEventListener('open', handlers.open);
      this.addEventListener('close', handlers.close);
    }
  }
  return { ...settings, WebSocket: ObservedWebSocket };
}
