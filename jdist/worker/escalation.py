"""The ladder that brings a stuck main thread back: signal, cut, abort, again and again until the run has ended.

Every rank must climb it at the same time, since a collective ends only when all its ranks' connections are cut. The
generation is dead afterwards; the namespace is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from jdist.worker.gloo.connections import Endpoint, abort_nccl, abort_recv_any, cut, quiet, where
from jdist.worker.groups.registry import Groups
from jdist.worker.kernel.sigint import interrupt_main

_AGAIN = 0.1
"""Seconds between two rungs: a loop that swallows exceptions re-enters its collective in between."""
_NOT_BEGUN = 0.01
_QUIET = 10
"""Rungs until connections are shut down on both sides, come what may."""


def free_main(
    is_running: Callable[[], bool],
    idle: threading.Event,
    listeners: Collection[Endpoint],
    groups: Groups,
    deadline: float,
) -> bool:
    """Interrupt the main thread until its run has ended; returns whether it has, by ``deadline`` (time.monotonic).

    Parameters
    ----------
    is_running
        Whether the run to be ended is still on (or has not begun yet).
    idle
        Set by the end of a run.
    listeners
        Every rank's gloo listeners. Empty: no collective can be on, so only signal; the generation stays alive.
    groups
        This rank's process groups.
    deadline
        Absolute, in seconds of ``time.monotonic``.
    """
    aborting: threading.Thread | None = None
    rung = 0
    while is_running():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        interrupt_main()  # first: what the cut ends then becomes a KeyboardInterrupt
        rung += 1
        if listeners:
            _cut_all(listeners, groups, is_hard=rung > _QUIET)
            if aborting is None and groups.has_nccl:
                # May block for as long as NCCL likes, which must not hold up the signals.
                aborting = threading.Thread(target=abort_nccl, name="jdist-abort", daemon=True)
                aborting.start()
        if idle.wait(min(_AGAIN, left)) and is_running():
            # The event is still set from the run before: this one has not begun.
            threading.Event().wait(min(_NOT_BEGUN, left))
    return True


def _cut_all(listeners: Collection[Endpoint], groups: Groups, *, is_hard: bool) -> None:
    at = where(threading.main_thread().ident or 0, lambda _: False)
    quiet({*listeners, *groups.listeners})
    if is_hard:
        cut({*listeners, *groups.listeners})
    abort_recv_any()
    if at.in_store_wait:
        groups.end_making()
        if at.store_port is not None and at.store_port not in groups.store_ports:
            cut((), (at.store_port,))  # a store that the cell made for itself
