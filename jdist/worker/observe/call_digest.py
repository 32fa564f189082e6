"""Digests of a cell's collectives, one per group, by which ranks that did not call the same can be told apart.

Backends accept much that is wrong: gloo adds on one rank what it takes the maximum of on another, and reads integers as
floats. No rank hangs then, and the numbers are wrong. The digests are made when a cell ends, on its thread; a loop
calls the same again and again, so an equal call costs one look-up.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from jdist.core.observation import CallDigest, call_signature
from jdist.worker.observe.call_log import TRANSFERS, CallLog, LoggedCall
from jdist.worker.observe.call_merge import CallMerger

_TRANSFERS = frozenset(TRANSFERS)


def digest_calls(
    log: CallLog, began: float, merger: Callable[[], CallMerger], labels: Callable[[], dict[str, str]]
) -> tuple[CallDigest, ...]:
    """Digests of the calls since ``began``, in seconds of the wall clock, one per group.

    ``merger`` is made from the groups as they are now; ``labels`` are the users' names of groups, by torch's name.

    A group in which several threads called is left out: the order of their calls is not the user's intention.
    """
    calls = log.since(int(began * 1e9))
    if not calls:
        return ()
    now = merger()
    known = {**labels(), now.world: "world"}
    return tuple(
        CallDigest(name, known.get(name, ""), len(now.ranks(name)), len(found.order), found.digest())
        for name, found in _by_group(calls, now).items()
        if len(found.threads) == 1
    )


class _GroupCalls:
    """The calls in one group: distinct texts in order of appearance, and their numbers in the order of the calls."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.texts: dict[str, int] = {}
        self.order = array("I")

    def number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def digest(self) -> bytes:
        return hashlib.blake2b("\n".join(self.texts).encode() + self.order.tobytes(), digest_size=8).digest()


# The group of a call and the number of its text; None for a call that did nothing: this rank is not in the group.
_Numbered = tuple[_GroupCalls, int] | None
_UNKNOWN: _Numbered = (_GroupCalls(), 0)


def _by_group(calls: Sequence[LoggedCall], merger: CallMerger) -> dict[str, _GroupCalls]:
    """The collectives that returned."""
    groups: dict[str, _GroupCalls] = {}
    over: dict[int, int] = {}
    known: dict[Any, _Numbered] = {}
    for call in calls:
        if call.started < over.get(call.thread, 0):
            continue  # within another call
        over[call.thread] = call.ended
        if call.op in _TRANSFERS or call.has_failed:
            continue
        key: Any = (call.thread, call.op, call.args, *call.kwargs.items())
        try:
            found = known.get(key, _UNKNOWN)
        except TypeError:  # there is a list of tensors in it
            key = repr(key)
            found = known.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = known[key] = _numbered(call, merger, groups)
        if found is not None:
            found[0].order.append(found[1])
    return groups


def _numbered(logged: LoggedCall, merger: CallMerger, groups: dict[str, _GroupCalls]) -> _Numbered:
    call = merger.of_logged(logged)
    if call is None:
        return None
    calls = groups.setdefault(call.group, _GroupCalls())
    calls.threads.add(logged.thread)
    return calls, calls.number(call_signature(call))
