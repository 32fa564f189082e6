/** Which cluster a notebook's kernel uses, as the kernel tells the page. */

import { ISessionContext } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { ICluster } from '../api';

/** The comm of jdist/notebook/page.py. */
const TARGET = 'jdist';
/** A kernel with one of these has lost all that it knew. */
const ENDINGS: Kernel.Status[] = ['restarting', 'autorestarting', 'terminating', 'dead'];

/** What a kernel tells of its notebook's cluster. */
export interface ITold {
  /** Empty if the notebook uses none. */
  name: string;
  /** What no other cluster has; empty if it is not known. */
  id: string;
  /** Plain cells run on its ranks: `%dist auto on`. */
  isAuto: boolean;
}

const NOTHING: ITold = { name: '', id: '', isAuto: false };

/** What is told by a message of the comm, or was stored. */
export function toldIn(data: JSONObject): ITold {
  const { cluster: name, id, is_auto } = data;
  const isUsed = typeof name === 'string' && !!name;
  return isUsed ? { name, id: typeof id === 'string' ? id : '', isAuto: is_auto === true } : NOTHING;
}

/** That cluster among those that are known; not another one that has its name now. */
export function findAttached(
  { name, id }: Pick<ITold, 'name' | 'id'>,
  clusters: { get: (name: string) => ICluster | undefined }
): ICluster | undefined {
  const found = name ? clusters.get(name) : undefined;
  return found && id && found.cluster && found.cluster !== id ? undefined : found;
}

/**
 * The cluster, as the kernel last told it.
 *
 * A kernel tells it whenever it changes, and when it is asked after a reload of the page. Until a busy kernel answers,
 * what this page was told before the reload is shown. A kernel that restarts or ends uses no cluster any more.
 */
export class AttachedCluster implements IDisposable {
  constructor(private readonly _session: ISessionContext) {
    _session.kernelChanged.connect(this._onKernel, this);
    _session.statusChanged.connect(this._onStatus, this);
    _session.connectionStatusChanged.connect(this._onConnection, this);
    this._onKernel();
  }

  /** Its name; empty if the notebook uses none. */
  get name(): string {
    return this._told.name;
  }

  get id(): string {
    return this._told.id;
  }

  get isAuto(): boolean {
    return this._told.isAuto;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._session.kernelChanged.disconnect(this._onKernel, this);
      this._session.statusChanged.disconnect(this._onStatus, this);
      this._session.connectionStatusChanged.disconnect(this._onConnection, this);
      Signal.clearData(this);
    }
  }

  private get _kernel(): Kernel.IKernelConnection | null {
    return this._session.session?.kernel ?? null;
  }

  private _onKernel(): void {
    const kernel = this._kernel;
    this._set(kernel ? storedFor(kernel) : NOTHING);
    if (kernel?.handleComms) {
      kernel.registerCommTarget(TARGET, (comm, opened) => {
        this._listen(kernel, comm);
        this._onTold(kernel, opened.content.data);
      });
      void this._ask(kernel);
    }
  }

  private _onStatus(_: ISessionContext, status: Kernel.Status): void {
    if (ENDINGS.includes(status)) {
      this._onTold(this._kernel, {});
    }
  }

  /** What was told while the page was not connected is lost. */
  private _onConnection(_: ISessionContext, status: Kernel.ConnectionStatus): void {
    const kernel = this._kernel;
    if (status === 'connected' && kernel?.handleComms) {
      void this._ask(kernel);
    }
  }

  /** Asks the kernel, if it has told any page before. A busy kernel answers later. */
  private async _ask(kernel: Kernel.IKernelConnection): Promise<void> {
    try {
      const { content } = await kernel.requestCommInfo({ target_name: TARGET });
      if (content.status !== 'ok' || kernel !== this._kernel) {
        return;
      }
      const [id] = Object.keys(content.comms);
      if (id === undefined) {
        this._onTold(kernel, {});
        return;
      }
      if (!kernel.hasComm(id)) {
        this._listen(kernel, kernel.createComm(TARGET, id)).send({});
      }
    } catch {
      // the kernel has ended meanwhile, or has been exchanged
    }
  }

  private _listen(kernel: Kernel.IKernelConnection, comm: Kernel.IComm): Kernel.IComm {
    comm.onMsg = (message: KernelMessage.ICommMsgMsg) => this._onTold(kernel, message.content.data);
    comm.onClose = () => this._onTold(kernel, {}); // %unload_ext jdist
    return comm;
  }

  private _onTold(kernel: Kernel.IKernelConnection | null, data: JSONObject): void {
    if (this._isDisposed || !kernel || kernel !== this._kernel) {
      return;
    }
    const told = toldIn(data);
    if (told.name) {
      sessionStorage.setItem(keyOf(kernel), JSON.stringify({ cluster: told.name, id: told.id, is_auto: told.isAuto }));
    } else {
      sessionStorage.removeItem(keyOf(kernel));
    }
    this._set(told);
  }

  private _set(told: ITold): void {
    if (JSON.stringify(told) !== JSON.stringify(this._told)) {
      this._told = told;
      this._changed.emit();
    }
  }

  private _told = NOTHING;
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
}

const known = new WeakMap<NotebookPanel, AttachedCluster>();

/** That of a notebook; all who ask have the same. */
export function attachedOf(panel: NotebookPanel): AttachedCluster {
  const attached = known.get(panel) ?? new AttachedCluster(panel.sessionContext);
  if (!known.has(panel)) {
    known.set(panel, attached);
    panel.disposed.connect(() => attached.dispose());
  }
  return attached;
}

/** What this page was told before it was loaded again. */
function storedFor(kernel: Kernel.IKernelConnection): ITold {
  return toldIn(JSON.parse(sessionStorage.getItem(keyOf(kernel)) ?? '{}') as JSONObject);
}

function keyOf(kernel: Kernel.IKernelConnection): string {
  return `jdist:attached-of:${kernel.id}`;
}
