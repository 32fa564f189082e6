"""Read torch's flight recorders, those of gloo and of NCCL.

NCCL has a recorder of its own, in builds of torch that have NCCL. NCCL's collectives return once they are queued, and
the GPU runs them later. So an entry is made when a rank has called, and it is done when the GPU has finished, which
each dump finds out by asking for the state of CUDA events. Its counters are those of the last work, collectives or
sends and receives alike, so that only entries tell how far a group is.

gloo's recorder is read without the main thread's help. It is on by default, for gloo too, and sees what no wrapper can:
DDP's reducer and functional collectives. It numbers a group's collectives from 1 on each rank alike; sends and receives
are not among them. NCCL has numbers of its own, so a group with both backends counts as two here.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct, structs

from jdist.core.messages.observation import Call, GroupProgress
from jdist.worker.compat import torch as torch_compat
from jdist.worker.observe.call_log import CallLog


class NcclProgress(Struct):
    """How far a group is: the numbers of the last collectives that were queued, and that the GPU has finished."""

    begun: int = 0
    ended: int = 0


class NcclRecorder:
    """Reads it; the entries only where a counter has changed since, since that asks CUDA."""

    def __init__(self) -> None:
        self._status = b""
        self._names: dict[int, str] = {}  # torch's names of groups, by the numbers that they have here.
        self._progress: dict[int, NcclProgress] = {}  # An entry may be overwritten by those of other groups.
        self.entries: tuple[dict[str, Any], ...] = ()  # Collectives, oldest first.

    @property
    def status(self) -> bytes:
        """Opaque; another one as soon as a call was queued or was seen to have ended. Asks nothing of CUDA."""
        return torch_compat.nccl_flight_record(with_entries=False)

    def is_in_flight(self) -> bool:
        """Whether a call of the present generation is queued or on the GPU. Asks nothing of CUDA."""
        counters = torch_compat.read_flight_record(self.status).get("pg_status", {})
        formed = self._formed
        return any(
            c.get("last_enqueued_collective", -1) != c.get("last_completed_collective", -1)
            for number, c in counters.items()
            if int(number) >= formed
        )

    def read(self) -> None:
        """Bring entries and progress up to date."""
        status = self.status
        if status == self._status and all(_is_done(e) for e in self.entries[-1:]):
            return
        with contextlib.suppress(RuntimeError):  # the CUDA context is lost: it stays as it was last seen
            dump = torch_compat.read_flight_record(torch_compat.nccl_flight_record(with_entries=True))
            found = dump.get("entries", ())
            self._names.update({int(e["pg_id"]): str(e["process_group"][0]) for e in found})
            self.entries = tuple(e for e in found if not e["is_p2p"])
            for e in self.entries:
                progress = self._progress.setdefault(int(e["pg_id"]), NcclProgress())
                number = int(e["collective_seq_id"])
                progress.begun = max(progress.begun, number)
                if _is_done(e):
                    progress.ended = max(progress.ended, number)
            self._status = status

    def progress(self, name: str) -> NcclProgress | None:
        """How far the present group of this name is; None if it has called no collective of NCCL's."""
        newest = max((number for number, own in list(self._names.items()) if own == name), default=-1)
        return self._progress.get(newest) if newest >= self._formed else None

    def is_current(self, entry: dict[str, Any]) -> bool:
        """Whether an entry is of a group of the generation that is formed now."""
        return int(entry["pg_id"]) >= self._formed

    @property
    def _formed(self) -> int:
        """The number of the present world, before which those of its groups cannot be."""
        world = torch_compat.world_name()
        return max((number for number, name in list(self._names.items()) if name == world), default=0)


def _is_done(entry: dict[str, Any]) -> bool:
    return bool(entry["retired"]) or entry["state"] == "completed"


_OPS = {"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor"}
_OPS |= {"all_reduce_barrier": "barrier", "_broadcast_oop": "broadcast", "_reduce_oop": "reduce"}  # of NCCL
# Names of the recorder that torch's Python API does not know in lower case.
_DTYPES = {"Byte": "uint8", "Char": "int8", "ComplexFloat": "complex64", "ComplexDouble": "complex128"}
_UNNAMED = ("undefined", "default_pg")  # torch's descriptions of groups that have none.
_NCCL = " (nccl)"  # Follows the name of a group that has another backend, too, where the part of NCCL is meant.
_ENQUEUED, _COMPLETED = "last_enqueued_collective", "last_completed_collective"  # torch's names of a group's counters.
_Status = tuple[bytes, int]


