"""Events of widgets: what a user does with them in the notebook's page, taken by a rank's main thread.

Events come on a helper thread, as answers to queries, and wait here. They are taken where the cell calls
:func:`process_events`, in the event loop of a cell that awaits, or by a cell of jdist's own once no other runs.

Calls are counted by run, so that all ranks take an event at their call of the same number. A rank is *free*, *held*
(PrepareEvents has come: it has told a call, which it does not make before it hears more) or *bound* (DeliverEvents has
come: it takes the events at the call of that number). A lock guards all; a rank that hears nothing goes free.
"""

import asyncio
import contextvars
import itertools
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import comm
import msgspec

from jdist.core.messages.base import Ack
from jdist.core.messages.widgets import TAKEN, CommEvent, DeliverEvents, EventPoint, PrepareEvents, RankOp, StoreEvents
from jdist.worker.compat.ipykernel import errors_as_text

_AHEAD = 0.05  # Seconds for which a rank that is held can usually go on calling: the way to the client and back.
_MOST_AHEAD = 64  # Calls of it at most.
_MOST_STORED = 4  # Batches of which parts are kept.
_TURN = 0.02  # Seconds for the event loop of a cell that awaits to show that it turns.

_queues: list["EventQueue"] = []  # That of this process, if it is a rank.


def process_events() -> None:
    """Handle what the user has done with this rank's widgets: call the observers of a slider that was moved, say.

    For a cell that runs long, such as a training loop: without it, events wait for the cell's end. If all ranks call it
    at the same place of the program, they take an event of a widget that is the same on all of them at their call of
    the same number. Takes a microsecond if nothing has happened, and does nothing outside of a cluster.
    """
    for queue in _queues:
        queue.call()


def take_events() -> None:
    """Take all events that wait; jdist's own cells call it."""
    for queue in _queues:
        queue.take()


