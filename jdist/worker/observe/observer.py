"""What this rank is doing: where its main thread is, for how long, and whether it has got stuck there."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable

from msgspec import Struct, structs

from jdist.core.messages.observation import Activity, Call, CallDigest, Channel, Observation, RankTrace, StackFrame
from jdist.worker.compat import torch as torch_compat
from jdist.worker.observe.call_log import OWN_FILES, CallLog, LoggedCall
from jdist.worker.observe.calls import CallMerger, digest_calls
from jdist.worker.observe.flight_recorder import FlightRecorder
from jdist.worker.observe.main_thread import Key, Location, MainThread

_KEPT = 256  # Runs that have ended whose spans are remembered.
_CPU_OVER = 0.1  # Least seconds over which the share of a core is measured.
_TICK = 0.25  # Seconds between two looks of the stall detector.


class RunSpan(Struct):
    """One run's cell. Times are the wall clock's."""

    run: int
    began: float
    ended: float | None = None


class RunSpans:
    """When each run's cell began and ended on this rank. Written by the main thread, read by any."""

    def __init__(self) -> None:
        self._spans: tuple[RunSpan, ...] = ()  # In the order in which they began. Replaced as a whole.

    def begin(self, run: int) -> None:
        spans = (*self._spans, RunSpan(run, time.time()))
        ended = sum(span.ended is not None for span in spans)
        if ended > _KEPT:
            oldest = next(i for i, span in enumerate(spans) if span.ended is not None)
            spans = (*spans[:oldest], *spans[oldest + 1 :])
        self._spans = spans

    def end(self, run: int) -> None:
        if span := self.find(run):
            span.ended = time.time()

    def find(self, run: int) -> RunSpan | None:
        """The span of the run's cell, if it is remembered; for run 0, the last cell's."""
        return next((s for s in reversed(self._spans) if run in (0, s.run)), None)

    @property
    def current(self) -> int:
        """The run whose cell is on, 0 between cells; of one that runs in the middle of another, the inner one."""
        return next((s.run for s in reversed(self._spans) if s.ended is None), 0)

    def is_due(self, run: int) -> bool:
        """Whether the run's cell is on or has not begun, and no later one has."""
        spans = self._spans  # read once, since the main thread may begin a run meanwhile
        own = next((s for s in reversed(spans) if s.run == run), None)
        last = spans[-1] if spans else None
        return (last is None or last.run < run) if own is None else own.ended is None


