/** The variables of the ranks: a table that is requested only while the section is open. */

import { NotebookActions } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { IValueRow } from '../../variables';
import { IVariableRow, IVariablesSnapshot } from '../../generated/server';
import { pausedState } from '../../paused';
import { CommandIDs } from '../../tokens';
import { IContext, Section } from '../section';
import { Comparison } from './comparing';
import { Details, IDetails } from './details';
import { bytes, comparison, IVariableView, shownVariables, SIGNS, SortKey, summary } from './rows';

export class Variables extends Section {
  constructor(context: IContext) {
    const { trans } = context;
    super(context, 'variables', trans.__('Variables'));
    context.clusters.changed.connect(this._onClusters, this);
    NotebookActions.executed.connect(this._load, this); // a short run begins and ends between two events
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._load();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._load();
  }

  protected render(): JSX.Element {
    const { trans } = this.context;
    if (!this._found) {
      return <p className="jdist-empty">{this._problem || trans.__('Loading…')}</p>;
    }
    const { variables, notes } = this._found;
    return (
      <div className="jdist-table">
        <div className="jdist-filter">
          <input
            className="jp-mod-styled"
            type="search"
            placeholder={trans.__('Filter: loss*, Tensor…')}
            aria-label={trans.__('Filter variables')}
            value={this._view.filter}
            onChange={event => this._changeView({ filter: event.target.value })}
          />
          <button
            className="jdist-act"
            title={trans.__('List the variables again')}
            aria-label={trans.__('List the variables again')}
            onClick={() => this._load()}
          >
            <refreshIcon.react tag="span" aria-hidden="true" />
          </button>
        </div>
        <div className="jdist-scroller">
          <Table
            variables={shownVariables(variables, this._view)}
            view={this._view}
            details={this._details}
            trans={trans}
            sort={key => this._sort(key)}
            open={name => this._open(name)}
            act={(what, name) => this._act(what, name)}
          />
          {variables.length === 0 && <p className="jdist-empty">{trans.__('The ranks have no variables.')}</p>}
          {[...notes, this._problem].filter(Boolean).map(note => (
            <p key={note} className="jdist-empty">
              {note}
            </p>
          ))}
        </div>
      </div>
    );
  }

  private _changeView(change: Partial<IVariableView>): void {
    this._view = { ...this._view, ...change };
    this.update();
  }

  private _sort(sort: SortKey): void {
    this._changeView({ sort, isDescending: sort === this._view.sort ? !this._view.isDescending : sort === 'size' });
  }

  /** Requests the list again when a run ends, ranks pause or resume, or another cluster is shown. */
  private _onClusters(): void {
    const cluster = this.context.clusters.current;
    const state = `${cluster?.name} ${cluster?.generation} ${pausedState(cluster)}`;
    const runs = new Set((cluster?.runs ?? []).map(each => each.number));
    const hasEnded = [...this._runs].some(number => !runs.has(number));
    this._runs = runs;
    if (state !== this._state || hasEnded) {
      this._state = state;
      this._load();
    }
  }

  /** Requests the list, once more if this was called during the request. */
  private _load(): void {
    const cluster = this.context.clusters.current;
    if (this.isDisposed || !this.isVisible || !cluster) {
      return;
    }
    this._isDue = this._isLoading;
    if (this._isLoading) {
      return;
    }
    this._isLoading = true;
    if (cluster.name !== this._name) {
      this._found = this._details = null;
      this._name = cluster.name;
    }
    const number = ++this._lists;
    void this.context.clusters.api
      .variables(cluster.name)
      .then(
        found => {
          this._details?.comparison?.listArrived(number);
          this._accept(cluster.name, found, '');
        },
        (error: unknown) => this._accept(cluster.name, this._found, textOf(error))
      )
      .then(() => {
        this._isLoading = false;
        if (this._isDue) {
          this._load();
        }
      });
  }

  private _accept(name: string, found: IVariablesSnapshot | null, problem: string): void {
    if (name !== this._name || this.isDisposed) {
      return;
    }
    const isNew = found !== this._found;
    this._found = found;
    this._problem = problem;
    if (this._details && !found?.variables.some(each => each.name === this._details?.name)) {
      this._details = null;
    } else if (this._details && isNew) {
      this._read({ ...this._details, problem: '', isOld: this._details.values !== null });
    }
    this.update();
  }

  /** Opens or closes the details of a variable; only now are its contents read. */
  private _open(name: string): void {
    if (this._details?.name === name) {
      this._details = null;
      this.update();
      return;
    }
    this._read({ name, values: null, comparison: null, problem: '', isOld: false });
  }

