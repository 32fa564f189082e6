"""Freeing a stuck main thread step by step: signal, end connections, abort, again and again until the run has ended.

Every rank must do so at the same time, since a collective ends only when all its ranks' connections have ended. The
generation is dead afterwards; the namespace is not.
"""

import threading
import time
from collections.abc import Callable, Collection

from jdist.worker.compat.torch import abort_nccl
from jdist.worker.gloo.callbacks import waits
from jdist.worker.gloo.connections import Endpoint, abort_receives, end_reading, shut_down
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.kernel.sigint import interrupt_main
from jdist.worker.observe.main_thread import frames_of, store_port, store_wait

_AGAIN = 0.1  # Seconds between two steps: a loop that swallows exceptions re-enters its collective in between.
_NOT_BEGUN = 0.01
_GENTLE = 10  # Steps until connections are shut down on both sides, come what may.


def free_main_thread(
    is_running: Callable[[], bool],
    idle: threading.Event,
    listeners: Collection[Endpoint],
    groups: GroupRegistry,
    deadline: float,
) -> bool:
    """Interrupt the main thread until its run has ended; returns whether it has, by ``deadline`` (time.monotonic).

    ``is_running`` says whether that run is still on or has not begun yet; ``idle`` is set when a run ends.
    ``listeners`` are every rank's gloo listeners. If empty, no collective can be on: the thread is only signalled, and
    the generation stays alive.
    """
    step = 0
    while is_running():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        interrupt_main()  # first: what the end of a connection raises then becomes a KeyboardInterrupt
        step += 1
        if listeners:
            _end_connections(listeners, groups, is_hard=step > _GENTLE)
        if listeners and step == 1 and groups.has_nccl:
            # May block for as long as NCCL likes, which must not hold up the signals.
            threading.Thread(target=abort_nccl, name="jdist-abort", daemon=True).start()
        if idle.wait(min(_AGAIN, left)) and is_running():
            time.sleep(min(_NOT_BEGUN, left))  # the event is still set from the run before: this one has not begun
    return True


def _end_connections(listeners: Collection[Endpoint], groups: GroupRegistry, *, is_hard: bool) -> None:
    waiting = store_wait(frames_of(threading.main_thread().ident or 0))
    every = {*listeners, *groups.listeners}
    end_reading(every)
    waits.end()
    if is_hard:
        shut_down(every)
    abort_receives()
    groups.end_others()
    if waiting is not None:
        groups.abort_group_creation()
        port = store_port(waiting)
        if port is not None and port != groups.store_client.port:
            shut_down((), port)  # a store that the cell made for itself