class Observer:
    """Reports what this rank is doing. On the main thread, only ``digests`` and ``upcoming`` may be called."""

    def __init__(self, log: CallLog, labels: Callable[[], dict[str, str]], spans: RunSpans):
        self._log = log
        self._labels = labels  # Users' names of groups, by torch's name.
        self._recorder = FlightRecorder(log, labels)
        self._spans = spans
        self._main = MainThread(log, self._recorder)
        # Where the rank is paused, with no cell in its frame.
        self.pause: Callable[[], StackFrame | None] = lambda: None
        self._lock = threading.Lock()
        self._since: tuple[Key, float] = ((), 0.0)
        self._cpu = (time.monotonic(), time.process_time())
        self._share: float | None = None

    def glance(self) -> Location | None:
        """Where the main thread is, None between cells; costs 0.1 ms. Later observations count seconds from here."""
        if not self._spans.current:
            return None
        location = self._main.glance()
        self._seconds_in(location)
        self._cpu_share()
        return location

    def observe(self, device: str, rss: int, recent: int) -> Observation:
        """The reply to Observe; ``recent`` calls of each group.

        The main thread goes on meanwhile, so how far it is in its groups is read last: it may be ahead of the call that
        is reported, but never behind it, as if the rank were missing from the collective that it is in.
        """
        run = self._spans.current
        paused = self.pause()
        doing = _paused(paused) if paused else self._activity(self._main.location() if run else None)
        expected = {call.group: call.number for call in doing.calls if call.is_expected}
        is_exact = recent > 0 or doing.kind == "idle"  # An idle rank's dump is read once, as nothing in it changes.
        groups = tuple(
            structs.replace(g, begun=max(g.begun, expected.get(g.name, 0)))
            for g in self._recorder.progress(exact=is_exact)
        )
        calls: list[Call] = []
        channels: tuple[Channel, ...] = ()
        if recent:
            channels = self._log.read_channels()
            formed = self._log.formed_at
            entries = [e for e in self._recorder.entries() if e.is_current and e.created >= formed]
            logged = [c for c in self._log.all() if c.started >= formed]  # the call of each entry is in the log then
            calls = self._merger().merge(logged, entries, recent)
        return Observation(device, doing, rss, groups, tuple(calls), run, channels=channels)

    def stack(self) -> str:
        """The main thread's stack as Python prints it, without jdist's functions around torch's; from the cell on."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        frames = [f for f in traceback.extract_stack(frame) if f.filename not in OWN_FILES]
        begun = next((i for i, f in enumerate(frames) if f.filename in self._log.cells), 0)
        return "".join(traceback.format_list(frames[begun:]))

    def prepare(self) -> None:
        """Read what an observation would have to read first, so that it is answered sooner."""
        self._recorder.progress()
        if self._spans.current:
            self._recorder.entries()

    def trace(self, run: int) -> RankTrace | None:
        """The calls of a run's cell; None if it is not remembered."""
        span = self._spans.find(run)
        if span is None:
            return None
        now = time.time()
        began, ended = int(span.began * 1e9), int((span.ended or now) * 1e9)
        entries = [e for e in self._recorder.entries() if began <= e.created <= ended]
        logged = self._log.all()  # after the entries: the call of each of them is in the log then
        within = [c for c in logged if began <= c.started <= ended]
        left_out = self._log.left_out if within and within[0] is logged[0] else 0
        calls = self._merger().merge(within, entries)
        return RankTrace(span.run, tuple(calls), span.began, span.ended, now, left_out)

    def digests(self, began: float) -> tuple[CallDigest, ...]:
        """Digests of the calls since ``began``, in seconds of the wall clock, one per group; called as a cell ends."""
        calls = self._log.since(int(began * 1e9))
        return digest_calls(calls, self._merger(), self._labels()) if calls else ()

    def upcoming(self, logged: LoggedCall, is_in_cpp: bool) -> Call | None:
        """A call that is about to begin, with the number that it will have; None if it will call nothing.

        ``is_in_cpp``: C++ will call the collectives, in groups that are not known before.
        """
        if is_in_cpp:
            return Call(logged.op, "", line=logged.line, file=logged.file, started=logged.started / 1e9)
        call = self._merger().of_logged(logged)
        if call is None or call.peer is not None:
            return call
        return structs.replace(call, number=self._begun(call.group) + 1)

    def _begun(self, group: str) -> int:
        """The number of the last collective that has begun in a group."""
        return next((g.begun for g in self._recorder.progress(exact=True) if g.name == group), 0)

    def _merger(self) -> CallMerger:
        """A merger that knows the groups as they are now."""
        ranks = {name: members for _, name, members in torch_compat.groups()}
        return CallMerger(torch_compat.world_name(), ranks, self._log.callers())

    def _activity(self, at: Location | None) -> Activity:
        if at is None:
            last = self._spans.find(0)
            idle = time.time() - last.ended if last is not None and last.ended else 0.0
            return Activity("idle", seconds=max(0.0, idle), cpu=self._cpu_share())
        found = structs.replace(at.activity, seconds=self._seconds_in(at), cpu=self._cpu_share())
        if found.kind not in ("collective", "transfer"):
            return found
        calls = self._calls(at)
        if not self._main.is_at(at):  # what was read then may be of a later call
            return structs.replace(found, kind="python", seconds=0.0)
        if not calls:
            return found
        seconds = found.seconds if at.is_wait else max(0.0, time.time() - calls[0].started)
        return structs.replace(found, op=calls[0].op, seconds=seconds, calls=calls)

    def _calls(self, at: Location) -> tuple[Call, ...]:
        merger = self._merger()
        if at.call is not None and at.is_open:
            call = merger.of_logged(at.call)
            if call is None:
                return ()
            own = [e for e in self._recorder.entries() if e.group == call.group and e.created >= at.call.started]
            if at.activity.kind == "collective" and own:  # else it has not got so far yet, or is none that is numbered
                last = own[-1].call
                call = structs.replace(call, group=last.group, number=last.number, parts=len(own))
            is_between = call.parts == len(own) and own[-1].call.is_done and torch_compat.checks_calls()
            if at.activity.kind == "collective" and at.is_still and (not own or is_between):
                number = (call.number or self._begun(call.group)) + 1
                call = structs.replace(call, number=number, parts=len(own) + 1, is_expected=True)
            return (call,)
        if at.activity.kind == "transfer":
            sought = self._log.pending() if at.call is None else [at.call]
            return tuple(c for logged in sought if (c := merger.of_logged(logged)) is not None)
        in_flight = [e for e in self._recorder.entries() if e.is_current and not e.call.is_done]
        if not in_flight:
            return ()
        first = in_flight[0].created
        recent = [c for c in self._log.all() if not c.ended or c.ended >= first]
        found = [c for c in merger.merge(recent, in_flight) if c.peer is None and not c.is_done]
        waited = [c for c in found if at.call is not None and c.started == at.call.started / 1e9]
        return tuple(c if c.line else structs.replace(c, line=at.activity.line) for c in (waited or found)[:1])

    def _seconds_in(self, location: Location) -> float:
        now = time.monotonic()
        with self._lock:
            if self._since[0] != location.key:
                self._since = (location.key, now)
            return now - self._since[1]

    def _cpu_share(self) -> float | None:
        now, cpu = time.monotonic(), time.process_time()
        with self._lock:
            seconds = now - self._cpu[0]
            if seconds >= _CPU_OVER:
                self._share = (cpu - self._cpu[1]) / seconds
                self._cpu = (now, cpu)
            return self._share


def _paused(at: StackFrame) -> Activity:
    return Activity("paused", at.function, at.line if not at.file else None, at.source)


class StallDetector:
    """Calls ``on_stall(run)`` once for each call in which the main thread has been blocked for a whole tick.

    It ticks on the loop of jdist's own thread, and only while a cell is running or due.
    """

    def __init__(self, observer: Observer, spans: RunSpans, on_stall: Callable[[int], None]):
        self._observer = observer
        self._spans = spans
        self._on_stall = on_stall
        self._newest = 0
        self._next: asyncio.TimerHandle | None = None
        self._last: Key | None = None
        self._reported: Key | None = None

    def expect(self, run: int) -> None:
        """A cell was sent to the main thread."""
        self._newest = run
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._next = None
        if not self._spans.is_due(self._newest) and not self._spans.current:
            self._last = self._reported = None
            return
        self._next = asyncio.get_running_loop().call_later(_TICK, self._tick)
        at = self._observer.glance() if self._observer.pause() is None else None
        key = at.key if at is not None else None
        # Outside a call of its own a glance reports a collective or transfer only for the place of the one before.
        is_blocked = at is not None and at.activity.kind in ("collective", "transfer", "store")
        if at is not None and (at.activity.kind == "store" or at.is_open or at.is_wait):
            is_blocked = key == self._last
        if is_blocked and key != self._reported:
            self._reported = key
            self._on_stall(self._spans.current)
        self._last = key
