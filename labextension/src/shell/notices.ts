/** JupyterLab's notifications of what happens to clusters, and of runs that cannot finish. */

import { Notification } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { IClusters } from '../tokens';

/** Milliseconds after which a notification closes by itself. */
const AUTO_CLOSE = 8000;

export interface INotices {
  clusters: IClusters;
  trans: TranslationBundle;
  isEnabled: () => boolean;
  /** Shows the cluster in the panel. */
  show: (cluster: string) => void;
}

/** Shows notifications from now on, as long as they are enabled. */
export function showNotices(options: INotices): void {
  const { clusters, isEnabled } = options;
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
      Notification.emit(notice, hasFailed ? 'error' : 'info', { autoClose: hasFailed ? false : AUTO_CLOSE });
    }
    if (verdict && isNew) {
      showVerdict(options, name, verdict.headline);
    }
  });
}

function showVerdict({ trans, show }: INotices, cluster: string, headline: string): void {
  const actions = [{ label: trans.__('Show'), callback: () => show(cluster) }];
  Notification.warning(trans.__('Cluster %1: %2', cluster, headline), { autoClose: AUTO_CLOSE, actions });
}
