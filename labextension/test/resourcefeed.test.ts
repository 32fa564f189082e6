import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { IWanted, ResourceFeed } from '../src/panel/resources/feed';
import { IResourcesSnapshot } from '../src/generated/server';
import { resources } from './samples';

/** Requests that are answered by the test. */
class Server {
  readonly asked: IWanted[] = [];
  readonly request = (wanted: IWanted): Promise<IResourcesSnapshot> => {
    this.asked.push(wanted);
    return new Promise((resolve, reject) => {
      this._answers.push({ resolve, reject });
    });
  };

  async answer(found = resources()): Promise<void> {
    this._answers.shift()!.resolve(found);
    await vi.advanceTimersByTimeAsync(0);
  }

  async fail(reason: string): Promise<void> {
    this._answers.shift()!.reject(new Error(reason));
    await vi.advanceTimersByTimeAsync(0);
  }

  private _answers: { resolve: (found: IResourcesSnapshot) => void; reject: (error: Error) => void }[] = [];
}

describe('the feed of resources', () => {
  let server: Server;
  let feed: ResourceFeed;
  let wanted: IWanted | null;
  let changes: number;

  beforeEach(() => {
    vi.useFakeTimers();
    server = new Server();
    wanted = { cluster: 'a', seconds: 300 };
    feed = new ResourceFeed(
      server.request,
      () => wanted,
      () => 1000
    );
    changes = 0;
    feed.changed.connect(() => (changes += 1));
  });

  afterEach(() => {
    feed.dispose();
    vi.useRealTimers();
  });

  it('asks again an interval after it has asked', async () => {
    feed.refresh();
    await vi.advanceTimersByTimeAsync(400);
    await server.answer();
    expect(feed.found).toMatchObject({ cluster: 'a', seconds: 300, receivedAt: Date.now() });
    expect(changes).toBe(1);
    await vi.advanceTimersByTimeAsync(599);
    expect(server.asked).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(1);
    expect(server.asked).toHaveLength(2);
  });

  it('asks one thing at a time', async () => {
    feed.refresh();
    feed.refresh();
    await vi.advanceTimersByTimeAsync(30_000);
    expect(server.asked).toHaveLength(1);
    await server.answer();
    await vi.advanceTimersByTimeAsync(0);
    expect(server.asked).toHaveLength(2); // the interval is long over
  });

  it('asks nothing while nobody looks', async () => {
    wanted = null;
    feed.refresh();
    await vi.advanceTimersByTimeAsync(5000);
    expect(server.asked).toEqual([]);
    wanted = { cluster: 'a', seconds: 60 };
    feed.refresh();
    await server.answer();
    wanted = null;
    await vi.advanceTimersByTimeAsync(5000);
    expect(server.asked).toHaveLength(1);
    expect(vi.getTimerCount()).toBe(0);
  });

  it('asks at once for another time, after the answer that is under way', async () => {
    feed.refresh();
    wanted = { cluster: 'a', seconds: 60 };
    feed.refresh();
    expect(server.asked).toHaveLength(1);
    await server.answer();
    expect(server.asked[1]).toEqual({ cluster: 'a', seconds: 60 });
    expect(feed.found?.seconds).toBe(300); // what there is so far
    await server.answer();
    expect(feed.found?.seconds).toBe(60);
  });

  it('forgets another cluster, and what is answered for it later', async () => {
    feed.refresh();
    await server.answer();
    feed.refresh();
    wanted = { cluster: 'b', seconds: 300 };
    feed.refresh();
    expect(feed.found).toBeNull();
    await server.answer();
    expect(feed.found).toBeNull();
    await server.answer();
    expect(feed.found?.cluster).toBe('b');
  });

  it('keeps what it has when a request fails, asks less and less often, and recovers', async () => {
    feed.refresh();
    await server.answer();
    const { found } = feed;
    await vi.advanceTimersByTimeAsync(1000);
    await server.fail('node 1 is gone');
    expect([feed.problem, feed.found]).toEqual(['node 1 is gone', found]);
    expect(changes).toBe(2);
    for (const wait of [2000, 4000, 8000, 10_000, 10_000]) {
      const count = server.asked.length;
      await vi.advanceTimersByTimeAsync(wait - 1);
      expect(server.asked).toHaveLength(count);
      await vi.advanceTimersByTimeAsync(1);
      expect(server.asked).toHaveLength(count + 1);
      await server.fail('still');
    }
    feed.refresh(); // as when the section is opened
    await server.answer();
    expect([feed.problem, feed.found?.receivedAt]).toEqual(['', Date.now()]);
    await vi.advanceTimersByTimeAsync(1000);
    expect(server.asked).toHaveLength(9);
  });

  it('ends', async () => {
    feed.refresh();
    feed.dispose();
    await server.answer();
    await vi.advanceTimersByTimeAsync(5000);
    expect(server.asked).toHaveLength(1);
    expect([feed.found, changes, vi.getTimerCount()]).toEqual([null, 0, 0]);
  });
});
