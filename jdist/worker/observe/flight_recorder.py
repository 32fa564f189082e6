"""Collectives: what torch's flight recorder knows of this rank, without its main thread's help.

The recorder is on by default, for gloo too, and sees what no wrapper can: DDP's reducer and functional collectives. It
numbers a group's collectives from 1 on each rank alike; sends and receives are not among them.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed.distributed_c10d as c10d
from msgspec import Struct

from jdist.core.observation import GroupProgress
from jdist.worker.observe.call_log import Notes

_OPS = {"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor"}
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""Where lower case is not all that makes the recorder's name torch's own."""


class Entry(Struct, frozen=True):
    """One collective that the recorder has seen begin."""

    group: str
    number: int
    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    thread: int
    created: int
    """Nanoseconds of the wall clock."""
    is_done: bool
    is_current: bool
    """Of a group of the generation that is formed now."""


class Recorder:
    """Reads the flight recorder, of the world that is formed now.

    A dump of all it has takes milliseconds, one of its counters 0.1 ms. One with stacks would import torch._inductor
    (2 s, 70 MB), so the line of a call that has no note is that of the main thread. A group's counter counts sends
    and receives too, so that it is ahead of the number of its last collective by as many as there were: a dump tells
    by how many, and that holds until the next send or receive. Groups are kept apart by a number that grows with
    every group made, since those of a re-formed world have the names of the last one's; a dump tells which name
    belongs to which.
    """

    def __init__(self, notes: Notes, labels: Callable[[], dict[str, str]] = dict):
        self._notes = notes
        self._labels = labels
        self._lock = threading.RLock()  # several looks may be under way, each on a thread of its own
        self._names: dict[int, str] = {}
        self._numbers: dict[int, dict[int, int]] = {}
        self._ahead: dict[int, int] = {}
        self._transfers = -1
        self._dumped: tuple[bytes, int] | None = None
        self._entries: tuple[Entry, ...] = ()

    @property
    def status(self) -> bytes:
        """Opaque; another one as soon as a collective has begun or ended."""
        return bytes(_dump(False, False, False))

    def progress(self, *, exact: bool = False) -> tuple[GroupProgress, ...]:
        """One entry per group that this rank is in; ``exact``: by what the recorder has, not only by its counters."""
        if not c10d.is_initialized():
            return ()
        with self._lock:
            return self._progress(exact)

    def _progress(self, exact: bool) -> tuple[GroupProgress, ...]:
        if exact:
            self.entries()
        counters = self._counters()
        if not counters.keys() <= self._names.keys() or self._transfers != self._notes.transfers:
            self._read()
            counters = self._counters()
        formed, newest = self._formed()
        labels = self._labels()
        found = []
        for group, name in list(c10d._world.pg_names.items()):
            ranks = c10d._world.pg_group_ranks.get(group, {})
            number = newest.get(name, -1)
            # An older number is the last generation's group: this one has had no collective yet.
            now = counters.get(number, {}) if number >= formed else {}
            begun = self._number(number, now.get("last_enqueued_collective", 0))
            ended = self._number(number, now.get("last_completed_collective", 0))
            if ranks:
                label = "world" if group is c10d.GroupMember.WORLD else labels.get(name) or _description(group)
                found.append(GroupProgress(str(name), tuple(sorted(ranks)), begun, ended, label))
        return tuple(found)

    def is_in_flight(self) -> bool:
        """Whether some group's last collective has not ended. Cheap."""
        return any(
            c.get("last_enqueued_collective", 0) > max(c.get("last_completed_collective", 0), 0)
            for c in self._counters().values()
        )

    def entries(self) -> tuple[Entry, ...]:
        """What the recorder still has (2000 collectives, by default), oldest first."""
        with self._lock:
            if self._dumped != (self.status, self._notes.transfers):
                self._read()
            return self._entries

    def _counters(self) -> dict[int, dict[str, int]]:
        return {int(n): c for n, c in pickle.loads(self.status).get("pg_status", {}).items()}

    def _formed(self) -> tuple[int, dict[str, int]]:
        """The world's number, and each name's newest."""
        newest = {name: number for number, name in sorted(self._names.items())}
        world = c10d.GroupMember.WORLD
        return newest.get(c10d._world.pg_names.get(world, ""), 0) if world is not None else 0, newest

    def _number(self, group: int, op_id: int) -> int:
        if op_id <= 0:
            return 0
        numbers = self._numbers.get(group, {})
        if op_id in numbers:
            return numbers[op_id]
        newest = max(numbers, default=0)
        if newest > op_id or self._dumped == (self.status, self._notes.transfers):
            return numbers.get(max((o for o in numbers if o < op_id), default=0), 0)  # it is a send or receive
        return op_id - self._ahead.get(group, 0)

    def _read(self) -> None:
        key = (self.status, self._notes.transfers)
        found = [e for e in pickle.loads(_dump(True, False, False)).get("entries", ()) if not e["is_p2p"]]
        self._names.update({int(e["pg_id"]): str(e["process_group"][0]) for e in found})
        numbers: dict[int, dict[int, int]] = {}
        for e in found:
            group, op_id, number = int(e["pg_id"]), int(e["op_id"]), int(e["collective_seq_id"])
            numbers.setdefault(group, {})[op_id] = number
            self._ahead[group] = op_id - number
        self._numbers, self._transfers = numbers, key[1]
        formed, _ = self._formed()
        self._entries = tuple(_entry(e, int(e["pg_id"]) >= formed) for e in found)
        # A counter changes a moment before its entry: such a dump holds for this once only.
        self._dumped = key if _agrees(found, self._counters()) and self.status == key[0] else None


def _agrees(found: list[dict[str, Any]], counters: dict[int, dict[str, int]]) -> bool:
    """Whether the entries are as new as the counters."""
    last = {int(e["pg_id"]): e for e in found}
    done = {(int(e["pg_id"]), int(e["op_id"])): bool(e["retired"]) for e in found}
    return all(
        (number not in last or int(last[number]["op_id"]) == c.get("last_enqueued_collective", 0))
        and done.get((number, c.get("last_completed_collective", 0)), True)
        for number, c in counters.items()
    )


def _description(group: Any) -> str:
    text = str(group.group_desc)
    return "" if text in ("undefined", "default_pg") else text


def _entry(e: dict[str, Any], is_current: bool) -> Entry:
    op = str(e["profiling_name"]).rpartition(":")[2]
    return Entry(
        str(e["process_group"][0]),
        int(e["collective_seq_id"]),
        _OPS.get(op, op),
        tuple(tuple(shape) for shape in e["input_sizes"]),
        tuple(_DTYPES.get(d, d.lower()) for d in e["input_dtypes"]),
        int(e["thread_id"] or 0),
        int(e["time_created_ns"]),
        bool(e["retired"]),
        is_current,
    )


def _dump(*what: bool) -> bytes:
    from torch._C import _distributed_c10d as bindings

    dump = getattr(bindings, "_dump_fr_trace", None)
    return pickle.dumps({}) if dump is None else dump(*what)
