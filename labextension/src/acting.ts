/** Acting: what is asked of a cluster's ranks, with what it is asked for; what goes wrong is told. */

import { Clipboard, Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import { Api, ICluster } from './api';
import { IClusters } from './tokens';
import { insert } from './notebooks';
import { Choice } from './panel/choice';
import { Terminals } from './terminals';
import * as words from './words';

type Args = ReadonlyPartialJSONObject;

export class Acting {
  constructor(
    readonly clusters: IClusters,
    readonly choice: Choice,
    private readonly _notebooks: INotebookTracker | null,
    private readonly _terminals: Terminals,
    private readonly _trans: TranslationBundle
  ) {}

  get api(): Api {
    return this.clusters.api;
  }

  /** The cluster that is meant: the one named, else the one that is looked at. */
  cluster(args: Args): ICluster | undefined {
    return typeof args.cluster === 'string' ? this.clusters.get(args.cluster) : this.clusters.current;
  }

  /** The ranks that are meant: those named, else those chosen; empty: all. */
  ranks(args: Args): number[] {
    if (Array.isArray(args.ranks)) {
      return args.ranks.map(Number);
    }
    return args.ranks === undefined ? this.choice.ranks : [];
  }

  /** The same as a user writes them; undefined: all. */
  written(args: Args): string | undefined {
    if (typeof args.ranks === 'string') {
      return args.ranks === 'all' ? undefined : args.ranks;
    }
    const ranks = this.ranks(args);
    return ranks.length ? words.written(ranks) : undefined;
  }

  /** Whether there is a cluster that can be talked to. */
  canAct(args: Args): boolean {
    const cluster = this.cluster(args);
    return cluster?.world_size !== undefined && cluster.state !== 'silent';
  }

  async interrupt(args: Args): Promise<void> {
    const name = this.cluster(args)?.name;
    if (name !== undefined) {
      await this.telling(() => this.api.interrupt(name, this.written(args)));
    }
  }

  /** Asks first, since variables are lost. */
  async restart(args: Args): Promise<void> {
    const cluster = this.cluster(args);
    if (!cluster) {
      return;
    }
    const ranks = this.written(args);
    const trans = this._trans;
    const title = ranks
      ? trans.__('Restart ranks %1 of %2?', ranks, cluster.name)
      : trans.__('Restart all ranks of %1?', cluster.name);
    const body = trans.__('Their processes are replaced by fresh ones: their variables are lost, and so is what runs.');
    if (await this._agreed(title, body, trans.__('Restart'))) {
      await this.telling(() => this.api.restart(cluster.name, ranks));
    }
  }

  /** Asks first, but for a start that has failed or is under way. */
  async stop(args: Args): Promise<void> {
    const cluster = this.cluster(args);
    if (!cluster) {
      return;
    }
    const trans = this._trans;
    const title = trans.__('Stop cluster %1?', cluster.name);
    const body = trans.__('Its ranks end, for every notebook that uses it, and their variables are lost.');
    if (cluster.starting !== undefined || (await this._agreed(title, body, trans.__('Stop')))) {
      await this.telling(() => this.api.stop(cluster.name));
    }
  }

  async revive(args: Args): Promise<void> {
    const name = this.cluster(args)?.name;
    if (name !== undefined) {
      await this.telling(() => this.api.revive(name));
    }
  }

  /** Puts the code that attaches to the cluster into the open notebook; runs it if `isRun`. */
  async attach(args: Args, isRun: boolean): Promise<void> {
    const name = this.cluster(args)?.name;
    if (name !== undefined) {
      await this.telling(async () => this.insert(await this.api.attachCode(name), isRun));
    }
  }

  /** Puts code into the open notebook; shows it to be copied if none is open. */
  async insert(code: string, isRun = false): Promise<void> {
    if (!(await insert(this._notebooks, code, isRun))) {
      const trans = this._trans;
      await this.show(trans.__('No notebook is open'), trans.__('Run this in a cell of a notebook:'), code);
    }
  }

  /** A terminal in the rank's kernel; where this page cannot open one, what to type in a terminal elsewhere. */
  async console(cluster: string, rank: number): Promise<void> {
    await this.telling(async () => {
      const { hostname, command, command_here: here, reason } = await this.api.console(cluster, rank);
      const trans = this._trans;
      if (here && this._terminals.areAvailable) {
        return this._terminals.run(`rank_${rank}_of_${cluster}`, here);
      }
      const why = here ? trans.__('this page has no terminals') : reason;
      const how = trans.__('In a terminal on %1, this opens a console in the rank, with its variables:', hostname);
      const about = `${trans.__('No terminal can be opened here: %1.', why)} ${how}`;
      await this.show(trans.__('Console of rank %1 of %2', rank, cluster), about, command);
    });
  }

  /** A text that can be copied. */
  async show(title: string, about: string, text: string): Promise<void> {
    const body = new Widget();
    body.addClass('jdist-copyable');
    const how = document.createElement('p');
    how.textContent = about;
    const what = document.createElement('pre');
    what.textContent = text;
    what.tabIndex = 0;
    body.node.append(how, what);
    const trans = this._trans;
    const { button } = await showDialog({
      title,
      body,
      buttons: [Dialog.cancelButton({ label: trans.__('Close') }), Dialog.okButton({ label: trans.__('Copy') })]
    });
    if (button.accept) {
      Clipboard.copyToSystem(text);
    }
  }

  /** The ranks whose text is wanted; asks if none is chosen. */
  async pick(args: Args, title: string): Promise<number[]> {
    const ranks = this.ranks(args);
    const size = this.cluster(args)?.world_size ?? 0;
    if (ranks.length || size < 2) {
      return ranks.length ? ranks : size ? [0] : [];
    }
    const items = Array.from({ length: size }, (_, rank) => String(rank));
    const { value } = await InputDialog.getItem({ title, items, label: this._trans.__('Rank') });
    return value === null ? [] : [Number(value)];
  }

  /** Does it; what goes wrong is told. */
  async telling(what: () => Promise<unknown>): Promise<void> {
    try {
      const answer = await what();
      if ((answer as { state?: string } | undefined)?.state === 'under way') {
        Notification.info(this._trans.__('This takes a while; the panel shows what becomes of it.'), {
          autoClose: 5000
        });
      }
    } catch (error) {
      Notification.error(error instanceof Error ? error.message : String(error), { autoClose: false });
    }
  }

  private async _agreed(title: string, body: string, label: string): Promise<boolean> {
    const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label })];
    return (await showDialog({ title, body, buttons })).button.accept;
  }
}
