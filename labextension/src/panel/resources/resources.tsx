/** The resources of the cluster: charts over time, which are requested only while the section is open. */

import { TranslationBundle } from '@jupyterlab/translation';
import { HTMLSelect } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { LineChart } from '../../charts/linechart';
import { formatAge } from '../../format';
import { IContext, Section } from '../section';
import { ResourceChart } from './chart';
import { IFound, IWanted, ResourceFeed } from './feed';
import { Legend } from './legend';
import { chartGroups, IChartGroup, POINTS } from './lines';
import { windowText } from './texts';
import { By, ResourceView, WINDOWS } from './view';

/** So many of the sentences about what is missing are shown. */
const MOST_NOTES = 4;

export class Resources extends Section {
  constructor(
    context: IContext,
    private _view: ResourceView
  ) {
    const { clusters, preferences, trans } = context;
    super(context, 'resources', trans.__('Resources'));
    this._feed = new ResourceFeed(
      ({ cluster, seconds }) => clusters.api.resources(cluster, seconds, POINTS),
      () => this._wanted(),
      () => preferences.values.refreshSeconds * 1000
    );
    this._feed.changed.connect(this._draw, this);
    clusters.changed.connect(this._onClusters, this);
    preferences.changed.connect(this._refresh, this);
    _view.changed.connect(this._refresh, this);
    _view.changed.connect(this._draw, this);
    document.addEventListener('visibilitychange', this._refresh);
  }

  /** Focuses the first of the choices. */
  focus(): void {
    this.node.querySelector<HTMLElement>('select, button')?.focus();
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._refresh);
    this._feed.dispose();
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._refresh();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._refresh();
  }

  protected render(): JSX.Element {
    const { clusters, trans } = this.context;
    const cluster = clusters.current;
    if (!cluster) {
      const text = trans.__('The load of a cluster is charted here. There is no cluster.');
      return <p className="jdist-empty">{text}</p>;
    }
    const found = this._feed.found?.cluster === cluster.name ? this._feed.found : null;
    return (
      <div className="jdist-table">
        <Choices view={this._view} trans={trans} />
        <Problem problem={this._feed.problem} found={found} trans={trans} />
        {found ? this._charts(found) : !this._feed.problem && <p className="jdist-empty">{trans.__('Loading…')}</p>}
      </div>
    );
  }

  private _charts(found: IFound): JSX.Element {
    const { selection, trans } = this.context;
    const { seconds, runs, missing } = found.resources;
    const groups = this._groupsOf(found);
    return (
      <div className="jdist-scroller">
        {missing.length > 0 && <Notes notes={missing} trans={trans} />}
        {!groups.length && <p className="jdist-empty">{trans.__('Nothing has been measured yet.')}</p>}
        {groups.map(({ subjects, charts, note }) => (
          <React.Fragment key={subjects.by}>
            {note && <p className="jdist-resource-note">{note}</p>}
            <Legend subjects={subjects} selection={selection} trans={trans} />
            <div className="jdist-resource-charts">
              {charts.map(chart => {
                const props = { chart, seconds, runs, linked: this._linked, trans };
                return <ResourceChart key={chart.quantity} {...props} />;
              })}
            </div>
          </React.Fragment>
        ))}
      </div>
    );
  }

  /** Computed again only if there is another answer, or another choice: times are drawn again more often. */
  private _groupsOf(found: IFound): IChartGroup[] {
    const { by } = this._view.values;
    const { ranks } = this.context.selection;
    const key = `${by} ${ranks.join()}`;
    if (this._computed?.found !== found || this._computed.key !== key) {
      this._computed = { found, key, groups: chartGroups(found.resources, by, ranks, this.context.trans) };
    }
    return this._computed.groups;
  }

  /** What is to be requested; null while nobody looks, or while there is nothing to ask. */
  private _wanted(): IWanted | null {
    const cluster = this.context.clusters.current;
    const isSeen = this.isVisible && document.visibilityState === 'visible';
    return isSeen && cluster && cluster.state !== 'starting'
      ? { cluster: cluster.name, seconds: this._view.values.seconds }
      : null;
  }

  private readonly _refresh = (): void => this._feed.refresh();

  private _draw(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  /** Requests at once what is shown from now on; an event about the same cluster is no reason for that. */
  private _onClusters(): void {
    const { current } = this.context.clusters;
    const state = current ? `${current.name} ${current.state}` : '';
    if (state !== this._state) {
      this._state = state;
      this._refresh();
    }
  }

  private readonly _feed: ResourceFeed;
  private readonly _linked = new Set<LineChart>();
  private _computed?: { found: IFound; key: string; groups: IChartGroup[] };
  private _state = '';
}

/** Whether ranks or nodes are shown, and how far back. */
function Choices({ view, trans }: { view: ResourceView; trans: TranslationBundle }): JSX.Element {
  const { by, seconds } = view.values;
  return (
    <div className="jdist-choices">
      <HTMLSelect
        aria-label={trans.__('Lines of')}
        value={by}
        onChange={event => view.change({ by: event.target.value as By })}
      >
        <option value="rank">{trans.__('by rank')}</option>
        <option value="node">{trans.__('by node')}</option>
      </HTMLSelect>
      <HTMLSelect
        aria-label={trans.__('Time shown')}
        value={seconds}
        onChange={event => view.change({ seconds: Number(event.target.value) })}
      >
        {WINDOWS.map(each => (
          <option key={each} value={each}>
            {trans.__('last %1', windowText(each, trans))}
          </option>
        ))}
      </HTMLSelect>
    </div>
  );
}

/** Why there is nothing newer, and how old what is shown is. */
function Problem(props: { problem: string; found: IFound | null; trans: TranslationBundle }): JSX.Element | null {
  const { problem, found, trans } = props;
  if (!problem) {
    return null;
  }
  const age = found && trans.__('as of %1 ago', formatAge((Date.now() - found.receivedAt) / 1000));
  return (
    <p className="jdist-stale">
      <span role="alert">{problem}</span> {age && <span>({age})</span>}
    </p>
  );
}

function Notes({ notes, trans }: { notes: string[]; trans: TranslationBundle }): JSX.Element {
  const more = notes.length - MOST_NOTES;
  return (
    <ul className="jdist-resource-notes" aria-label={trans.__('What is missing')}>
      {notes.slice(0, MOST_NOTES).map(note => (
        <li key={note}>{note}</li>
      ))}
      {more > 0 && <li>{trans.__('… and %1 more', more)}</li>}
    </ul>
  );
}
