/** Notices: what happened to a cluster, and a run that cannot finish, as Lab's notifications. */

import { Notification } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';

import { IClusters } from './tokens';

/** Milliseconds that one stays. */
const STAYS = 8000;

export interface INotices {
  clusters: IClusters;
  trans: TranslationBundle;
  isWanted: () => boolean;
  /** Shows the cluster in the panel. */
  show: (cluster: string) => void;
}

/** Tells them as long as `isWanted`. */
export function tellNotices(with_: INotices): void {
  const { clusters, isWanted } = with_;
  /** The last run that could not finish, by cluster: told once, also if its verdict is taken back meanwhile. */
  const told = new Map<string, number>();
  clusters.changed.connect((_, { name, notices }) => {
    const cluster = clusters.get(name);
    const verdict = cluster?.verdicts?.find(each => each.is_certain);
    const isNew = verdict !== undefined && told.get(name) !== verdict.run;
    if (verdict) {
      told.set(name, verdict.run);
    }
    [...told.keys()].filter(each => !clusters.get(each)).forEach(each => told.delete(each));
    if (!isWanted()) {
      return;
    }
    const hasFailed = cluster?.starting === null || cluster?.state === 'failed';
    for (const notice of new Set(notices)) {
      Notification.emit(notice, hasFailed ? 'error' : 'info', { autoClose: hasFailed ? false : STAYS });
    }
    if (verdict && isNew) {
      tellVerdict(with_, name, verdict.headline);
    }
  });
}

function tellVerdict({ trans, show }: INotices, cluster: string, headline: string): void {
  const actions = [{ label: trans.__('Show'), callback: () => show(cluster) }];
  Notification.warning(trans.__('Cluster %1: %2', cluster, headline), { autoClose: STAYS, actions });
}
