"""Where the main thread is, by its stack, the call log and the flight recorder, without its help.

A logged call that has not returned is what it is blocked in. Without one (``handle.wait()``, ``loss.backward()``) it is
blocked only if something is in flight *and* it has waited in the same instruction from one sample to the next, at none
of Python's own waits: a sleep or a data loader's wait while a collective goes on by itself is Python.

A collective on a GPU returns at once, and what waits for the GPU later (``loss.item()``) computes as far as the system
can tell, since CUDA polls. So there a thread is blocked if it stays in one instruction for longer.
"""

import contextlib
import itertools
import linecache
import math
import os
import platform
import re
import sys
import threading
import time
from datetime import timedelta
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct, structs

from jdist.core.messages.observation import Activity
from jdist.core.ranks import RankSet
from jdist.worker import process
from jdist.worker.compat import torch as torch_compat
from jdist.worker.observe.call_log import TRANSFERS, CallLog, LoggedCall
from jdist.worker.observe.flight_recorder import FlightRecorder

# Code that is on the stack in a wait at a store and in that for a Work, each with a local of that name; filled by
# worker/groups/patches.
STORE_WAITS: set[CodeType] = set()
WORK_WAITS: set[CodeType] = set()
TRANSPARENT: set[CodeType] = set()  # Code of stand-ins for torch's waits, in whose caller a thread is said to be.
_NEAR = 3  # Innermost frames that are searched for a wait at a store.
_SETTLE = 0.006  # Least seconds between two samples of a thread that may be blocked.
_STILL = 0.4  # Seconds in one instruction after which a thread waits for its GPU; two of the stall detector's ticks.
_SEEN = 1 / 8  # Least share of looks that see it wait; on a busy machine the thread may get a fifth of a core.
_HOLD = 0.0005  # Seconds for which the GIL is held to see whether another thread computes without it.
_BUSY = 0.01  # Share of a core above which a thread does not wait (for more than the GIL).
_ONCE = 20e-6  # Seconds of CPU time that a wait costs, however short it is.
# Number of the system call in which a condition variable waits. A sleep and a read are others.
_FUTEX = {"x86_64": "202", "aarch64": "98", "ppc64le": "221", "riscv64": "98"}.get(platform.machine())
# Packages in which a thread waits for something else than a collective.
_PYTHONS = {
    *("threading", "queue", "selectors", "subprocess", "socket", "ssl", "asyncio", "multiprocessing", "concurrent"),
    *("signal", "time", "zmq", "tornado"),
}
_LOCK = re.compile(r"\.(acquire|get)\([^()]*\)$")
_SOON = 20.0  # Seconds of a timeout with which a wait at a store is meant to end by itself. The world's store has 30.

Key = tuple[Any, ...]


class Location(Struct, frozen=True):
    """Where the main thread is. ``key`` is the same as long as it is in this very call, or at this cell line."""

    activity: Activity  # Without its duration, CPU use and calls.
    key: Key
    call: LoggedCall | None = None  # The call it is in, or whose Work it waits for.
    is_open: bool = False  # Whether it is in that call itself.
    is_still: bool = False  # Whether it has waited there since the last sample, as far as its CPU time tells.
    is_wait: bool = False  # Whether it is in the wait for that call's Work.
    is_on_gpu: bool = False  # Whether it may wait for its GPU, by computing.


class _Sample(Struct):
    location: Location
    maybe: Location | None  # Where it is blocked if it turns out to wait there.
    at: float
    cpu: float

    @property
    def place(self) -> Key | None:
        """Where it may be blocked, if that is to be found out by a second sample."""
        return self.maybe.key if self.maybe is not None else self.location.key if self.location.is_open else None

    def stayed_since(self, before: "_Sample | None") -> bool:
        """Whether it may have been blocked in one place since ``before``, and for long enough."""
        if before is None or self.place is None:
            return False
        return before.place == self.place and self.at - before.at >= _SETTLE


class _GpuWait(Struct):
    """How long the thread has been in one place where it may wait for its GPU. On a busy machine it may have no core
    when it is looked at, so that it is not seen to wait each time.
    """

    key: Key = ()
    seconds: float = 0.0
    since: float = 0.0
    looks: int = 0
    waits: int = 0  # Looks at which it was seen to wait.

    def again(self, now: _Sample, *, waits: bool) -> "_GpuWait":
        key = now.maybe.key if now.maybe is not None else ()
        before = self if key == self.key else _GpuWait(key, since=now.at)
        return _GpuWait(key, now.at - before.since, before.since, before.looks + 1, before.waits + waits)

    @property
    def is_wait(self) -> bool:
        return self.seconds >= _STILL and self.waits >= 2 and self.waits >= _SEEN * self.looks


