import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { RequestError } from '../src/api';
import { METRICS_MIME } from '../src/metrics/data';
import { IRunJson } from '../src/generated/server';
import { MIME } from '../src/run/model';
import { AGAIN, chartIndex, LoadRun, LONGEST, recovered, Recovery, reportedState, STALE } from '../src/run/recovery';
import { cluster } from './samples';

const RUNNING: IRunJson = {
  version: 1,
  run: 7,
  cluster: 'c1',
  cluster_id: 'a1',
  state: 'running',
  seconds: 3,
  ranks: [{ ranks: '0-1', state: 'running' }],
  notices: ['a note'],
  lead: 1
};
const DONE: IRunJson = { ...RUNNING, state: 'done', notices: undefined, lead: undefined };

const PAUSED: IRunJson = { ...RUNNING, paused: [{ ranks: '0', reason: 'asked', function: '<cell>', line: 2 }] };

function bundle(run: IRunJson, text = ''): { [MIME]: object; 'text/plain': string } {
  return { [MIME]: JSON.parse(JSON.stringify(run)) as object, 'text/plain': text };
}

/** An output that is drawn whenever its data is set. */
class Output {
  constructor(load: LoadRun, run = RUNNING, text = '') {
    this.recovery = new Recovery(load, reason => this.lost.push(reason));
    this.model = {
      data: bundle(run, text),
      setData: ({ data }: { data: object }) => {
        this.model.data = data as never;
        this.draw();
      }
    };
    this.draw();
  }

  draw(): void {
    this.recovery.drawn(this.model as unknown as IRenderMime.IMimeModel, this.run);
  }

  get run(): IRunJson {
    return this.model.data[MIME] as IRunJson;
  }

  readonly lost: string[] = [];
  readonly recovery: Recovery;
  readonly model: { data: ReturnType<typeof bundle>; setData: (options: { data: object }) => void };
}

describe('an output', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('that its kernel keeps up to date is left alone', async () => {
    const load = vi.fn();
    const output = new Output(load);
    for (let i = 0; i < 10; i++) {
      await vi.advanceTimersByTimeAsync(STALE - 1);
      output.draw();
    }
    expect(load).not.toHaveBeenCalled();
  });

  it('that is stale is brought up to date until its run is done', async () => {
    const answers = [bundle({ ...RUNNING, seconds: 9 }, 'more'), bundle(DONE, 'all')];
    const load = vi.fn(() => Promise.resolve({ data: answers.shift() as never }));
    const output = new Output(load);
    await vi.advanceTimersByTimeAsync(STALE);
    expect(output.run.seconds).toBe(9);
    await vi.advanceTimersByTimeAsync(STALE);
    expect(output.run.state).toBe('done');
    expect(output.model.data['text/plain']).toBe('all');
    await vi.advanceTimersByTimeAsync(100 * STALE);
    expect(load).toHaveBeenCalledTimes(2);
  });

  it('is left alone if its kernel answers before the server does', async () => {
    let answer: (data: never) => void = () => undefined;
    const output = new Output(() => new Promise(resolve => (answer = resolve)));
    await vi.advanceTimersByTimeAsync(STALE);
    output.draw();
    answer({ data: bundle(DONE) } as never);
    await vi.advanceTimersByTimeAsync(1);
    expect(output.run.state).toBe('running');
  });

  it('says that its cluster is gone, and asks no more', async () => {
    const load = vi.fn(() => Promise.reject(new RequestError(410, 'the cluster is gone')));
    const output = new Output(load);
    await vi.advanceTimersByTimeAsync(100 * STALE);
    expect(output.lost).toEqual(['the cluster is gone']);
    expect(load).toHaveBeenCalledTimes(1);
  });

  it('of an earlier version, without the id of its cluster, is lost unless its run is done', async () => {
    const load = vi.fn();
    const old = new Output(load, { ...RUNNING, cluster_id: undefined });
    expect(old.lost).toEqual(['']);
    const done = new Output(load, { ...DONE, cluster_id: undefined });
    expect(done.lost).toEqual([]);
    await vi.advanceTimersByTimeAsync(100 * STALE);
    expect(load).not.toHaveBeenCalled();
  });

  it('asks again if the server does not answer', async () => {
    const load = vi.fn<LoadRun>(() => Promise.reject(new RequestError(504, 'no answer')));
    const output = new Output(load);
    await vi.advanceTimersByTimeAsync(2 * STALE);
    expect(output.lost).toEqual([]);
    load.mockResolvedValueOnce({ data: bundle(DONE) });
    await vi.advanceTimersByTimeAsync(STALE);
    expect(output.run.state).toBe('done');
  });

  it('asks less and less often while the server does not answer', async () => {
    const load = vi.fn<LoadRun>(() => Promise.reject(new RequestError(502, 'bad gateway')));
    new Output(load);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(load.mock.calls.length).toBeLessThan(600_000 / LONGEST + 6);
  });

  it('of a paused run is asked for less and less often, and drawn only if it has changed', async () => {
    const later = { ...PAUSED, seconds: 99 };
    const load = vi.fn<LoadRun>(() => Promise.resolve({ data: bundle(later, 'after 99 s') }));
    const output = new Output(load, PAUSED);
    const setData = vi.spyOn(output.model, 'setData');
    await vi.advanceTimersByTimeAsync(600_000);
    expect(load.mock.calls.length).toBeLessThan(600_000 / LONGEST + 6);
    expect(setData).not.toHaveBeenCalled();
    // As soon as the server's events say that it goes on, it is asked for again.
    load.mockClear();
    load.mockResolvedValueOnce({ data: bundle(DONE) });
    output.recovery.hasChanged();
    await vi.advanceTimersByTimeAsync(AGAIN);
    expect(output.run.state).toBe('done');
  });

  it('that is large is drawn by its kernel less often, which is not taken for stale', async () => {
    const load = vi.fn<LoadRun>(() => Promise.resolve({ data: bundle(RUNNING) }));
    const output = new Output(load, RUNNING, 'x'.repeat(500_000));
    output.draw();
    for (let i = 0; i < 10; i++) {
      await vi.advanceTimersByTimeAsync(25_000 + 1000);
      output.draw();
    }
    expect(load).not.toHaveBeenCalled();
  });

  it('that is gone asks nothing', async () => {
    const load = vi.fn();
    new Output(load).recovery.dispose();
    await vi.advanceTimersByTimeAsync(STALE);
    expect(load).not.toHaveBeenCalled();
  });
});

