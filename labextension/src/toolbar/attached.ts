/** Which cluster a notebook's kernel uses, as the kernel tells the page. */

import { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

/** The comm of jdist/notebook/cluster_comm.py. */
const TARGET = 'jdist';
/** A kernel with one of these has lost all that it knew. */
const ENDINGS: Kernel.Status[] = ['restarting', 'autorestarting', 'terminating', 'dead'];

/**
 * The name of the cluster, as the kernel last told it.
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
    return this._name;
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
    this._set(kernel ? (sessionStorage.getItem(keyOf(kernel)) ?? '') : '');
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

  private _onTold(kernel: Kernel.IKernelConnection | null, told: JSONObject): void {
    if (this._isDisposed || !kernel || kernel !== this._kernel) {
      return;
    }
    const name = typeof told.cluster === 'string' ? told.cluster : '';
    if (name) {
      sessionStorage.setItem(keyOf(kernel), name);
    } else {
      sessionStorage.removeItem(keyOf(kernel));
    }
    this._set(name);
  }

  private _set(name: string): void {
    if (name !== this._name) {
      this._name = name;
      this._changed.emit();
    }
  }

  private _name = '';
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
}

function keyOf(kernel: Kernel.IKernelConnection): string {
  return `jdist:cluster-of:${kernel.id}`;
}