  /** Reads the contents of the variable that is open from now on, again after each cell; older answers are not shown. */
  private _read(details: IDetails): void {
    this._details = details;
    this.update();
    this._ask(details, async () => {
      const { api } = this.context.clusters;
      details.values = (await api.variable<{ values: IValueRow[] }>(this._name, 'show', details.name)).values;
      details.isOld = false;
    });
  }

  private _act(what: 'pull' | 'check' | 'remove', name: string): void {
    const { commands, clusters } = this.context;
    const details = this._details;
    if (what === 'pull') {
      void commands.execute(CommandIDs.insertCell, { cluster: this._name, code: `%dist pull ${name}` });
    } else if (what === 'remove') {
      void commands.execute(CommandIDs.deleteVariable, { cluster: this._name, name }).then(() => this._load());
    } else if (details) {
      const comparison = (details.comparison = new Comparison(this._lists));
      this.update();
      this._ask(comparison, async () => {
        comparison.text = (await clusters.api.variable<{ text: string }>(this._name, 'check', name)).text;
      });
    }
  }

  /** Asks the ranks about the variable that is open, and shows the answer or why there is none. */
  private _ask(about: { problem: string }, ask: () => Promise<void>): void {
    void ask()
      .catch((error: unknown) => {
        about.problem = textOf(error);
      })
      .then(() => this.update());
  }

  private _found: IVariablesSnapshot | null = null;
  private _problem = '';
  private _details: IDetails | null = null;
  private _view: IVariableView = { sort: 'name', isDescending: false, filter: '' };
  /** The cluster whose variables these are. */
  private _name = '';
  private _state = '';
  private _runs = new Set<number>();
  /** How many lists have been requested. */
  private _lists = 0;
  private _isLoading = false;
  private _isDue = false;
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

interface ITableProps {
  variables: IVariableRow[];
  view: IVariableView;
  details: IDetails | null;
  trans: TranslationBundle;
  sort: (key: SortKey) => void;
  open: (name: string) => void;
  act: (what: 'pull' | 'check' | 'remove', name: string) => void;
}

function Table(props: ITableProps): JSX.Element {
  const { variables, view, trans, sort } = props;
  const columns: [SortKey, string][] = [
    ['name', trans.__('Name')],
    ['compared', trans.__('Ranks')],
    ['type', trans.__('Type')],
    ['size', trans.__('Bytes')]
  ];
  return (
    <table className="jdist-variable-table" aria-label={trans.__('Variables')}>
      <thead>
        <tr>
          {columns.map(([key, label]) => (
            <th
              key={key}
              scope="col"
              aria-sort={view.sort !== key ? 'none' : view.isDescending ? 'descending' : 'ascending'}
            >
              <button title={trans.__('Sort by %1', label)} onClick={() => sort(key)}>
                {label}
                <span aria-hidden="true">{view.sort !== key ? '' : view.isDescending ? ' ↓' : ' ↑'}</span>
              </button>
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {variables.map(each => (
          <Row key={each.name} {...props} variable={each} />
        ))}
      </tbody>
    </table>
  );
}

function Row(props: ITableProps & { variable: IVariableRow }): JSX.Element {
  const { variable, details, trans, open, act } = props;
  const { name, variants } = variable;
  const isOpen = details?.name === name;
  return (
    <>
      {variants.map((variant, i) => (
        <tr key={variant.ranks}>
          <td>
            {i === 0 && (
              <button
                className="jdist-link"
                aria-expanded={isOpen}
                title={trans.__('Show its values by rank')}
                onClick={() => open(name)}
              >
                {name}
              </button>
            )}
          </td>
          <td>
            {i === 0 && (
              <>
                <span aria-hidden="true">{SIGNS[variable.comparison]}</span> {comparison(variable, trans)}
              </>
            )}
          </td>
          <td>
            {variants.length > 1 && <span className="jdist-ranks">[{variant.ranks}]</span>} {variant.type}{' '}
            {summary(variant, trans)}
          </td>
          <td className="jdist-mod-number">{bytes(variant)}</td>
        </tr>
      ))}
      {isOpen && details && (
        <tr>
          <td colSpan={4}>
            <Details
              variable={variable}
              details={details}
              trans={trans}
              pull={() => act('pull', name)}
              check={() => act('check', name)}
              remove={() => act('remove', name)}
            />
          </td>
        </tr>
      )}
    </>
  );
}