class RecorderEntry(Struct, frozen=True):
    """One collective that the recorder has seen begin."""

    call: Call  # As the recorder knows it, without its line.
    thread: int
    created: int  # Nanoseconds of the wall clock.
    is_current: bool  # Of a group of the generation that is formed now.
    is_on_gpu: bool = False  # It returned when it was queued, and the GPU runs it.

    @property
    def group(self) -> str:
        """torch's name of the group."""
        return self.call.group.removesuffix(_NCCL)


class FlightRecorder:
    """Reads the flight recorder for the world that is formed now: all of it in milliseconds, its counters in 0.1 ms.

    A group's counter counts sends and receives too, so it is ahead of the number of the group's last collective. A dump
    tells by how many, which holds until the next send or receive. Groups of a re-formed world have the last one's
    names, so a number that grows with every group made keeps them apart; a dump tells which name belongs to which.

    gloo completes collectives on several threads, each of which sets the counter of completed collectives without
    regard to the others. An older number can be the last that is set, and then stays until the next collective
    completes. So a collective that a dump marks as retired counts as completed, whatever the counter says.
    """

    def __init__(self, log: CallLog, labels: Callable[[], dict[str, str]]):
        self._log = log
        self._labels = labels
        self._lock = threading.RLock()  # several observations may be made at once, each on a thread of its own
        self._names: dict[int, str] = {}
        self._numbers: dict[int, dict[int, int]] = {}
        self._ahead: dict[int, int] = {}
        self._retired: dict[int, int] = {}  # By group: the last operation that a dump has marked as retired.
        self._transfers = -1
        self._dumped: _Status | None = None
        self._nccl = NcclRecorder()
        self._entries: tuple[RecorderEntry, ...] = ()

    @property
    def status(self) -> bytes:
        """Opaque; another one as soon as a collective has begun or ended."""
        return torch_compat.flight_record(with_entries=False) + self._nccl.status

    def progress(self, *, exact: bool = False) -> tuple[GroupProgress, ...]:
        """One entry per group that this rank is in; ``exact``: by the recorder's entries, not only by its counters."""
        if not dist.is_initialized():
            return ()
        with self._lock:
            self._nccl.read()
            if exact:
                self.entries()
            counters = self._counters()
            if not counters.keys() <= self._names.keys() or self._transfers != self._log.transfers:
                self._read()
                counters = self._counters()
            newest, labels = self._newest(), self._labels()
            formed = newest.get(torch_compat.world_name(), 0)
            found = []
            for group, name, ranks in torch_compat.groups():
                number = newest.get(name, -1)
                now = counters.get(number, {}) if number >= formed else {}  # an older number is the last generation's
                begun = self._number(number, now.get(_ENQUEUED, 0))
                ended = self._number(number, now.get(_COMPLETED, 0))
                if not ranks:
                    continue
                description = "" if group.group_desc in _UNNAMED else str(group.group_desc)
                label = "world" if group is dist.group.WORLD else labels.get(name, description)
                members, nccl = tuple(sorted(ranks)), self._nccl.progress(name)
                if nccl is None:
                    found.append(GroupProgress.of(name, members, begun, ended, label))
                elif torch_compat.is_nccl_alone(group):
                    found.append(GroupProgress.of(name, members, nccl.begun, nccl.ended, label))
                else:
                    found.append(GroupProgress.of(name, members, begun, ended, label))
                    found.append(
                        GroupProgress.of(name + _NCCL, members, nccl.begun, nccl.ended, label and label + _NCCL)
                    )
            return tuple(found)

    def is_in_flight(self) -> bool:
        """Whether some group's last collective has not ended. Cheap if the counters say that all of them have."""
        if not self._is_behind():
            return False
        with self._lock:
            self.entries()
            return self._is_behind()

    def is_on_gpu(self) -> bool:
        """Whether a collective is queued on the GPU, or running there. Cheap."""
        return self._nccl.is_in_flight()

    def entries(self) -> tuple[RecorderEntry, ...]:
        """What the recorder still has (2000 collectives, by default), oldest first."""
        with self._lock:
            if self._dumped != self._key():
                self._read()
            self._nccl.read()
            if not self._nccl.entries:
                return self._entries
            alone = {name for group, name, _ in torch_compat.groups() if torch_compat.is_nccl_alone(group)}
            on_gpu = (_entry_on_gpu(e, self._nccl.is_current(e), alone) for e in self._nccl.entries)
            return tuple(sorted((*self._entries, *on_gpu), key=lambda e: e.created))

    def _key(self) -> _Status:
        return self.status, self._log.transfers

    def _counters(self) -> dict[int, dict[str, int]]:
        dump = torch_compat.read_flight_record(torch_compat.flight_record(with_entries=False))
        counters = {int(n): c for n, c in dump.get("pg_status", {}).items()}
        for number, c in counters.items():
            c[_COMPLETED] = max(c.get(_COMPLETED, 0), self._retired.get(number, 0))
        return counters

    def _is_behind(self) -> bool:
        """Whether fewer operations have completed than were enqueued, as far as is known without another dump."""
        return any(c.get(_ENQUEUED, 0) > c[_COMPLETED] for c in self._counters().values())

    def _newest(self) -> dict[str, int]:
        """The newest number of each name."""
        return {name: number for number, name in sorted(self._names.items())}

    def _number(self, group: int, op_id: int) -> int:
        if op_id <= 0:
            return 0
        numbers = self._numbers.get(group, {})
        if op_id in numbers:
            return numbers[op_id]
        if max(numbers, default=0) > op_id or self._dumped == self._key():
            return numbers.get(max((o for o in numbers if o < op_id), default=0), 0)  # it is a send or receive
        return op_id - self._ahead.get(group, 0)

    def _read(self) -> None:
        key = self._key()
        dump = torch_compat.read_flight_record(torch_compat.flight_record(with_entries=True))
        for e in dump.get("entries", ()):
            if e["retired"]:
                group = int(e["pg_id"])
                self._retired[group] = max(int(e["op_id"]), self._retired.get(group, 0))
        found = [e for e in dump.get("entries", ()) if not e["is_p2p"]]
        self._names.update({int(e["pg_id"]): str(e["process_group"][0]) for e in found})
        formed = self._newest().get(torch_compat.world_name(), 0)
        self._numbers, self._transfers = {}, key[1]
        for e in found:
            group, op_id, number = int(e["pg_id"]), int(e["op_id"]), int(e["collective_seq_id"])
            self._numbers.setdefault(group, {})[op_id] = number
            self._ahead[group] = op_id - number
        self._entries = tuple(
            RecorderEntry(_call(e), int(e["thread_id"] or 0), int(e["time_created_ns"]), int(e["pg_id"]) >= formed)
            for e in found
        )
        # A counter changes a moment before its entry: such a dump holds for this once only.
        self._dumped = key if _agrees(found, self._counters()) and self.status == key[0] else None


