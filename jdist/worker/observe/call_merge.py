"""Calls: the flight recorder's entries and the notes of the same collectives, put together. Pure.

An entry belongs to the note of its own thread during which it was made. A note may have several (a collective of
objects sends their sizes first): the last one's number counts. An entry without a note was made in C++: DDP's reducer,
a functional collective; its line is that of the backward pass in which it was made. A note within another note is a
part of that one.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jdist.core.observation import ANY, Call
from jdist.worker.observe.call_log import TRANSFERS, Named, Note, Seen
from jdist.worker.observe.flight_recorder import Entry

_FLOWS = ("src", "dst")

GroupRanks = Callable[[str], tuple[int, ...]]
"""Global ranks of a group by torch's name, in the group's own order; empty for one that is gone."""


class Merging:
    """Puts calls together for one moment: ``world`` is torch's name of the default group."""

    def __init__(self, world: str, ranks: GroupRanks, spans: Sequence[Note] = ()):
        self.world = world
        self.ranks = ranks
        self._spans = spans

    def merge(self, notes: Sequence[Note], entries: Iterable[Entry], most: int = 0) -> list[Call]:
        """All calls, oldest first, or the last ``most`` of each group."""
        groups: dict[str, int] = {}
        calls: list[Call] = []
        for note, found in reversed(_paired(notes, entries)):
            group = found[-1].group if note is None else self._group(note)
            groups[group] = groups.get(group, 0) + 1
            if most and groups[group] > most:
                continue
            call = self.of_entry(found[0]) if note is None else self.of_note(note, found)
            if call is not None:
                calls.append(call)
        return calls[::-1]

    def _group(self, note: Note) -> str:
        named = note.asked.get("group")
        return named.name if isinstance(named, Named) else self.world

    def of_entry(self, entry: Entry) -> Call:
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
        """Of the innermost backward pass that was under way."""
        for span in reversed(self._spans):
            if span.started <= moment and (not span.ended or moment <= span.ended):
                return span.line
        return None

    def of_note(self, note: Note, entries: Sequence[Entry] = (), number: int = 0) -> Call | None:
        """A call that was noted; None if it did nothing, since this rank is not in the group."""
        asked = note.asked
        group = asked.get("group", None)
        if group is not None and not isinstance(group, Named):
            return None
        name = group.name if group is not None else entries[-1].group if entries else self.world
        shapes, dtypes = _tensors(asked)
        is_transfer = note.op in TRANSFERS
        is_async = note.is_async
        is_done = entries[-1].is_done if is_async and entries and not is_transfer else note.is_done
        return Call(
            op=note.op,
            group=name,
            number=0 if is_transfer else entries[-1].number if entries else number,
            shapes=shapes,
            dtypes=dtypes,
            detail="" if is_transfer else self._detail(asked, name),
            peer=self._peer(asked, name) if is_transfer else None,
            tag=asked.get("tag") or 0 if is_transfer else 0,
            line=note.line,
            started=note.started / 1e9,
            ended=None if is_async or not note.ended else note.ended / 1e9,
            is_done=is_done,
            has_failed=note.has_failed,
        )

    def _detail(self, asked: dict[str, Any], group: str) -> str:
        parts = []
        for way in _FLOWS:
            if way in asked:
                rank = self._global(asked, way, group)
                parts.append(f"{way}={0 if rank is None else rank}")
        if asked.get("op") is not None:
            parts.append("op=" + str(asked["op"]).partition(":")[0].rpartition(".")[2].strip(" <>"))
        splits = asked.get("input_split_sizes"), asked.get("output_split_sizes")
        if any(splits):
            parts.append("splits=" + "→".join(str(s or "even") for s in splits))
        return " ".join(parts)

    def _peer(self, asked: dict[str, Any], group: str) -> int:
        ranks = [r for way in _FLOWS if way in asked and (r := self._global(asked, way, group)) is not None]
        return ranks[0] if ranks else ANY

    def _global(self, asked: dict[str, Any], way: str, group: str) -> int | None:
        """The global rank, also where the rank in the group was given."""
        inside = asked.get(f"group_{way}")
        if inside is None:
            return asked.get(way)
        ranks = self.ranks(group)
        return ranks[inside] if 0 <= inside < len(ranks) else None


def _paired(notes: Sequence[Note], entries: Iterable[Entry]) -> list[tuple[Note | None, list[Entry]]]:
    """Notes with the entries that belong to them, and entries alone, in the order in which they began."""
    pairs: list[tuple[int, Note | None, list[Entry]]] = []
    threads: dict[int, tuple[list[int], list[tuple[Note, list[Entry]]]]] = {}
    for note in outermost(notes):
        found: list[Entry] = []
        starts, own = threads.setdefault(note.thread, ([], []))
        starts.append(note.started)
        own.append((note, found))
        pairs.append((note.started, note, found))
    for entry in entries:
        starts, own = threads.get(entry.thread, ([], []))
        at = bisect.bisect_right(starts, entry.created) - 1
        if at >= 0 and (not own[at][0].ended or entry.created <= own[at][0].ended):
            own[at][1].append(entry)
        else:
            pairs.append((entry.created, None, [entry]))
    pairs.sort(key=lambda p: p[0])
    return [(note, found) for _, note, found in pairs]


def outermost(notes: Sequence[Note]) -> list[Note]:
    """Without the notes that were made within another of the same thread."""
    found: list[Note] = []
    last: dict[int, Note] = {}
    for note in notes:
        before = last.get(note.thread)
        if before is None or (before.ended and note.started >= before.ended):
            last[note.thread] = note
            found.append(note)
    return found


def _tensors(asked: dict[str, Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    found = next(iter(asked.values()), None)
    seen: list[Seen] = [v for v in (found if isinstance(found, list) else [found]) if isinstance(v, tuple)]
    shapes = tuple(tuple(n if type(n) is int else -1 for n in shape) for shape, _ in seen)
    return shapes, tuple(str(dtype).removeprefix("torch.") for _, dtype in seen)