class EventQueue:
    """The events that wait on one rank. ``present_run`` is the run whose cell is on, 0 for none."""

    def __init__(self, kernel: Any, rank: Callable[[], int], present_run: Callable[[], int]):
        """Call it on the main thread, before the kernel's loop starts."""
        self._kernel = kernel
        self._rank = rank
        self._present_run = present_run
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        # Taken itself: an interrupt cannot come between taking it and what gives it back.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._run = 0
        self._calls = 0
        self._recent = deque[float](maxlen=_MOST_AHEAD)  # When the newest calls were made (time.monotonic).
        self._hold = 0.0  # Seconds for which it is held at most.
        self._held_at = 0  # The call that is not made before DeliverEvents comes; 0: it is free.
        self._stored: dict[int, list[bytes]] = {}  # Parts of large batches.
        self._waiting: deque[tuple[DeliverEvents, tuple[CommEvent, ...]]] = deque()

    def connect(self, loop: asyncio.AbstractEventLoop, context: contextvars.Context) -> None:
        """Have :func:`process_events` call this, in a process whose cells run in this loop and context."""
        self._loop, self._context = loop, context
        _queues[:] = [self]
        comm.create_comm = _numbered(comm.create_comm, self._present_run)

    def call(self) -> None:
        """One call of process_events."""
        run = self._present_run()
        with self._lock:
            if run != self._run:
                self._run, self._calls, self._held_at = run, 0, 0
                self._recent.clear()
            self._calls += 1
            self._recent.append(time.monotonic())
            if self._calls == self._held_at:
                self._changed.wait_for(lambda: self._calls != self._held_at, self._hold)
                self._held_at = 0
            if not self._waiting:
                return
        self.take(run, self._calls)

    def take(self, run: int = 0, call: int = 0) -> None:
        """Take the events of a run's calls up to this one; by default, all."""
        while True:
            with self._lock:
                due = (each for each in self._waiting if not call or (each[0].run == run and 0 < each[0].call <= call))
                if (found := next(due, None)) is None:
                    return
                self._waiting.remove(found)
            delivery, events = found
            unknown = [event.comm_ids.get(self._rank(), "") for event in events if not self._handle(event)]
            self._report({"batch": delivery.batch, "call": call, "unknown": unknown})

    def answer(self, op: RankOp) -> EventPoint | Ack:
        """The reply to a query about events; from any thread."""
        match op:
            case PrepareEvents(hold):
                return self._prepare(hold)
            case StoreEvents():
                self._store(op)
            case DeliverEvents():
                self._deliver(op)
        return Ack()

    def _prepare(self, hold: float) -> EventPoint:
        """A call that is not made before DeliverEvents comes."""
        run = self._present_run()
        if not run:
            return EventPoint(0)
        with self._lock:
            if run == self._run and self._calls:
                since = time.monotonic() - _AHEAD
                self._hold = hold
                self._held_at = self._calls + 1 + sum(at > since for at in self._recent)
                return EventPoint(run, self._held_at)
        return EventPoint(run, awaits=self._turns())

    def _store(self, op: StoreEvents) -> None:
        """Keep a part of a batch until it is delivered."""
        with self._lock:
            self._stored.setdefault(op.batch, []).append(op.part)
            if len(self._stored) > _MOST_STORED:  # its client is gone
                del self._stored[next(iter(self._stored))]

    def _deliver(self, delivery: DeliverEvents) -> None:
        """Queue events for their call, or move a batch that is queued already to another call."""
        with self._lock:
            self._held_at = 0
            self._changed.notify_all()
            data = b"".join((*self._stored.pop(delivery.batch, ()), delivery.events))
            events = msgspec.msgpack.decode(data, type=tuple[CommEvent, ...]) if data else ()
            if (known := next((each for each in self._waiting if each[0].batch == delivery.batch), None)) is not None:
                self._waiting.remove(known)
                events = known[1]
            if events:
                self._waiting.append((delivery, events))
        if delivery.call < 0 and self._loop is not None:
            self._loop.call_soon_threadsafe(self._take_in_loop, context=self._context)

    def _take_in_loop(self) -> None:
        if self._present_run():  # else a cell of jdist's own comes for them
            self.take()

    def _turns(self) -> bool:
        """Whether the main thread's event loop turns, although a cell is on."""
        turned = threading.Event()
        if self._loop is None:
            return False
        self._loop.call_soon_threadsafe(turned.set)
        return turned.wait(_TURN) and bool(self._present_run())

    def _handle(self, event: CommEvent) -> bool:
        """Whether there is the comm that the event is for. An observer's error is shown, as in any notebook."""
        comm_id = event.comm_ids.get(self._rank(), "")
        found = comm.get_comm_manager().comms.get(comm_id)  # get_comm would warn the user
        if found is None:
            return False
        content = {"comm_id": comm_id, "data": msgspec.json.decode(event.data)}
        buffers = [memoryview(each) for each in event.buffers]
        try:
            with errors_as_text(self._kernel.shell):
                found.handle_msg({"header": {}, "metadata": {}, "content": content, "buffers": buffers})
        except Exception:
            traceback.print_exc()
        return True

    def _report(self, taken: dict[str, Any]) -> None:
        """Publish it as a comm's message, behind those that the events have led to."""
        kernel = self._kernel
        content = {"comm_id": TAKEN, "data": taken}
        kernel.session.send(kernel.iopub_socket, "comm_msg", content, parent=kernel.get_parent(), ident=b"jdist")


def _numbered(create: Callable[..., Any], present_run: Callable[[], int]) -> Callable[..., Any]:
    """``create``, which makes a comm; ids are the same on ranks that make the same comms, so that what ranks say alike
    crosses the network once.
    """
    numbers: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)

    def create_comm(*args: Any, **options: Any) -> Any:
        run = present_run()
        return create(*args, **{"comm_id": f"{run}.{next(numbers[run])}", **options})

    return create_comm
