import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

const shown = new Map<string, string>();

vi.mock('@jupyterlab/apputils', () => {
  const emit = (text: string): string => {
    shown.set(text, text);
    return text;
  };
  return { Notification: { emit, warning: emit, info: emit, dismiss: (id: string) => shown.delete(id) } };
});

import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { ICluster } from '../src/api';
import { IRunJson, IVerdictRow } from '../src/generated/server';
import { showNotices } from '../src/shell/notices';
import { IClusterChange, IClusters, IPreferences } from '../src/tokens';
import { cluster } from './samples';

const SOON = 1000;
const HANG: IVerdictRow = {
  run: 7,
  kind: 'missing',
  is_certain: true,
  headline: 'run 7 cannot finish',
  details: [],
  responsible: [],
  waiting: [],
  remedies: []
};
const OTHER: IVerdictRow = { ...HANG, run: 8, headline: 'run 8 cannot finish' };
const C1 = cluster({ cluster: 'second' });
const OUTPUT: IRunJson = {
  version: 1,
  run: 7,
  cluster: 'c1',
  cluster_id: 'second',
  state: 'running',
  seconds: 1,
  ranks: [],
  verdict: { headline: HANG.headline, is_certain: true }
};

/** A page that shows notices, with these outputs in front of the user. */
class Page {
  constructor(seen: IRunJson[] = []) {
    const { all, changed } = this;
    const clusters = { changed, get: (name: string) => all.get(name), isKnown: false, problem: null };
    const preferences = { values: { notifyHangs: true, notifyEvents: true, notifyClusters: false } };
    showNotices({
      clusters: clusters as unknown as IClusters,
      trans: nullTranslator.load('jdist'),
      preferences: preferences as IPreferences,
      show: () => undefined,
      seenRuns: () => seen
    });
  }

  async report(name: string, cluster: ICluster | undefined, notices: string[] = []): Promise<string[]> {
    if (cluster) {
      this.all.set(name, cluster);
    } else {
      this.all.delete(name);
    }
    this.changed.emit({ name, notices });
    await vi.advanceTimersByTimeAsync(SOON);
    return [...shown.keys()];
  }

  readonly all = new Map<string, ICluster>();
  readonly changed = new Signal<object, IClusterChange>({});
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('window', globalThis);
  shown.clear();
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe('a run that cannot finish', () => {
  it('is told unless its output in front of the user says so', async () => {
    expect(await new Page([OUTPUT]).report('c1', { ...C1, verdicts: [HANG] })).toEqual([]);
    expect(await new Page().report('c1', { ...C1, verdicts: [HANG] })).toEqual(['Cluster c1: run 7 cannot finish']);
  });

  it.each([
    ['is of another cluster of that name', { ...OUTPUT, cluster_id: 'first' }],
    ['was written by an earlier version', { ...OUTPUT, cluster_id: undefined }],
    ['is of a run that is over', { ...OUTPUT, state: 'done' as const }],
    ['does not say so', { ...OUTPUT, verdict: undefined }]
  ])('is told if the output %s', async (_, output) => {
    expect(await new Page([output]).report('c1', { ...C1, verdicts: [HANG] })).toHaveLength(1);
  });

  it('is told beside another one, and once', async () => {
    const page = new Page();
    await page.report('c1', { ...C1, verdicts: [HANG] });
    expect(await page.report('c1', { ...C1, verdicts: [HANG, OTHER] })).toEqual([
      'Cluster c1: run 7 cannot finish',
      'Cluster c1: run 8 cannot finish'
    ]);
    shown.clear();
    await page.report('c1', { ...C1, verdicts: [OTHER] });
    expect(await page.report('c1', { ...C1, verdicts: [HANG, OTHER] })).toEqual([]);
  });
});

describe('a start that failed', () => {
  const failed = cluster({ name: 'c2', state: 'failed', reason: 'no nodes', starting: null });
  const notice = 'cluster c2 could not be started: no nodes';

  it('is told until it is removed from the list', async () => {
    const page = new Page();
    expect(await page.report('c2', failed, [notice])).toEqual([notice]);
    expect(await page.report('c2', undefined)).toEqual([]);
  });

  it('is not told a second time if its dialog has told it, and removed it', async () => {
    const page = new Page();
    const told = page.report('c2', failed, [notice]);
    void page.report('c2', undefined);
    expect(await told).toEqual([]);
  });
});

describe('what has happened', () => {
  it('is told, and stays when the cluster is gone', async () => {
    const page = new Page();
    await page.report('c1', C1, ['rank 1 is lost']);
    expect(await page.report('c1', undefined)).toEqual(['rank 1 is lost']);
  });
});
