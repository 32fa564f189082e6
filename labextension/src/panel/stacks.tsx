/** The stacks of paused ranks as one tree, in which ranks at the same place share a row. */

import { NotebookActions } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandToolbarButton } from '@jupyterlab/ui-components';
import * as React from 'react';

import { IStackFrame, IStacksSnapshot } from '../generated/server';
import { formatRanks } from '../format';
import { IStackRow, pausedState, rowsOf } from '../paused';
import { CommandIDs } from '../tokens';
import { STEPS } from './menu';
import { IContext, Section } from './section';

export class StackTree extends Section {
  constructor(context: IContext) {
    const { commands, trans } = context;
    super(context, 'stacks', trans.__('Stacks'));
    STEPS.forEach(id => this.toolbar.addItem(id, new CommandToolbarButton({ commands, id, label: '' })));
    context.clusters.changed.connect(() => this._load());
    NotebookActions.executed.connect(this._reload, this); // a cell may have chosen another frame
    this._load();
  }

  protected render(): JSX.Element {
    const { clusters, selection, commands, trans } = this.context;
    const cluster = clusters.current;
    if (!this._stacks) {
      return <p className="jdist-empty">{this._problem || trans.__('Loading…')}</p>;
    }
    const open = (frame: IStackFrame, ranks: number[]): void => {
      const args = { cluster: cluster?.name ?? '', ranks, file: frame.file ?? '', line: frame.line };
      void commands.execute(CommandIDs.openSource, args);
    };
    const choose = ({ branch, index }: IStackRow): void => {
      const args = { cluster: cluster?.name ?? '', ranks: branch.ranks, index };
      void commands.execute(CommandIDs.chooseFrame, args).then(() => this._load(true));
    };
    return (
      <div className="jdist-scroller">
        <ul className="jdist-stacktree" role="tree" aria-label={trans.__('Stacks of the paused ranks')}>
          {rowsOf(this._stacks.stacks).map(row => (
            <Frame
              key={row.key}
              row={row}
              trans={trans}
              open={open}
              choose={() => choose(row)}
              select={ranks => selection.select(ranks)}
            />
          ))}
        </ul>
        {this._stacks.others.map(({ ranks, text }) => (
          <p key={ranks} className="jdist-other">
            <span className="jdist-ranks">[{ranks}]</span> {text}
          </p>
        ))}
      </div>
    );
  }

  private _reload(): void {
    this._load(true);
  }

  /** Requests the stacks again when a rank pauses or resumes, or another frame is chosen. */
  private _load(isForced = false): void {
    const cluster = this.context.clusters.current;
    const state = pausedState(cluster);
    if (this.isDisposed || !cluster || (state === this._state && !isForced)) {
      return;
    }
    this._state = state;
    if (!state) {
      this._stacks = null;
      return;
    }
    this.context.clusters.api.stacks(cluster.name).then(
      found => this._accept(state, found, ''),
      (error: unknown) => this._accept(state, null, error instanceof Error ? error.message : String(error))
    );
  }

  private _accept(state: string, found: IStacksSnapshot | null, problem: string): void {
    if (state === this._state && !this.isDisposed) {
      this._stacks = found;
      this._problem = problem;
      this.update();
    }
  }

  private _state = '';
  private _stacks: IStacksSnapshot | null = null;
  private _problem = '';
}

interface IFrameProps {
  row: IStackRow;
  trans: TranslationBundle;
  open: (frame: IStackFrame, ranks: number[]) => void;
  choose: () => void;
  select: (ranks: number[]) => void;
}

function Frame({ row, trans, open, choose, select }: IFrameProps): JSX.Element {
  const { frame, ranks, chosen } = row.branch;
  const place = frame.file ? `${frame.file.split('/').pop()}:${frame.line}` : trans.__('line %1', frame.line);
  const title = frame.file ? trans.__('Open %1 at line %2', frame.file, frame.line) : frame.source;
  return (
    <li
      role="treeitem"
      aria-level={row.depth + 1}
      className={`jdist-frame${chosen.length ? ' jdist-mod-chosen' : ''}`}
      style={{ paddingLeft: 4 + 12 * row.depth }}
    >
      {row.isNamed && (
        <button className="jdist-link" title={trans.__('Select these ranks')} onClick={() => select(ranks)}>
          [{formatRanks(ranks)}]
        </button>
      )}
      {row.isNamed && ' '}
      <button className="jdist-link" title={trans.__('Run cells in this frame')} onClick={choose}>
        {frame.function}
      </button>
      ,{' '}
      {frame.file ? (
        <button className="jdist-link" title={title} onClick={() => open(frame, ranks)}>
          {place}
        </button>
      ) : (
        <span title={title}>{place}</span>
      )}
      <code>{frame.source}</code>
      {chosen.length > 0 && <span className="jdist-note">{trans.__('cells run here')}</span>}
    </li>
  );
}
