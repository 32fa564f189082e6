"""Tallies: a cell's collectives summed up by group, so that ranks which did not call the same can be told apart.

Backends let much pass that is wrong: gloo adds on one rank what it takes the maximum of on another, and reads integers
as floats. Nobody hangs then, and the numbers are wrong. The sums are made when a cell ends, on its thread; a loop calls
the same again and again, so a call that is like the one before it costs a comparison.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from jdist.core.call_signature import call_signature
from jdist.core.observation import CallDigest
from jdist.worker.observe.call_log import TRANSFERS, Note, Notes, Record
from jdist.worker.observe.call_log_codegen import THREAD
from jdist.worker.observe.call_merge import Merging

_TRANSFERS = frozenset(TRANSFERS)


class Tallies:
    """Sums up one rank's cells. ``merging`` knows the groups as they are now, ``labels`` their names by torch's."""

    def __init__(self, notes: Notes, merging: Callable[[], Merging], labels: Callable[[], dict[str, str]]):
        self._notes = notes
        self._merging = merging
        self._labels = labels

    def of(self, began: float) -> tuple[CallDigest, ...]:
        """Of the calls since ``began``, seconds of the wall clock, by group. A group in which several threads called is
        left out: their order is nobody's intention.
        """
        records = self._notes.since(int(began * 1e9))
        if not records:
            return ()
        merging = self._merging()
        labels = {**self._labels(), merging.world: "world"}
        return tuple(
            CallDigest(name, labels.get(name, ""), len(merging.ranks(name)), len(calls.order), calls.digest())
            for name, calls in _by_group(records, merging).items()
            if len(calls.threads) == 1
        )


class _Calls:
    """What was called in one group: texts, numbered as they came up, and the numbers in the order of the calls."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.texts: dict[str, int] = {}
        self.order = array("I")

    def number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def digest(self) -> bytes:
        return hashlib.blake2b("\n".join(self.texts).encode() + self.order.tobytes(), digest_size=8).digest()


_UNKNOWN = (_Calls(), 0)
_UNSEEN: list[Any] = [None]


def _by_group(records: Sequence[Record], merging: Merging) -> dict[str, _Calls]:
    """The collectives that returned. A call that is like the one before it takes the short way at the loop's top."""
    groups: dict[str, _Calls] = {}
    over: dict[int, int] = {}
    known: dict[tuple[Any, ...], tuple[_Calls, int] | None] = {}
    last_op, last_thread, last_over, last = "", 0, 0, _UNSEEN
    found: tuple[_Calls, int] | None = None
    for record in records:
        op, _, _, thread, began, ended, left, *what = record
        if what == last and op == last_op and thread == last_thread and began >= last_over and left is not True:
            last_over = ended
            if found is not None:
                found[0].order.append(found[1])
            continue
        over[last_thread] = last_over
        last_op, last_thread, last_over, last = op, thread, over.get(thread, 0), _UNSEEN
        if began < last_over:
            continue  # within another call
        last_over = ended
        if op in _TRANSFERS or left is True:
            continue
        last, key = what, (thread, op, *what)
        try:
            found = known.get(key, _UNKNOWN)
        except TypeError:  # there is a list of tensors in it
            key = (repr(key),)
            found = known.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = known[key] = _numbered(record, merging, groups)
        if found is not None:
            found[0].order.append(found[1])
    return groups


def _numbered(record: Record, merging: Merging, groups: dict[str, _Calls]) -> tuple[_Calls, int] | None:
    """None for a call that did nothing, since this rank is not in the group."""
    call = merging.of_note(Note(record))
    if call is None:
        return None
    calls = groups.setdefault(call.group, _Calls())
    calls.threads.add(record[THREAD])
    return calls, calls.number(call_signature(call))