class MainThread:
    """Observes the main thread, from any other."""

    def __init__(self, log: CallLog, recorder: FlightRecorder):
        self._log = log
        self._recorder = recorder
        self._ident = threading.main_thread().ident or 0
        self._native_id = os.getpid()  # the one that threading knows is the forkserver's
        self._lock = threading.Lock()
        self._last: _Sample | None = None
        self._gpu_wait = _GpuWait()

    def location(self) -> Location:
        """Where it is. Takes 6 ms longer if it may be blocked and was elsewhere at the last sample."""
        with self._lock:
            before, now = self._last, self._sample()
            is_on_gpu = now.maybe is not None and now.maybe.is_on_gpu
            if now.place is not None and not is_on_gpu and not now.stayed_since(before):
                time.sleep(_SETTLE)
                before, now = now, self._sample()
            return self._settle(before, now)

    def glance(self) -> Location:
        """The same without waiting: blocked outside a logged call only from the second glance at the same place on."""
        with self._lock:
            return self._settle(self._last, self._sample())

    def is_at(self, location: Location) -> bool:
        """Whether it is there still."""
        now = self._sample()
        return location.key in (now.location.key, now.maybe.key if now.maybe is not None else None)

    def _settle(self, before: _Sample | None, now: _Sample) -> Location:
        self._last = now
        if now.place is None or before is None:
            return now.location
        has_waited = now.cpu - before.cpu <= _BUSY * (now.at - before.at) + _ONCE
        if now.maybe is None:  # while a communicator is made, NCCL polls for the other ranks
            is_still = now.stayed_since(before) and (has_waited or _computes(self._ident))
            return structs.replace(now.location, is_still=is_still)
        if now.maybe.is_on_gpu:
            waits = (has_waited and _waits_for_a_thread(self._native_id)) or _computes(self._ident)
            self._gpu_wait = self._gpu_wait.again(now, waits=waits)
            return now.maybe if self._gpu_wait.is_wait else now.location
        found = self._in_flight(now.maybe) if has_waited and now.stayed_since(before) else None
        return now.location if found is None else found

    def _sample(self) -> _Sample:
        frames = frames_of(self._ident)
        at, cpu = time.monotonic(), _cpu_seconds(self._ident)
        if not frames:  # the interpreter ends
            return _Sample(Location(Activity("python"), ()), None, at, cpu)
        python = self._python(frames)
        call, waiting = self._log.open(self._ident), store_wait(frames)
        if call is not None:
            kind = "transfer" if call.op in TRANSFERS else "collective"
            activity = structs.replace(python.activity, kind=kind, op=call.op)
            return _Sample(Location(activity, (call.op, call.started), call, True), None, at, cpu)
        if waiting is not None:
            activity = _at_store(frames, waiting, python.activity)
            return _Sample(Location(activity, (id(waiting), frames[0].f_lasti)), None, at, cpu)
        work = frames[0].f_locals.get("work") if frames[0].f_code in WORK_WAITS else None
        call = self._log.find(work) if work is not None else None
        if call is not None and not call.is_done:
            kind = "transfer" if call.op in TRANSFERS else "collective"
            activity = structs.replace(python.activity, kind=kind, op=call.op)
            return _Sample(Location(activity, (call.op, call.started, "wait"), call, is_wait=True), None, at, cpu)
        innermost = frames[1] if work is not None and len(frames) > 1 else frames[0]
        return _Sample(python, self._maybe(innermost, python.activity), at, cpu)

    def _python(self, frames: list[FrameType]) -> Location:
        """At the innermost frame of a cell, or of a script that it runs; else at the innermost frame of all."""
        op = frames[0].f_code.co_name
        begun = next((i for i, f in enumerate(frames) if f.f_code.co_filename == process.__file__), None)
        if begun:
            main = next((f for f in reversed(frames[:begun]) if f.f_globals.get("__name__") == "__main__"), None)
            if main is not None:
                inside = next(f for f in frames if f.f_code.co_filename == main.f_code.co_filename)
                return Location(Activity("python", op, source=_at(inside)), (id(inside), inside.f_lineno))
        cell = next((f for f in frames if f.f_code.co_filename in self._log.cells), None)
        if cell is None:
            return Location(Activity("python", op, source=_at(frames[0])), (id(frames[0]), frames[0].f_lineno))
        source = linecache.getline(cell.f_code.co_filename, cell.f_lineno).strip()
        return Location(Activity("python", op, cell.f_lineno, source), (id(cell), cell.f_lineno))

    def _maybe(self, frame: FrameType, python: Activity) -> Location | None:
        """Where it may be blocked outside a logged call, if something is in flight: it waits for another thread."""
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _PYTHONS:
            return None
        if self._recorder.is_on_gpu():
            activity = structs.replace(python, kind="collective", op="")
            return Location(activity, (id(frame), frame.f_lasti, self._recorder.status), is_on_gpu=True)
        if not _waits_for_a_thread(self._native_id):
            return None
        if _LOCK.search(_instruction(frame)):
            return None
        key = (id(frame), frame.f_lasti, self._recorder.status)
        return Location(structs.replace(python, kind="collective", op=""), key)

    def _in_flight(self, maybe: Location) -> Location | None:
        """The place of a thread that has waited there, if a collective or a message is in flight; None if nothing is.

        The flight recorder may have to be read as a whole, with the GIL held: at every look, that slows training down.
        """
        if self._recorder.is_in_flight():
            return maybe
        pending = self._log.pending()
        if not pending:
            return None
        return structs.replace(maybe, activity=structs.replace(maybe.activity, kind="transfer", op=pending[0].op))


