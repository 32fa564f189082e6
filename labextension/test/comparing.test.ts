import { expect, test } from 'vitest';

import { Comparison } from '../src/panel/variables/comparing';

test('a list that was requested before a comparison says nothing about it', () => {
  const comparison = new Comparison(3);
  comparison.listArrived(3);
  expect(comparison.isOld).toBe(false);
  expect(comparison.isPending).toBe(true);
});

test('a comparison stays, and is marked, when code may have been run since it began', () => {
  const comparison = new Comparison(3);
  comparison.text = 'weights is equal on all ranks';
  comparison.listArrived(4);
  comparison.listArrived(3);
  expect(comparison).toMatchObject({ text: 'weights is equal on all ranks', isOld: true, isPending: false });
});
