"""Logged calls and the flight recorder's entries of the same collectives, merged into one list of calls. Pure.

An entry belongs to the logged call of its own thread during which it was made. A logged call may have several (a
collective of objects sends their sizes first): the last one's number counts. An entry without a logged call was made in
C++, by DDP's reducer or a functional collective; its line is that of the backward pass in which it was made. A logged
call within another one is a part of that.
"""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jdist.core.observation import ANY, Call
from jdist.worker.observe.call_log import TRANSFERS, GroupName, LoggedCall, TensorMeta
from jdist.worker.observe.flight_recorder import RecorderEntry


class CallMerger:
    """Merges calls, by what is known of the groups at one moment.

    ``world`` is torch's name of the default group; ``group_ranks`` the global ranks of each group in its own order, by
    torch's name of it.
    """

    def __init__(
        self, world: str, group_ranks: Mapping[str, tuple[int, ...]], backward_passes: Sequence[LoggedCall] = ()
    ):
        self.world = world
        self._group_ranks = group_ranks
        self._backward_passes = backward_passes

    def ranks(self, group: str) -> tuple[int, ...]:
        """Global ranks of a group in its own order; empty for one that is gone."""
        return self._group_ranks.get(group, ())

    def merge(self, logged: Sequence[LoggedCall], entries: Iterable[RecorderEntry], most: int = 0) -> list[Call]:
        """All calls, oldest first, or the last ``most`` of each group."""
        groups: dict[str, int] = {}
        calls: list[Call] = []
        for own, found in reversed(_paired(logged, entries)):
            group = found[-1].group if own is None else self._group(own)
            groups[group] = groups.get(group, 0) + 1
            if most and groups[group] > most:
                continue
            call = self._of_entry(found[0]) if own is None else self.of_logged(own, found)
            if call is not None:
                calls.append(call)
        return calls[::-1]

    def _group(self, logged: LoggedCall) -> str:
        group = logged.arguments.get("group")
        return group.name if isinstance(group, GroupName) else self.world

    def _of_entry(self, entry: RecorderEntry) -> Call:
        """A collective that was called in C++."""
        return Call(
            op=entry.op,
            group=entry.group,
            number=entry.number,
            shapes=entry.shapes,
            dtypes=entry.dtypes,
            line=self._line_at(entry.created),
            started=entry.created / 1e9,
            is_done=entry.is_done,
        )

    def _line_at(self, moment: int) -> int | None:
        """Line of the innermost backward pass that was under way."""
        newest_first = reversed(self._backward_passes)
        return next((b.line for b in newest_first if b.started <= moment and (not b.ended or moment <= b.ended)), None)

    def of_logged(self, logged: LoggedCall, entries: Sequence[RecorderEntry] = (), number: int = 0) -> Call | None:
        """A call that was logged; None if it did nothing, since this rank is not in the group."""
        arguments = logged.arguments
        group = arguments.get("group")
        if group is not None and not isinstance(group, GroupName):
            return None
        name = group.name if group is not None else entries[-1].group if entries else self.world
        shapes, dtypes = _tensors(arguments)
        is_transfer, is_async = logged.op in TRANSFERS, logged.work_ref is not None
        return Call(
            op=logged.op,
            group=name,
            number=0 if is_transfer else entries[-1].number if entries else number,
            shapes=shapes,
            dtypes=dtypes,
            detail="" if is_transfer else self._detail(arguments, name),
            peer=self._peer(arguments, name) if is_transfer else None,
            tag=arguments.get("tag") or 0 if is_transfer else 0,
            line=logged.line,
            started=logged.started / 1e9,
            ended=None if is_async or not logged.ended else logged.ended / 1e9,
            is_done=entries[-1].is_done if is_async and entries and not is_transfer else logged.is_done,
            has_failed=logged.has_failed,
        )

    def _detail(self, arguments: dict[str, Any], group: str) -> str:
        parts = [f"{end}={self._global_rank(arguments, end, group) or 0}" for end in ("src", "dst") if end in arguments]
        if arguments.get("op") is not None:
            parts.append("op=" + str(arguments["op"]).partition(":")[0].rpartition(".")[2].strip(" <>"))
        splits = arguments.get("input_split_sizes"), arguments.get("output_split_sizes")
        if any(splits):
            parts.append("splits=" + "→".join(str(s or "even") for s in splits))
        return " ".join(parts)

    def _peer(self, arguments: dict[str, Any], group: str) -> int:
        ranks = (self._global_rank(arguments, end, group) for end in ("src", "dst") if end in arguments)
        return next((r for r in ranks if r is not None), ANY)

    def _global_rank(self, arguments: dict[str, Any], end: str, group: str) -> int | None:
        """The global rank of ``src`` or ``dst``, also where the rank in the group was given."""
        inside = arguments.get(f"group_{end}")
        if inside is None:
            return arguments.get(end)
        ranks = self.ranks(group)
        return ranks[inside] if 0 <= inside < len(ranks) else None


def _paired(
    logged: Sequence[LoggedCall], entries: Iterable[RecorderEntry]
) -> list[tuple[LoggedCall | None, list[RecorderEntry]]]:
    """Logged calls with the entries that belong to them, and entries alone, in the order in which they began."""
    pairs: list[tuple[int, LoggedCall | None, list[RecorderEntry]]] = []
    threads: dict[int, tuple[list[int], list[tuple[LoggedCall, list[RecorderEntry]]]]] = {}
    for call in outermost(logged):
        found: list[RecorderEntry] = []
        starts, own = threads.setdefault(call.thread, ([], []))
        starts.append(call.started)
        own.append((call, found))
        pairs.append((call.started, call, found))
    for entry in entries:
        starts, own = threads.get(entry.thread, ([], []))
        at = bisect.bisect_right(starts, entry.created) - 1
        if at >= 0 and (not own[at][0].ended or entry.created <= own[at][0].ended):
            own[at][1].append(entry)
        else:
            pairs.append((entry.created, None, [entry]))
    pairs.sort(key=lambda p: p[0])
    return [(call, found) for _, call, found in pairs]


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


def _tensors(arguments: dict[str, Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Shapes and dtypes of the first argument's tensors."""
    first = next(iter(arguments.values()), None)
    found: list[TensorMeta] = [v for v in (first if isinstance(first, list) else [first]) if isinstance(v, tuple)]
    shapes = tuple(tuple(n if type(n) is int else -1 for n in shape) for shape, _ in found)
    return shapes, tuple(str(dtype).removeprefix("torch.") for _, dtype in found)
