import { beforeEach, expect, test, vi } from 'vitest';

import { EndFollower } from '../src/run/endfollower';

/** A box 100 pixels high; the events of its scrolling are told late, as a browser does. */
class Box {
  clientHeight = 100;
  scrollHeight = 1000;
  offsetHeight = 1000;

  get scrollTop(): number {
    return this._top;
  }

  set scrollTop(top: number) {
    this._top = Math.max(0, Math.min(top, this.scrollHeight - this.clientHeight));
  }

  addEventListener(_: string, listener: () => void): void {
    this.tell = listener;
  }

  tell: () => void = () => undefined;
  private _top = 0;
}

let box: Box;
let follower: EndFollower;

beforeEach(() => {
  vi.stubGlobal(
    'ResizeObserver',
    class {
      observe = vi.fn();
    }
  );
  box = new Box();
  follower = new EndFollower(box as unknown as HTMLElement, box as unknown as HTMLElement);
  follower.update();
  box.tell();
});

test('it follows the end while the content grows and shrinks', () => {
  for (const height of [1500, 1200, 4000]) {
    box.scrollHeight = height;
    box.scrollTop = Math.min(box.scrollTop, height - box.clientHeight);
    follower.update();
    expect(box.scrollTop).toBe(height - 100);
  }
});

test('a reader who scrolls between two changes stays there, before the browser has told of it', () => {
  box.scrollTop = 10;
  box.scrollHeight = 2000;
  follower.update();
  expect(box.scrollTop).toBe(10);
  box.scrollTop = 500;
  follower.update();
  box.tell();
  expect(box.scrollTop).toBe(500);
  box.scrollTop = 2000;
  box.tell();
  box.scrollHeight = 3000;
  follower.update();
  expect(box.scrollTop).toBe(2900);
});

test.each([10, 900])('a box that was hidden goes on where it was: %i', top => {
  box.scrollTop = top;
  box.tell();
  box.scrollTop = 0;
  follower.update();
  expect(box.scrollTop).toBe(top);
});
