"""Freeing a stuck main thread step by step: signal, end connections, abort, again and again until the run has ended.

All ranks must do this at the same time, since a collective ends only when all its ranks' connections have ended. The
generation is dead afterwards; the namespace is not. Connections are ended in each step, but the main thread is
signalled only as long as :class:`InterruptPolicy` says: a cell's own handler is left to finish.
"""

import math
import threading
import time
from collections.abc import Callable, Collection

from jdist.worker.cells.signals import SafeSigint, interrupt_main
from jdist.worker.groups.gloo import Endpoint, abort_receives, end_reading, shut_down, waits
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.observe.main_thread import frames_of, store_port, store_wait

_AGAIN = 0.1  # Seconds between two steps: a loop that swallows exceptions re-enters its collective in between.
_NOT_BEGUN = 0.01
_GENTLE = 10  # Steps until connections are shut down on both sides, come what may.
_NOTICEABLE = 0.5  # Seconds after the interrupt from which on it is reported that the cell goes on.


class InterruptPolicy:
    """When the main thread is signalled: until the interrupt has been raised in the cell, and then not while the cell
    handles it, for ``patience`` seconds.

    The interrupt is raised again at once where it was lost: in a destructor or a callback, whose exceptions Python
    ignores, or in code that swallowed it and goes on with collectives. Where it was swallowed and nothing more is
    known, it is raised again after ``grace`` seconds. From then on, or once :meth:`insist` was called, the main
    thread is signalled at each step.
    """

    def __init__(
        self,
        sigint: SafeSigint,
        newest_call: Callable[[], int],  # When the main thread last began a call of torch.distributed (time.time_ns).
        grace: float,
        patience: float,
        report: Callable[[bool, float], None],  # Called once: whether a handler runs, and for how many seconds it may.
        since: float = math.inf,  # An interrupt that was raised after this moment (time.monotonic) is this one.
    ):
        self._sigint = sigint
        self._newest_call = newest_call
        self._grace = grace
        self._patience = patience
        self._report = report
        self._is_reported = False
        self._insists_from: float | None = None
        sigint.forget(since)

    def insist(self) -> None:
        """The user has interrupted again: signal the main thread until the cell has ended."""
        self._insists_from = time.monotonic()

    @property
    def deadline(self) -> float | None:
        """When the main thread should be free; None while the cell is left alone."""
        return None if self._insists_from is None else self._insists_from + self._grace

    def may_signal(self) -> bool:
        now, at = time.monotonic(), self._sigint.raised_at
        if self._insists_from is not None:
            self._sigint.is_insistent = True
            return True
        if at is None:
            return True
        is_handled = self._sigint.is_handled
        if not is_handled and self._newest_call() > at.wall:
            self._sigint.is_insistent = True  # else a loop that swallows each interrupt never ends
            return True
        allowed = self._patience if is_handled else self._grace
        if now - at.monotonic > allowed:
            self.insist()
        elif now - at.monotonic > _NOTICEABLE and not self._is_reported:
            self._is_reported = True
            self._report(is_handled, allowed)
        return False


def free_main_thread(
    is_running: Callable[[], bool],
    idle: threading.Event,
    listeners: Collection[Endpoint],
    groups: GroupRegistry,
    deadline: Callable[[], float | None],
    may_signal: Callable[[], bool] = lambda: True,
) -> bool:
    """Interrupt the main thread until its run has ended; returns whether it has, by ``deadline()`` (time.monotonic).

    ``is_running`` says whether that run is still on or has not begun yet; ``idle`` is set when a run ends.
    ``listeners`` are every rank's gloo listeners. If empty, no collective can be on: the thread is only signalled, and
    the generation stays alive.
    """
    step, generation = 0, waits.generation
    while is_running():
        until = deadline()
        left = _AGAIN if until is None else until - time.monotonic()
        if left <= 0:
            return False
        if may_signal():
            interrupt_main()  # first: what the end of a connection raises then becomes a KeyboardInterrupt
        step += 1
        if listeners:
            waits.end(generation)
            _end_connections(listeners, groups, is_hard=step > _GENTLE)
        if listeners and step == 1:
            groups.abort_nccl()
        if idle.wait(min(_AGAIN, left)) and is_running():
            time.sleep(min(_NOT_BEGUN, left))  # the event is still set from the run before: this one has not begun
    return True


def _end_connections(listeners: Collection[Endpoint], groups: GroupRegistry, *, is_hard: bool) -> None:
    waiting = store_wait(frames_of(threading.main_thread().ident or 0))
    every = {*listeners, *groups.listeners}
    end_reading(every)
    if is_hard:
        shut_down(every)
        groups.abort_nccl_creation()
    abort_receives()
    groups.end_others()
    if waiting is not None:
        groups.abort_group_creation()
        port = store_port(waiting)
        if port is not None and port != groups.store_client.port:
            shut_down((), port)  # a store that the cell made for itself
