/** JupyterLab's notifications of what happens to clusters, and of runs that cannot finish. */

import { Notification } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IVerdict } from '../api';
import { IRunBundle } from '../run/model';
import { IClusters } from '../tokens';

/** Milliseconds after which a notification closes by itself. */
const AUTO_CLOSE = 8000;
/** Milliseconds in which a notebook says the same in its output, so that no notification is needed. */
const WAIT = 1000;

export interface INotices {
  clusters: IClusters;
  trans: TranslationBundle;
  isEnabled: () => boolean;
  /** Shows the cluster in the panel. */
  show: (cluster: string) => void;
  /** The cluster's runs whose output the user has in front of them. */
  seenRuns: (cluster: string) => IRunBundle[];
}

/** Shows notifications from now on, as long as they are enabled. */
export function showNotices(options: INotices): void {
  const { clusters, isEnabled, seenRuns } = options;
  /** By cluster, the last run that was reported: not again, even if its verdict has been withdrawn meanwhile. */
  const reported = new Map<string, number>();
  clusters.changed.connect((_, { name, notices }) => {
    const cluster = clusters.get(name);
    const verdict = cluster?.verdicts?.find(each => each.is_certain);
    const isNew = verdict !== undefined && reported.get(name) !== verdict.run;
    if (verdict) {
      reported.set(name, verdict.run);
    }
    [...reported.keys()].filter(each => !clusters.get(each)).forEach(each => reported.delete(each));
    if (!isEnabled()) {
      return;
    }
    const hasFailed = cluster?.starting === null || cluster?.state === 'failed';
    for (const notice of new Set(notices)) {
      window.setTimeout(() => {
        if (!seenRuns(name).some(run => saysNotice(run, notice))) {
          Notification.emit(notice, hasFailed ? 'error' : 'info', { autoClose: hasFailed ? false : AUTO_CLOSE });
        }
      }, WAIT);
    }
    if (cluster && verdict && isNew) {
      window.setTimeout(() => showVerdict(options, cluster, verdict), WAIT);
    }
  });
}

/** Whether the output of the run has the notice. */
export function saysNotice(run: IRunBundle, notice: string): boolean {
  return (run.notices ?? []).some(each => each.trim() === notice.trim());
}

/** Tells of a run that cannot finish, unless its output says so in front of the user, or until it does not hold any more. */
function showVerdict({ clusters, trans, show, seenRuns }: INotices, cluster: ICluster, verdict: IVerdict): void {
  const { name } = cluster;
  const isOver = (): boolean => !clusters.get(name)?.verdicts?.some(each => each.run === verdict.run);
  if (isOver() || seenRuns(name).some(({ run }) => run === verdict.run)) {
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
