import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { RequestError } from '../src/api';
import { IRunBundle, MIME } from '../src/run/model';
import { LoadRun, recovered, Recovery, STALE } from '../src/run/recovery';

const RUNNING: IRunBundle = {
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
const DONE: IRunBundle = { ...RUNNING, state: 'done', notices: undefined, lead: undefined };

function bundle(run: IRunBundle, text = ''): { [MIME]: object; 'text/plain': string } {
  return { [MIME]: JSON.parse(JSON.stringify(run)) as object, 'text/plain': text };
}

/** An output that is drawn whenever its data is set. */
class Output {
  constructor(load: LoadRun) {
    this.recovery = new Recovery(load, reason => this.lost.push(reason));
    this.model = {
      data: bundle(RUNNING),
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

  get run(): IRunBundle {
    return this.model.data[MIME] as IRunBundle;
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
    const load = vi.fn(() => Promise.resolve(answers.shift() as never));
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
    answer(bundle(DONE) as never);
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

  it('asks again if the server does not answer', async () => {
    const load = vi.fn<LoadRun>(() => Promise.reject(new RequestError(504, 'no answer')));
    const output = new Output(load);
    await vi.advanceTimersByTimeAsync(2 * STALE);
    expect(output.lost).toEqual([]);
    load.mockResolvedValueOnce(bundle(DONE) as never);
    await vi.advanceTimersByTimeAsync(STALE);
    expect(output.run.state).toBe('done');
  });

  it('that is gone asks nothing', async () => {
    const load = vi.fn();
    new Output(load).recovery.dispose();
    await vi.advanceTimersByTimeAsync(STALE);
    expect(load).not.toHaveBeenCalled();
  });
});

describe('what is brought back', () => {
  it('keeps what only the notebook knew', () => {
    const run = recovered(bundle(RUNNING) as never, bundle(DONE) as never)[MIME] as unknown as IRunBundle;
    expect([run.state, run.lead, run.notices]).toEqual(['done', 1, ['a note']]);
  });
});
