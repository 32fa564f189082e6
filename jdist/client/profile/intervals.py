"""Intervals: sets of moments as two sorted columns, and how a period is divided between several sets. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Times = Any  # An array of float64, seconds.


class Intervals:
    """Moments in any of some intervals, which may overlap."""

    def __init__(self, starts: Times = (), ends: Times = ()) -> None:
        """The intervals between ``starts`` and ``ends``, pair by pair."""
        starts, ends = np.asarray(starts, float), np.asarray(ends, float)
        order = np.argsort(starts, kind="stable")
        starts, upto = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
        first = np.ones(len(starts), bool)
        first[1:] = starts[1:] > upto[:-1]
        last = np.append(first[1:], True) if len(first) else first
        self.starts, self.ends = starts[first], upto[last]
        self._before = np.concatenate(([0.0], np.cumsum(np.maximum(0, self.ends - self.starts))))

    @property
    def seconds(self) -> float:
        return float(self._before[-1])

    def upto(self, moments: Times) -> Any:
        """Seconds within the set before each of ``moments``."""
        moments = np.asarray(moments, float)
        if not len(self.starts):
            return np.zeros(moments.shape)
        i = np.searchsorted(self.starts, moments, side="right")
        inside = np.minimum(moments, self.ends[i - 1]) - self.starts[i - 1]
        return np.where(i > 0, self._before[i - 1] + np.maximum(0, inside), 0.0)

    def within(self, start: float, end: float) -> float:
        """Seconds of the set between two moments."""
        before = self.upto([start, max(start, end)])
        return float(before[1] - before[0])

    def holds(self, moments: Times) -> Any:
        """Whether each of ``moments`` is in the set."""
        if not len(self.starts):
            return np.zeros(np.shape(moments), bool)
        i = np.searchsorted(self.starts, moments, side="right") - 1
        return (i >= 0) & (np.asarray(moments) < self.ends[i])


def divide(whole: Intervals, sets: Sequence[Intervals]) -> list[float]:
    """Seconds of ``whole`` in each of ``sets``, each moment counted for the first that holds it; last, in none."""
    edges = np.unique(np.concatenate([e for s in (whole, *sets) for e in (s.starts, s.ends)]))
    if len(edges) < 2:
        return [0.0] * (len(sets) + 1)
    middles, lengths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    left = whole.holds(middles)
    found = []
    for each in sets:
        mine = left & each.holds(middles)
        found.append(float(lengths[mine].sum()))
        left &= ~mine
    return [*found, float(lengths[left].sum())]
