/** Which run of a cluster is meant, and what is known of one whose cell is not found. */

import { TranslationBundle } from '@jupyterlab/translation';

import { ICluster, IRunId } from './api';
import { formatWholeSeconds } from './format';
import { activity } from './states';

/** The run that is named, or that of the ranks; without ranks that of the first verdict, or the first one. */
export function meantRun(named: unknown, ranks: number[], cluster: ICluster | undefined): IRunId | undefined {
  const ofRanks = (cluster?.ranks ?? []).find(row => ranks.includes(row.rank) && row.run)?.run;
  const first = ranks.length ? undefined : (cluster?.verdicts?.[0]?.run ?? cluster?.runs?.[0]?.number);
  const run = typeof named === 'number' ? named : (ofRanks ?? first);
  return cluster && run ? { run, cluster: cluster.name, cluster_id: cluster.cluster } : undefined;
}

/** What is known of a run whose cell is in no notebook of this page. */
export function describeUnknown(
  { run, cluster: name }: IRunId,
  cluster: ICluster | undefined,
  trans: TranslationBundle
): string {
  const now = Date.now();
  const known = cluster?.runs?.find(each => each.number === run);
  const parts = [trans.__('Run %1 of %2 belongs to no notebook that is open in this page.', run, name)];
  if (known) {
    const seconds = known.seconds + Math.max(0, now - (cluster?.receivedAt ?? now)) / 1000;
    const since = formatWholeSeconds(seconds);
    parts.push(
      known.state === 'queued'
        ? trans.__('It waits for ranks %1, for %2 so far.', known.ranks, since)
        : trans.__('It began on ranks %1 %2 ago; %3 of %4 are done.', known.ranks, since, known.done, known.count)
    );
    const row = cluster?.ranks?.find(each => each.run === run && each.doing);
    if (row) {
      parts.push(trans.__('Rank %1: %2.', row.rank, activity({ ...row, run: 0 }, now, trans)));
    }
  }
  parts.push(trans.__('Open the notebook that began it. In any notebook, this shows its output:'));
  return parts.join(' ');
}