# ---------------------------------------------------------------- frames of a thread, read from another


def frames_of(thread: int) -> list[FrameType]:
    """The frames of a thread (``threading.get_ident``), innermost first; empty once it has ended."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    if frame is not None and frame.f_code in TRANSPARENT:
        frame = frame.f_back
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def operation(frames: list[FrameType]) -> str | None:
    """The outermost public function of torch.distributed's API: what was called, not what it calls inside."""
    name = None
    for code in (f.f_code for f in frames):
        if code.co_filename.endswith(torch_compat.C10D_FILE) and not code.co_name.startswith(("_", "wrapper", "<")):
            name = code.co_name
    if name is None and frames and frames[0].f_code in STORE_WAITS:
        name = f"store.{frames[0].f_code.co_name}"
    return name


def store_wait(frames: list[FrameType]) -> FrameType | None:
    """The frame that waits for a key of a rendezvous store: new_group half entered, or store.wait."""
    for frame in frames[:_NEAR]:
        if frame.f_code in STORE_WAITS or frame.f_code.co_name == torch_compat.STORE_BARRIER:
            return frame
    # Group construction in C++ waits for the peers' addresses in the store. It is called from this function itself, or,
    # since torch 2.14, from one that this calls.
    if frames and _is_of_c10d(frames[0]):
        return next((f for f in frames[:_NEAR] if f.f_code.co_name == torch_compat.GROUP_HELPER), None)
    return None


def _is_of_c10d(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(torch_compat.C10D_FILE)


def store_port(wait: FrameType) -> int | None:
    """Port of the TCPStore at which this frame waits, where the cell waits for it by name."""
    store: Any = wait.f_locals.get("store")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return int(port) if isinstance(port, int) else None


def _waits_for_a_thread(native_id: int) -> bool:
    """Whether the thread waits at a lock or condition, rather than sleeps, reads or computes.

    So does a thread that only waits for the GIL: ask twice, and for its CPU time in between. A lock cannot be told from
    ``time.sleep`` without ``/proc/…/syscall``.
    """
    with contextlib.suppress(OSError, IndexError), open(f"/proc/self/task/{native_id}/syscall") as f:
        call = f.read().split(None, 1)[0]
        return call == _FUTEX if _FUTEX is not None else call not in ("running", "-1")
    with contextlib.suppress(OSError, IndexError), open(f"/proc/self/task/{native_id}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "S"
    return False


def _computes(ident: int) -> bool:
    """Whether the thread computes although this one holds the GIL: in C code, such as CUDA's that polls a GPU.

    A thread that runs Python waits meanwhile.
    """
    cpu, until = _cpu_seconds(ident), time.perf_counter() + _HOLD
    while time.perf_counter() < until:
        pass
    return _cpu_seconds(ident) - cpu > _HOLD / 4


def _cpu_seconds(ident: int) -> float:
    """CPU time of a thread (``threading.get_ident``), 0.0 where it is not known."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    except (OSError, AttributeError):
        return 0.0


def _at(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _instruction(frame: FrameType) -> str:
    """Source text of the expression that the frame is in, "" where it is not known or longer than a line."""
    code, index = frame.f_code, frame.f_lasti // 2
    start, end, begin, stop = next(itertools.islice(code.co_positions(), index, None), (None,) * 4)
    if start is None or start != end:
        return ""
    line = linecache.getline(code.co_filename, start).encode()
    return line[begin:stop].decode(errors="replace")


def _at_store(frames: list[FrameType], waiting: FrameType, python: Activity) -> Activity:
    op = operation(frames) or "store"
    needs: tuple[int, ...] = ()
    if op.startswith("store."):  # the keys that are waited for, as the user wrote them
        given = (*waiting.f_locals.get("args", ()), *waiting.f_locals.get("kwargs", {}).values())
        first = given[0] if given else None
        keys = [first] if isinstance(first, str) else first if isinstance(first, list | tuple) else []
        name = "key" if len(keys) == 1 else "keys"
        words = f"{name} {', '.join(map(repr, keys))} at the store" if keys else ""
    else:
        asked = next((f for f in frames if f.f_code.co_name == "new_group" and "ranks" in f.f_locals), None)
        needs = tuple(sorted(asked.f_locals["ranks"] or ())) if asked is not None else ()
        who = f"ranks {RankSet(needs)}" if needs else "every rank of the world"
        words = f"{who} to call {op} as well"
    is_limited = op.startswith("store.") and _timeout(waiting) <= _SOON
    return structs.replace(python, kind="store", op=op, needs=needs, waits_for=words, is_limited=is_limited)


def _timeout(wait: FrameType) -> float:
    """Seconds until a wait at a store ends by itself."""
    given = (*wait.f_locals.get("args", ()), *wait.f_locals.get("kwargs", {}).values())
    own = getattr(wait.f_locals.get("store"), "timeout", None)
    return next((limit.total_seconds() for limit in (*given, own) if isinstance(limit, timedelta)), math.inf)
