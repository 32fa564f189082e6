"""Doing: where the main thread is, in the words that go over the wire, with the time since it has been there."""

from __future__ import annotations

import threading
import time

from msgspec import structs
from torch.distributed import distributed_c10d as c10d

from jdist.core.messages.observation import Observation, RankTrace
from jdist.core.observation import Activity, Call
from jdist.worker.observe.call_log import Notes
from jdist.worker.observe.call_merge import Merging
from jdist.worker.observe.flight_recorder import Recorder
from jdist.worker.observe.main_thread import Key, MainThread, Place
from jdist.worker.observe.spans import Runs
from jdist.worker.observe.stack import main_stack

_CPU_OVER = 0.1
"""Least seconds over which the share of a core is measured."""


class Observer:
    """Says what this rank is doing. Callable from any thread but the main one."""

    def __init__(self, notes: Notes, recorder: Recorder, runs: Runs):
        self._notes = notes
        self._recorder = recorder
        self._runs = runs
        self._main = MainThread(notes, recorder)
        self._lock = threading.Lock()
        self._since: tuple[Key, float] = ((), 0.0)
        self._cpu = (time.monotonic(), time.process_time())
        self._share: float | None = None

    def glance(self) -> Place | None:
        """Where the main thread is, None between cells; costs 0.1 ms. Also notes the time, for later looks."""
        if not self._runs.current:
            return None
        place = self._main.glance()
        self._seconds_in(place)
        self._cpu_share()
        return place

    def look(self, device: str, rss: int, recent: int) -> Observation:
        """The answer to a Look; ``recent`` calls of each group.

        The main thread goes on meanwhile. So how far it is in its groups is read last: it may be ahead of the call that
        is told, and never behind it, as if the rank were missing from the collective that it is in.
        """
        run = self._runs.current
        place = self._main.place() if run else None
        doing = self._idle() if place is None else self._doing(place)
        groups = self._recorder.progress(exact=recent > 0)
        calls = self._recent(recent) if recent else []
        return Observation(device, doing, rss, groups, tuple(calls), run)

    def stack(self) -> str:
        """Where the main thread is, frame by frame."""
        return main_stack(self._notes.cells)

    def prepare(self) -> None:
        """Read what a look would have to read first, so that it is answered sooner."""
        self._recorder.progress()
        if self._runs.current:
            self._recorder.entries()

    def trace(self, run: int) -> RankTrace | None:
        """The calls of a run's cell; None if it is not remembered."""
        span = self._runs.find(run)
        if span is None:
            return None
        now = time.time()
        began, ended = int(span.began * 1e9), int((span.ended or now) * 1e9)
        entries = [e for e in self._recorder.entries() if began <= e.created <= ended]
        notes = self._notes.all()  # after the entries: each of them has its note then
        within = [n for n in notes if began <= n.started <= ended]
        left_out = self._notes.left_out if within and within[0] is notes[0] else 0
        calls = self.merging().merge(within, entries)
        return RankTrace(span.run, tuple(calls), span.began, span.ended, now, left_out)

    def merging(self) -> Merging:
        """The groups as they are now."""
        known = list(c10d._world.pg_names.items())
        ranks = {str(name): tuple(c10d._world.pg_group_ranks.get(group, ())) for group, name in known}
        world = c10d.GroupMember.WORLD
        name = c10d._world.pg_names.get(world, "") if world is not None else ""
        return Merging(name, lambda group: ranks.get(group, ()), self._notes.spans())

    # ------------------------------------------------------------ now

    def _idle(self) -> Activity:
        span = self._runs.find(0)
        ended = span.ended if span is not None else None
        return Activity("idle", seconds=max(0.0, time.time() - ended) if ended else 0.0, cpu=self._cpu_share())

    def _doing(self, place: Place) -> Activity:
        seconds, cpu = self._seconds_in(place), self._cpu_share()
        calls: tuple[Call, ...] = ()
        op = place.op
        if place.kind in ("collective", "transfer"):
            calls = self._calls(place)
            if not self._main.is_at(place):  # what was read then may be of a later call
                return Activity("python", place.op, place.line, place.source, cpu=cpu)
            op = calls[0].op if calls else op
            seconds = max(0.0, time.time() - calls[0].started) if calls else seconds
        return Activity(place.kind, op, place.line, place.source, seconds, cpu, calls, place.needs, place.waits_for)

    def _calls(self, place: Place) -> tuple[Call, ...]:
        merging = self.merging()
        if place.note is not None and place.is_open:
            call = merging.of_note(place.note)
            if call is None:
                return ()
            own = [e for e in self._recorder.entries() if e.group == call.group and e.created >= place.note.started]
            if place.kind == "collective" and own:  # else it has not got so far yet, or is none that is numbered
                call = merging.of_note(place.note, number=own[-1].number) or call
            return (call,)
        if place.kind == "transfer":
            sought = self._notes.pending() if place.note is None else [place.note]
            return tuple(c for n in sought if (c := merging.of_note(n)) is not None)
        in_flight = [e for e in self._recorder.entries() if e.is_current and not e.is_done]
        if not in_flight:
            return ()
        first = in_flight[0].created
        notes = [n for n in self._notes.all() if not n.ended or n.ended >= first]
        found = [c for c in merging.merge(notes, in_flight) if c.peer is None and not c.is_done]
        waited = [c for c in found if place.note is not None and c.started == place.note.started / 1e9]
        return tuple(c if c.line else structs.replace(c, line=place.line) for c in (waited or found)[:1])

    def _recent(self, most: int) -> list[Call]:
        formed = self._notes.formed_at
        entries = [e for e in self._recorder.entries() if e.is_current and e.created >= formed]
        notes = [n for n in self._notes.all() if n.started >= formed]  # each entry has its note then
        return self.merging().merge(notes, entries, most)

    # ------------------------------------------------------------ for how long

    def _seconds_in(self, place: Place) -> float:
        now = time.monotonic()
        with self._lock:
            if self._since[0] != place.key:
                self._since = (place.key, now)
            return now - self._since[1]

    def _cpu_share(self) -> float | None:
        now, cpu = time.monotonic(), time.process_time()
        with self._lock:
            seconds = now - self._cpu[0]
            if seconds >= _CPU_OVER:
                self._share = (cpu - self._cpu[1]) / seconds
                self._cpu = (now, cpu)
            return self._share