def _agrees(found: list[dict[str, Any]], counters: dict[int, dict[str, int]]) -> bool:
    """Whether the entries are as new as the counters."""
    last = {int(e["pg_id"]): e for e in found}
    done = {(int(e["pg_id"]), int(e["op_id"])): bool(e["retired"]) for e in found}
    return all(
        (number not in last or int(last[number]["op_id"]) == c.get(_ENQUEUED, 0))
        and done.get((number, c[_COMPLETED]), True)
        for number, c in counters.items()
    )


def _entry_on_gpu(e: dict[str, Any], is_current: bool, alone: Collection[str]) -> RecorderEntry:
    call = _call(e)
    if call.group not in alone:
        call = structs.replace(call, group=call.group + _NCCL)
    return RecorderEntry(call, int(e["thread_id"] or 0), int(e["time_created_ns"]), is_current, is_on_gpu=True)


def _call(e: dict[str, Any]) -> Call:
    op = str(e["profiling_name"]).rpartition(":")[2]
    return Call(
        op=_OPS.get(op, op),
        group=str(e["process_group"][0]),
        number=int(e["collective_seq_id"]),
        shapes=tuple(tuple(shape) for shape in e["input_sizes"]),
        dtypes=tuple(map(_dtype, e["input_dtypes"])),
        started=int(e["time_created_ns"]) / 1e9,
        is_done=bool(e["retired"]) or e["state"] == "completed",
    )


@functools.cache
def _dtype(name: str) -> str:
    """``"Float"`` → ``"float32"``."""
    alias = name.lower()
    return _DTYPES.get(name) or str(getattr(torch, alias, alias)).removeprefix("torch.")
