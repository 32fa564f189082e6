"""Merge logged calls with the flight recorder's entries of the same collectives, and digest them. Pure.

An entry belongs to its own thread's logged call during which it was made. A call may have several (a collective of
objects sends sizes first): the last one's number counts. An entry without a call was made in C++, by DDP's reducer or a
functional collective; its line is that of the backward pass or of the function. A logged call within another of the
same thread is a part of that.

By the digests of a cell's collectives, one per group, ranks that did not call the same can be told apart. Backends
accept much that is wrong: gloo adds on one rank what it takes the maximum of on another. No rank hangs then, but the
numbers are wrong. Digests are made when a cell ends, on its thread; an equal call costs one look-up.
"""

import bisect
import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from jdist.core.messages.observation import Call, CallDigest, call_signature
from jdist.worker.observe.call_log import TRANSFERS, GroupName, LoggedCall, TensorMeta, global_rank, peer
from jdist.worker.observe.flight_recorder import RecorderEntry

_Pair = tuple[int, LoggedCall | None, list[RecorderEntry]]  # When it began, the logged call, the entries.


class CallMerger:
    """Merges calls, by what is known of the groups at one moment."""

    def __init__(self, world: str, group_ranks: Mapping[str, tuple[int, ...]], callers: Sequence[LoggedCall] = ()):
        self.world = world  # torch's name of the default group.
        self.group_ranks = group_ranks  # Global ranks of each group in its own order, by torch's name of it.
        self._callers = callers  # Functions that called collectives in C++.

    def merge(self, logged: Sequence[LoggedCall], entries: Iterable[RecorderEntry], most: int = 0) -> list[Call]:
        """All calls, oldest first, or the last ``most`` of each group."""
        groups: dict[str, int] = {}
        calls: list[Call] = []
        for _, own, found in reversed(_paired(logged, entries)):
            if own is None:
                name = found[-1].call.group
            else:
                group = own.arguments.get("group")
                name = group.name if isinstance(group, GroupName) else self.world
            groups[name] = groups.get(name, 0) + 1
            if most and groups[name] > most:
                continue
            call = self._of_entry(found[0]) if own is None else self.of_logged(own, found)
            if call is not None:
                calls.append(call)
        return calls[::-1]

    def _of_entry(self, entry: RecorderEntry) -> Call:
        """A collective that was called in C++, with the line of the innermost function of Python's that led to it."""
        at = entry.created
        callers = (c for c in reversed(self._callers) if c.started <= at and (not c.ended or at <= c.ended))
        caller = next(callers, None)
        return entry.call if caller is None else structs.replace(entry.call, line=caller.line, file=caller.file)

    def of_logged(self, logged: LoggedCall, entries: Sequence[RecorderEntry] = ()) -> Call | None:
        """A call that was logged; None if it did nothing, since this rank is not in the group."""
        arguments = logged.arguments
        group = arguments.get("group")
        if group is not None and not isinstance(group, GroupName):
            return None
        name = group.name if group is not None else entries[-1].group if entries else self.world
        first = next(iter(arguments.values()), None)
        tensors: list[TensorMeta] = [m for m in (first if isinstance(first, list) else [first]) if isinstance(m, tuple)]
        is_transfer, on_gpu = logged.op in TRANSFERS, bool(entries) and entries[-1].is_on_gpu
        is_async = logged.work_ref is not None or on_gpu
        return Call(
            op=logged.op,
            group=entries[-1].call.group if on_gpu and not is_transfer else name,
            number=entries[-1].call.number if entries and not is_transfer else 0,
            parts=max(1, len(entries)),
            shapes=tuple(tuple(n if type(n) is int else -1 for n in shape) for shape, _ in tensors),
            dtypes=tuple(str(dtype).removeprefix("torch.") for _, dtype in tensors),
            detail="" if is_transfer else self._detail(arguments, name),
            peer=peer(arguments, self.group_ranks.get(name, ())) if is_transfer else None,
            tag=arguments.get("tag") or 0 if is_transfer else 0,
            nth=logged.nth,
            line=logged.line,
            file=logged.file,
            started=logged.started / 1e9,
            ended=None if (is_async and not on_gpu) or not logged.ended else logged.ended / 1e9,
            is_done=entries[-1].call.is_done if is_async and entries and not is_transfer else logged.is_done,
            has_failed=logged.has_failed,
        )

    def _detail(self, arguments: dict[str, Any], group: str) -> str:
        members = self.group_ranks.get(group, ())
        parts = [f"{end}={global_rank(arguments, end, members) or 0}" for end in ("src", "dst") if end in arguments]
        if arguments.get("op") is not None:
            parts.append("op=" + str(arguments["op"]).partition(":")[0].rpartition(".")[2].strip(" <>"))
        splits = arguments.get("input_split_sizes"), arguments.get("output_split_sizes")
        if "output_tensor_list" in arguments:
            splits = _elements(arguments.get("input_tensor_list")), _elements(arguments["output_tensor_list"])
        if any(splits):
            parts.append("splits=" + "→".join(str(s or "even") for s in splits))
        return " ".join(parts)


def _elements(tensors: Any) -> list[int]:
    """The number of elements of each tensor of a list."""
    return [meta[0].numel() for meta in tensors or () if isinstance(meta, tuple)]


def _paired(logged: Sequence[LoggedCall], entries: Iterable[RecorderEntry]) -> list[_Pair]:
    """Logged calls with the entries that belong to them, and entries alone, in the order in which they began."""
    pairs: list[_Pair] = []
    threads: dict[int, list[tuple[LoggedCall, list[RecorderEntry]]]] = {}
    for call in outermost(logged):
        found: list[RecorderEntry] = []
        threads.setdefault(call.thread, []).append((call, found))
        pairs.append((call.started, call, found))
    for entry in entries:
        own = threads.get(entry.thread, [])
        at = bisect.bisect_right(own, entry.created, key=lambda pair: pair[0].started) - 1
        if at >= 0 and (not own[at][0].ended or entry.created <= own[at][0].ended):
            own[at][1].append(entry)
        else:
            pairs.append((entry.created, None, [entry]))
    return sorted(pairs, key=lambda pair: pair[0])


def outermost(logged: Sequence[LoggedCall]) -> list[LoggedCall]:
    """Without the calls that were made within another of the same thread."""
    found: list[LoggedCall] = []
    last: dict[int, LoggedCall] = {}
    for call in logged:
        before = last.get(call.thread)
        if before is None or (before.ended and call.started >= before.ended):
            last[call.thread] = call
            found.append(call)
    return found


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
        key: Any = logged.thread, logged.op, logged.args
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
