/** JupyterLab's notifications of what happens to clusters, and of runs that cannot finish. */

import { Notification } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster } from '../api';
import { IRunJson, IVerdictRow } from '../generated/server';
import { IClusterChange, IClusters, IPreferences } from '../tokens';

/** Milliseconds after which a notification closes by itself. */
const AUTO_CLOSE = 8000;
/** Milliseconds in which a notebook says the same in its output, so that no notification is needed. */
const WAIT = 1000;

export interface INotices {
  clusters: IClusters;
  trans: TranslationBundle;
  /** Which kinds of notifications are shown. */
  preferences: IPreferences;
  /** Shows the cluster in the panel. */
  show: (cluster: string) => void;
  /** The runs whose output the user has in front of them. */
  seenRuns: () => IRunJson[];
}

/** Shows notifications from now on, of the kinds that are wanted at the time. */
export function showNotices(options: INotices): void {
  const { clusters, preferences } = options;
  const verdicts = new Verdicts(options);
  const presence = new Presence(options);
  clusters.changed.connect((_, change) => {
    const { notifyHangs, notifyEvents, notifyClusters } = preferences.values;
    if (notifyEvents) {
      showEvents(options, change);
    }
    verdicts.update(change.name, notifyHangs);
    presence.update(notifyClusters);
  });
}

function showEvents({ clusters, seenRuns }: INotices, { name, notices }: IClusterChange): void {
  const cluster = clusters.get(name);
  const isFailedStart = cluster?.starting === null;
  const hasFailed = isFailedStart || cluster?.state === 'failed';
  // A start that was followed in its dialog is removed from the list by that, which tells the reason as well.
  const isOver = (): boolean => isFailedStart && clusters.get(name)?.starting !== null;
  for (const notice of new Set(notices)) {
    window.setTimeout(() => {
      if (isOver() || seenRuns().some(run => belongsTo(run, name, cluster) && saysNotice(run, notice))) {
        return;
      }
      const options = { autoClose: hasFailed ? (false as const) : AUTO_CLOSE };
      const id = Notification.emit(notice, hasFailed ? 'error' : 'info', options);
      if (isFailedStart) {
        dismissWhen(id, clusters, isOver);
      }
    }, WAIT);
  }
}

/** Whether the run is one of the cluster, and not of another one that has or had its name. */
function belongsTo(run: IRunJson, name: string, cluster: ICluster | undefined): boolean {
  return run.cluster === name && (!cluster?.cluster || run.cluster_id === cluster.cluster);
}

/** Whether the output of the run has the notice. */
function saysNotice(run: IRunJson, notice: string): boolean {
  return (run.notices ?? []).some(each => each.trim() === notice.trim());
}

/** Tells of a run that cannot finish, unless its output says so in front of the user, or until it does not hold any more. */
function showVerdict({ clusters, trans, show, seenRuns }: INotices, cluster: ICluster, verdict: IVerdictRow): void {
  const { name } = cluster;
  const isOver = (): boolean => !clusters.get(name)?.verdicts?.some(each => each.run === verdict.run);
  const isSeen = seenRuns().some(
    run => belongsTo(run, name, cluster) && run.run === verdict.run && run.state !== 'done' && !!run.verdict
  );
  if (isOver() || isSeen) {
    return;
  }
  const actions = [{ label: trans.__('Show'), callback: () => show(name) }];
  const text = trans.__('Cluster %1: %2', name, verdict.headline);
  dismissWhen(Notification.warning(text, { autoClose: AUTO_CLOSE, actions }), clusters, isOver);
}

/** Dismisses a notification as soon as `isOver`: from then on there is nothing that its button could do. */
export function dismissWhen(id: string, clusters: IClusters, isOver: () => boolean): void {
  const check = (): void => {
    if (isOver()) {
      clusters.changed.disconnect(check);
      Notification.dismiss(id);
    }
  };
  clusters.changed.connect(check);
}

/** Runs that cannot finish: each is reported once, even if its verdict has been withdrawn meanwhile. */
class Verdicts {
  constructor(private readonly _options: INotices) {}

  update(name: string, isWanted: boolean): void {
    const { clusters } = this._options;
    const cluster = clusters.get(name);
    [...this._reported.keys()].filter(each => !clusters.get(each)).forEach(each => this._reported.delete(each));
    if (!cluster) {
      return;
    }
    const reported = this._reported.get(name) ?? new Set();
    this._reported.set(name, reported);
    const runOf = (verdict: IVerdictRow): string => `${cluster.cluster} ${verdict.run}`;
    const found = (cluster.verdicts ?? []).filter(each => each.is_certain && !reported.has(runOf(each)));
    for (const verdict of found) {
      reported.add(runOf(verdict));
      if (isWanted) {
        window.setTimeout(() => showVerdict(this._options, cluster, verdict), WAIT);
      }
    }
  }

  /** By the cluster's name, the runs that were reported. */
  private readonly _reported = new Map<string, Set<string>>();
}

/** Clusters that become ready and that are gone, after the first list. */
class Presence {
  constructor(private readonly _options: INotices) {}

  update(isWanted: boolean): void {
    const { clusters, trans } = this._options;
    if (!clusters.isKnown || clusters.problem) {
      return;
    }
    const before = this._ready;
    // A cluster that forms its world again, or does not answer for a while, is neither gone nor new.
    const ready = clusters.all.filter(({ name, state }) => state === 'ready' || before?.has(name));
    this._ready = new Set(ready.map(each => each.name));
    if (!before || !isWanted) {
      return;
    }
    const report = (text: string): void => void Notification.info(text, { autoClose: AUTO_CLOSE });
    [...this._ready].filter(name => !before.has(name)).forEach(name => report(trans.__('Cluster %1 is ready.', name)));
    [...before].filter(name => !clusters.get(name)).forEach(name => report(trans.__('Cluster %1 is gone.', name)));
  }

  /** The names of clusters that have been ready; undefined until the first list is known. */
  private _ready: Set<string> | undefined;
}
