/** Where ranks are paused: the lines of cells and of files, and the lines of their stacks. */

import { ICluster, IRank } from './api';
import { IBranch } from './generated/server';
import { formatRanks } from './format';

/** Which ranks are paused at which line, counted from 1. */
export type PausedLines = ReadonlyMap<number, number[]>;

/** The maximum number of frames that are drawn. */
const MOST_FRAMES = 400;

/** The lines at which ranks are paused, by cluster and run, counted as its editor counts them. */
export function linesByRun(clusters: ICluster[]): Map<string, PausedLines> {
  const found = new Map<string, Map<number, number[]>>();
  for (const cluster of clusters) {
    for (const { rank, paused } of cluster.ranks ?? []) {
      if (paused?.of_run) {
        const key = keyOf(cluster.cluster || cluster.name, paused.of_run);
        const lines = found.get(key) ?? new Map<number, number[]>();
        lines.set(paused.line, [...(lines.get(paused.line) ?? []), rank]);
        found.set(key, lines);
      }
    }
  }
  return found;
}

export function keyOf(cluster: string, run: number): string {
  return `${run} ${cluster}`;
}

/** The lines of a file at which ranks are paused. */
export function linesOf(cluster: ICluster | undefined, file: string): PausedLines {
  const lines = new Map<number, number[]>();
  for (const { rank, paused } of cluster?.ranks ?? []) {
    if (paused && !paused.of_run && paused.file === file) {
      lines.set(paused.line, [...(lines.get(paused.line) ?? []), rank]);
    }
  }
  return lines;
}

/** Whether a rank of the cluster is paused. */
export function isPaused(cluster: ICluster | undefined): boolean {
  return !!cluster?.ranks?.some(row => row.paused);
}

/** A key that changes whenever a rank pauses or resumes; empty if none is paused. */
export function pausedState(cluster: ICluster | undefined): string {
  const paused = (cluster?.ranks ?? []).flatMap(row => (row.paused ? [`${row.rank} ${row.paused.text}`] : []));
  return paused.length ? `${cluster?.name} ${paused.join('\n')}` : '';
}

/** A row of the tree. */
export interface IStackRow {
  key: string;
  branch: IBranch;
  depth: number;
  /** Index of the frame among those that the tree shows for its ranks; 0 is the outermost. */
  index: number;
  /** Whether the ranks are shown, because they differ from those of the row above. */
  isNamed: boolean;
}

/** The rows of the tree. A frame is indented only if its ranks differ from those of the frame above. */
export function rowsOf(stacks: IBranch[], depth = 0, above = '', path = '', index = 0): IStackRow[] {
  const rows = stacks.flatMap((branch, place) => {
    const ranks = formatRanks(branch.ranks);
    const key = `${path}/${place}`;
    const isNamed = ranks !== above;
    const own = isNamed && above ? depth + 1 : depth;
    return [{ key, branch, depth: own, index, isNamed }, ...rowsOf(branch.children, own, ranks, key, index + 1)];
  });
  return rows.slice(0, MOST_FRAMES);
}

/** Whether the rank is in a run, and neither paused nor pausing. */
export function canPause(row: IRank): boolean {
  return row.run > 0 && !row.paused && !row.is_pausing;
}

/** Whether the rank is paused, or has been asked to pause. */
export function canContinue(row: IRank): boolean {
  return row.paused !== undefined || row.is_pausing === true;
}
