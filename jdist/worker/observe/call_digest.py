"""Digests of a cell's collectives, one per group, by which ranks that did not call the same can be told apart.

Backends accept much that is wrong: gloo adds on one rank what it takes the maximum of on another. No rank hangs then,
but the numbers are wrong. Digests are made when a cell ends, on its thread; an equal call costs one look-up.
"""

import hashlib
from array import array
from typing import Any

from jdist.core.observation import CallDigest, call_signature
from jdist.worker.observe.call_log import TRANSFERS, LoggedCall
from jdist.worker.observe.call_merge import CallMerger, outermost


class _GroupCalls:
    """The calls in one group: each distinct signature with its number, and the numbers in the order of the calls."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.numbers: dict[str, int] = {}
        self.order = array("I")


def digest_calls(calls: list[LoggedCall], merger: CallMerger, labels: dict[str, str]) -> tuple[CallDigest, ...]:
    """Digests of the collectives that returned, one per group; ``labels`` are users' names of groups, by torch's name.

    A group in which several threads called is left out: the order of their calls is not the user's intention.
    """
    groups: dict[str, _GroupCalls] = {}
    seen: dict[Any, tuple[_GroupCalls, int]] = {}  # The group of such a call, and the number of its signature there.
    for logged in outermost(calls):
        if logged.op in TRANSFERS or logged.has_failed:
            continue
        key: Any = (logged.thread, logged.op, logged.args, *logged.kwargs.items())
        try:
            found = seen.get(key)
        except TypeError:  # there is a list of tensors in it
            key = repr(key)
            found = seen.get(key)
        if found is None:
            call = merger.of_logged(logged)
            # A call that did nothing, since this rank is not in the group, counts nowhere.
            group = groups.setdefault(call.group, _GroupCalls()) if call is not None else _GroupCalls()
            group.threads.add(logged.thread)
            signature = call_signature(call) if call is not None else ""
            found = seen[key] = group, group.numbers.setdefault(signature, len(group.numbers))
        found[0].order.append(found[1])
    known = {**labels, merger.world: "world"}
    digests = []
    for name, group in groups.items():
        if len(group.threads) == 1:
            digest = hashlib.blake2b("\n".join(group.numbers).encode() + group.order.tobytes(), digest_size=8).digest()
            size = len(merger.group_ranks.get(name, ()))
            digests.append(CallDigest(name, known.get(name, ""), size, len(group.order), digest))
    return tuple(digests)
