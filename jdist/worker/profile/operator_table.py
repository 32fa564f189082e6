"""The operator table: the operators of a profile in columns; if there are too many, the shortest are dropped."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jdist.core.profile import COLLECTIVE, KERNEL, MAIN, OPERATOR, SCOPE
from jdist.worker.compat.profiler import RawEvent

_COMMUNICATION = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:")
_SLACK = 2  # While recording, this many times the final number of operators is kept.
_LONGEST = 3 * 10**15  # Nanoseconds; an event without an end is cut at the end of its window.
_DTYPE = np.dtype([("start", "<i8"), ("duration", "<i8"), ("name", "<u4"), ("thread", "<u2"), ("kind", "u1")])
Columns = Any  # An array of _DTYPE, sorted by start.


class OperatorTable:
    """Operators of one rank, of which at most ``most`` remain at the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[int, int], int] = {}  # By thread and stream.
        self._parts: list[Columns] = []
        self._count = 0
        self.left_out = 0
        self.longest_left_out = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    @property
    def threads(self) -> tuple[str, ...]:
        """The name of each thread; the main thread is always included."""
        others = [f"stream {s}" if s >= 0 else f"thread {t}" for t, s in list(self._threads)[1:]]
        return ("main thread", *others)

    def add(self, events: Sequence[RawEvent], main: int, window: tuple[int, int]) -> None:
        """Add the recording of a window, in which ``main`` is the main thread's number."""
        self._threads.setdefault((main, -1), MAIN)
        names, threads = self._names, self._threads
        begin, end = window
        found = np.empty(len(events), _DTYPE)
        for i, (name, start, duration, thread, is_scope, is_async, stream) in enumerate(events):
            lane = (0 if stream >= 0 else thread, stream)
            kind = KERNEL if stream >= 0 else SCOPE if is_scope else OPERATOR
            if kind == SCOPE and (is_async or name.startswith(_COMMUNICATION)):
                kind = COLLECTIVE
            longest = max(0, end - start)
            found[i] = (
                start,
                min(duration, longest) if 0 <= duration < _LONGEST else longest,
                names.setdefault(name, len(names)),
                min(threads.setdefault(lane, len(threads)), 2**16 - 1),
                kind,
            )
        found = found[(found["start"] >= begin) & (found["start"] <= end)]
        self._parts.append(found)
        self._count += len(found)
        if self._count > _SLACK * self._most:
            self._leave_out()

    def columns(self) -> Columns:
        """All operators that are kept."""
        if self._count > self._most:
            self._leave_out()
        return self._joined()

    def _joined(self) -> Columns:
        joined = np.concatenate(self._parts) if self._parts else np.empty(0, _DTYPE)
        joined = joined[np.lexsort((-joined["duration"], joined["start"]))]
        self._parts = [joined]
        return joined

    def _leave_out(self) -> None:
        """Drop the shortest. Collectives are dropped last, since they show who waited for whom."""
        everything = self._joined()
        weight = everything["duration"].copy()
        matters = everything["kind"] == COLLECTIVE
        if matters.sum() <= self._most // 2:
            weight[matters] = _LONGEST
        order = np.argsort(weight, kind="stable")
        gone = np.zeros(len(everything), bool)
        gone[order[: max(0, len(everything) - self._most)]] = True
        kept = everything[~gone]
        self.left_out += int(gone.sum())
        if gone.any():
            self.longest_left_out = max(self.longest_left_out, int(everything["duration"][gone].max()))
        self._parts, self._count = [kept], len(kept)
