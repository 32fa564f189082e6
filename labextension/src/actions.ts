/** What users do with clusters and ranks: each action finds out which ranks are meant, and reports what goes wrong. */

import { Clipboard, Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';

import { Api, ICluster, IRank, IRunId } from './api';
import { StepKind } from './generated/server';
import { formatRanks } from './format';
import { canContinue, canPause } from './paused';
import { askForCode } from './shell/codedialog';
import { logIn } from './shell/login';
import { insertCell } from './shell/notebooks';
import { Terminals } from './shell/terminals';
import { hostOf } from './states';
import { IClusters } from './tokens';

/** Arguments of a command: `{ cluster, ranks }`, both optional. */
export type Args = ReadonlyPartialJSONObject;

/** JupyterLab cuts off notifications after so many characters. */
const MOST_CHARACTERS = 140;
/** What is offered to be run on the ranks first. */
const FIRST_CELL = '%%dist\nprint(rank, world_size)';

/** Whether a notification shows only a part of the text. */
function isLong(text: string): boolean {
  return text.length > MOST_CHARACTERS || text.trim().includes('\n');
}

/** The run named by arguments `{ cluster, id, run }`. */
function runOf(args: Args): IRunId {
  const { cluster, id, run } = args;
  return {
    run: Number(run ?? 0),
    cluster: typeof cluster === 'string' ? cluster : '',
    cluster_id: typeof id === 'string' ? id : undefined
  };
}

export class Actions {
  constructor(
    readonly clusters: IClusters,
    private readonly _selection: { readonly ranks: number[] },
    private readonly _notebooks: INotebookTracker | null,
    private readonly _terminals: Terminals,
    private readonly _trans: TranslationBundle
  ) {}

  get api(): Api {
    return this.clusters.api;
  }

  /** The cluster named by the arguments; by default the one that the panel shows. */
  cluster(args: Args): ICluster | undefined {
    return typeof args.cluster === 'string' ? this.clusters.get(args.cluster) : this.clusters.current;
  }

  /** The ranks named by the arguments; by default those selected in the panel. Empty: all ranks. */
  ranks(args: Args): number[] {
    if (Array.isArray(args.ranks)) {
      return args.ranks.map(Number);
    }
    return args.ranks === undefined ? this._selection.ranks : [];
  }

  /** The same ranks as a user writes them; undefined: all ranks. */
  ranksText(args: Args): string | undefined {
    if (typeof args.ranks === 'string') {
      return args.ranks === 'all' ? undefined : args.ranks;
    }
    const ranks = this.ranks(args);
    return ranks.length ? formatRanks(ranks) : undefined;
  }

  /** Whether the cluster answers, so that something can be asked of its ranks. */
  isAvailable(args: Args): boolean {
    const cluster = this.cluster(args);
    return cluster?.world_size !== undefined && cluster.state !== 'silent';
  }

  /** Those of the ranks that are meant of which something is true. */
  private _ranksThat(args: Args, isSo: (rank: IRank) => boolean): IRank[] {
    const ranks = this.ranks(args);
    const all = this.cluster(args)?.ranks ?? [];
    return all.filter(row => isSo(row) && (!ranks.length || ranks.includes(row.rank)));
  }

  /** Whether a rank is in a run, and neither paused nor about to be. */
  canPause(args: Args): boolean {
    return this._ranksThat(args, canPause).length > 0;
  }

  /** Whether a rank is paused. */
  isPaused(args: Args): boolean {
    return this._ranksThat(args, row => row.paused !== undefined).length > 0;
  }

  /** Whether a rank is paused, or has been asked to pause. */
  canContinue(args: Args): boolean {
    return this._ranksThat(args, canContinue).length > 0;
  }

  /** The cluster that is meant; if the arguments name one that is gone, the user is told so. */
  existing(args: Args): ICluster | undefined {
    const found = this.cluster(args);
    if (!found && typeof args.cluster === 'string') {
      Notification.warning(this._trans.__('There is no cluster %1 any more.', args.cluster), { autoClose: 5000 });
    }
    return found;
  }

  /** Logs in to the host of a cluster. */
  async logIn(args: Args): Promise<void> {
    const name = this.existing(args)?.name ?? '';
    if (hostOf(name)) {
      await this.reportErrors(async () => {
        await logIn(this.api, hostOf(name), this._trans);
      });
    }
  }

  async pause(args: Args): Promise<void> {
    const name = this.existing(args)?.name;
    if (name !== undefined) {
      await this.reportErrors(() => this.api.pause(name, this.ranksText(args)));
    }
  }

  async resume(args: Args, how: StepKind): Promise<void> {
    const name = this.existing(args)?.name;
    if (name !== undefined) {
      const id = typeof args.id === 'string' ? args.id : undefined;
      await this.reportErrors(() => this.api.resume(name, how, this.ranksText(args), id));
    }
  }

  /** Lets cells of the ranks run in the frame number `args.index` of their stacks. */
  async chooseFrame(args: Args): Promise<void> {
    const name = this.existing(args)?.name;
    const ranks = this.ranksText(args);
    if (name !== undefined && ranks !== undefined) {
      await this.reportErrors(() => this.api.chooseFrame(name, Number(args.index), ranks));
    }
  }

  async interrupt(args: Args): Promise<void> {
    const name = this.existing(args)?.name;
    if (name !== undefined) {
      const run = typeof args.run === 'number' ? runOf(args) : undefined;
      await this.reportErrors(() => this.api.interrupt(name, this.ranksText(args), run));
    }
  }

  /**
   * Asks for code and runs it on ranks of a run's cluster, although the notebook waits for that run. Returns what the cell
   * has written; empty if the user has cancelled. Rejects with the reason if it could not be run.
   */
  async runBeside(args: Args): Promise<string> {
    const trans = this._trans;
    const ranks = this.ranksText(args) ?? '0';
    const where = /^\d+$/.test(ranks) ? trans.__('rank %1', ranks) : trans.__('ranks %1', ranks);
    const about = trans.__('The cell runs at once on %1, while the notebook waits for the others.', where);
    const code = await askForCode(trans.__('Run a cell on %1', where), about, trans);
    if (code === undefined) {
      return '';
    }
    const data = await this.api.runBeside(runOf(args), code, ranks);
    return (data['text/plain'] as string | undefined) ?? '';
  }

  /** The same where there is no output to show it in: in a notification, which opens a long text in a dialog. */
  async showBeside(args: Args): Promise<void> {
    await this.reportErrors(async () => {
      const text = await this.runBeside(args);
      if (!text) {
        return;
      }
      const trans = this._trans;
      const open = (): void => void this.show(trans.__('Output of the cell'), '', text);
      const actions = isLong(text) ? [{ label: trans.__('Show all'), callback: open }] : [];
      Notification.info(text, { autoClose: false, actions });
    });
  }

  /** Asks for confirmation first, since variables are lost. */
  async restart(args: Args): Promise<void> {
    const cluster = this.existing(args);
    if (!cluster) {
      return;
    }
    const ranks = this.ranksText(args);
    const trans = this._trans;
    const title = ranks
      ? trans.__('Restart ranks %1 of %2?', ranks, cluster.name)
      : trans.__('Restart all ranks of %1?', cluster.name);
    const body = trans.__(
      'Their processes are replaced by fresh ones: their variables are lost, and running cells are interrupted.'
    );
    if (await this._isConfirmed(title, body, trans.__('Restart'))) {
      await this.reportErrors(() => this.api.restart(cluster.name, ranks));
    }
  }

  /** Asks for confirmation first, since the value is lost. */
  async deleteVariable(args: Args, name: string): Promise<void> {
    const cluster = this.cluster(args);
    if (!cluster) {
      return;
    }
    const ranks = this.ranksText(args);
    const trans = this._trans;
    const title = ranks ? trans.__('Delete %1 on ranks %2?', name, ranks) : trans.__('Delete %1 on all ranks?', name);
    const body = trans.__('The variable is deleted once the cells that run there have ended, and its value is lost.');
    if (await this._isConfirmed(title, body, trans.__('Delete'))) {
      await this.reportErrors(() => this.api.variable(cluster.name, 'delete', name, ranks));
    }
  }

  /** Asks for confirmation first, except for a start that is in progress or has failed. */
  async stop(args: Args): Promise<void> {
    const cluster = this.existing(args);
    if (!cluster) {
      return;
    }
    const trans = this._trans;
    const title = trans.__('Stop cluster %1?', cluster.name);
    const body = trans.__('Its ranks end for every notebook that uses it, and their variables are lost.');
    if (cluster.starting !== undefined || (await this._isConfirmed(title, body, trans.__('Stop')))) {
      await this.reportErrors(() => this.api.stop(cluster.name));
    }
  }

  /** Shows the line that starts the missing nodes of a start, which the user has to run there. */
  async showInstructions(args: Args): Promise<void> {
    const name = this.existing(args)?.name;
    if (name !== undefined) {
      await this.reportErrors(async () => {
        const { about, line } = await this.api.instructions(name);
        await this.show(this._trans.__('Nodes of %1', name), about, line);
      });
    }
  }

  async revive(args: Args): Promise<void> {
    const name = this.existing(args)?.name;
    if (name !== undefined) {
      await this.reportErrors(() => this.api.revive(name));
    }
  }

  /** Puts the code that attaches to the cluster into the open notebook, and runs it if `isRun`. */
  async attach(args: Args, isRun: boolean): Promise<void> {
    const name = this.existing(args)?.name;
    if (name !== undefined) {
      await this.reportErrors(async () => {
        const code = await this.api.attachCode(name);
        await (isRun ? this.insert(code, true, FIRST_CELL) : this.insert(code));
      });
    }
  }

  /** Puts code into the open notebook; without one, shows the code so that it can be copied. See `insertCell`. */
  async insert(code: string, isRun = false, next = ''): Promise<void> {
    if (!(await insertCell(this._notebooks, code, isRun, next))) {
      const trans = this._trans;
      await this.show(trans.__('No notebook is open'), trans.__('Run this in a cell of a notebook:'), code);
    }
  }

  /** Opens a terminal with a console in the rank's kernel; where that is impossible, shows the command for one. */
  async console(cluster: string, rank: number): Promise<void> {
    await this.reportErrors(async () => {
      const { hostname, command, command_here: here, reason } = await this.api.console(cluster, rank);
      const trans = this._trans;
      if (here && this._terminals.areAvailable) {
        return this._terminals.run(`rank_${rank}_of_${cluster}`, here);
      }
      const why = here ? trans.__('this page has no terminals') : reason;
      const how = trans.__(
        'To open a console in the rank, with its variables, run this in a terminal on %1:',
        hostname
      );
      const about = `${trans.__('No terminal can be opened here: %1.', why)} ${how}`;
      await this.show(trans.__('Console of rank %1 of %2', rank, cluster), about, command);
    });
  }

  /** Shows a text in a dialog with a button that copies it. */
  async show(title: string, about: string, text: string): Promise<void> {
    const body = new Widget();
    body.addClass('jdist-copyable');
    const aboutNode = document.createElement('p');
    aboutNode.textContent = about;
    const textNode = document.createElement('pre');
    textNode.textContent = text;
    textNode.tabIndex = 0;
    body.node.append(aboutNode, textNode);
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

  /** The ranks that are meant; if none is named or selected, the user picks one in a dialog. */
  async pickRanks(args: Args, title: string): Promise<number[]> {
    const ranks = this.ranks(args);
    const size = this.cluster(args)?.world_size ?? 0;
    if (ranks.length || size < 2) {
      return ranks.length ? ranks : size ? [0] : [];
    }
    const items = Array.from({ length: size }, (_, rank) => String(rank));
    const { value } = await InputDialog.getItem({ title, items, label: this._trans.__('Rank') });
    return value === null ? [] : [Number(value)];
  }

  /** Performs the action and shows a notification if it fails, or if it takes longer than the request. */
  async reportErrors(action: () => Promise<unknown>): Promise<void> {
    try {
      const answer = await action();
      if ((answer as { state?: string } | undefined)?.state === 'under way') {
        const text = this._trans.__('This takes a while; the panel shows the progress.');
        Notification.info(text, { autoClose: 5000 });
      }
    } catch (error) {
      Notification.error(error instanceof Error ? error.message : String(error), { autoClose: false });
    }
  }

  private async _isConfirmed(title: string, body: string, label: string): Promise<boolean> {
    const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label })];
    return (await showDialog({ title, body, buttons })).button.accept;
  }
}