describe('the chart of a run', () => {
  const metrics = (run: number): object => ({ [METRICS_MIME]: { version: 1, run } });
  const earlier = bundle({ ...RUNNING, run: 6 });
  const outputs = [{ 'text/plain': 'x' }, earlier, metrics(6), bundle(RUNNING), metrics(7)];

  it('is found behind its output', () => {
    expect(chartIndex(outputs as never, RUNNING)).toBe(4);
    expect(chartIndex(outputs as never, { ...RUNNING, run: 6 })).toBe(2);
  });

  it('is added if there is none, unless the output is elsewhere', () => {
    expect(chartIndex(outputs.slice(0, 4) as never, RUNNING)).toBe(4);
    expect(chartIndex(outputs as never, { ...RUNNING, cluster_id: 'other' })).toBe(-1);
  });

  it('is brought back with the output', async () => {
    const found: unknown[] = [];
    const model = { data: bundle(RUNNING), setData: () => undefined } as unknown as IRenderMime.IMimeModel;
    const answer = { data: bundle(DONE), metrics: { 'text/plain': 'loss' } };
    const load: LoadRun = () => Promise.resolve(answer);
    vi.useFakeTimers();
    const recovery = new Recovery(
      load,
      () => undefined,
      (_, metrics) => found.push(metrics)
    );
    recovery.drawn(model, RUNNING);
    await vi.advanceTimersByTimeAsync(STALE);
    vi.useRealTimers();
    recovery.dispose();
    expect(found).toEqual([answer.metrics]);
  });
});

describe('what is reported of a run', () => {
  const run = { number: 7, state: 'running', ranks: '0-1', count: 2, done: 0, seconds: 3 };
  const known = cluster({ runs: [run] });

  it('changes when it goes on, and not with the time', () => {
    const before = reportedState(known, 7);
    expect(reportedState({ ...known, runs: [{ ...run, seconds: 9 }] }, 7)).toBe(before);
    expect(reportedState({ ...known, runs: [{ ...run, done: 1 }] }, 7)).not.toBe(before);
    expect(reportedState({ ...known, runs: [] }, 7)).not.toBe(before);
  });
});

describe('what is brought back', () => {
  it('keeps what only the notebook knew', () => {
    const run = recovered(bundle(RUNNING) as never, bundle(DONE) as never)[MIME] as unknown as IRunJson;
    expect([run.state, run.lead, run.notices]).toEqual(['done', 1, ['a note']]);
  });

  it('says that the beginning is missing, and nothing twice', () => {
    const cut = { ...DONE, notices: ['a note', 'the beginning is not kept'] };
    const run = recovered(bundle(RUNNING) as never, bundle(cut) as never)[MIME] as unknown as IRunJson;
    expect(run.notices).toEqual(['a note', 'the beginning is not kept']);
  });
});
