"""An event loop whose time stands still while its process does.

A process may be stopped for a while: by SIGSTOP, a container's freezer, the suspension of a virtual machine, or a
scheduler that shares its nodes. It could hear nothing then, so the silence of others in that time says nothing about
them. On this loop, every timer and timeout counts only the time in which the process has run.
"""

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

_LOOK = 0.5  # Seconds for which the loop sleeps at most, so that it sees how time passes.
_PAUSE = 2.0  # Seconds between two looks at the time that mean that the process was stopped, or a callback blocked.


class AwakeClock:
    """Seconds, as of ``source``, less those in which it was not asked; it is asked often."""

    def __init__(self, source: Callable[[], float] = time.monotonic):
        self._source = source
        self._asked_at = source()
        self._skipped = 0.0

    def __call__(self) -> float:
        at = self._source()
        if at - self._asked_at > _PAUSE:
            self._skipped += at - self._asked_at - _LOOK
        self._asked_at = at
        return at - self._skipped


class _WakefulSelector(selectors.DefaultSelector):
    """A selector that returns at least every half second, and looks at the time before and after."""

    def __init__(self, clock: AwakeClock):
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        self._clock()
        found = super().select(_LOOK if timeout is None else min(timeout, _LOOK))
        self._clock()
        return found


class AwakeLoop(asyncio.SelectorEventLoop):
    """See above; for `asyncio.Runner`, or to be run in a thread."""

    def __init__(self) -> None:
        self._awake_clock = AwakeClock()
        super().__init__(_WakefulSelector(self._awake_clock))

    def time(self) -> float:
        return self._awake_clock()


def run(main: Any) -> Any:
    """Run a coroutine as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=AwakeLoop) as runner:
        return runner.run(main)
