"""Steps: the iterations of a training loop, found by an optimizer's steps or marked by the cell, and their schedule."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerAction, schedule

from jdist.core.profile import ProfileOptions

_KEPT = 100_000  # Number of steps whose ends are kept.


class Steps:
    """Counts the steps of one profiled cell. Once the cell marks a step itself, optimizers are ignored.

    Of several optimizers, only the first one that steps is counted.
    """

    def __init__(self, options: ProfileOptions, on_step: Callable[[], None]) -> None:
        self.count = 0
        self.ends: list[int] = []  # Nanoseconds of the wall clock.
        self._on_step = on_step
        self._optimizer: Any = None
        self._is_marked = False
        self._thread = threading.get_ident()
        self._action = None
        if options.active:
            cycle = {"wait": options.wait, "warmup": options.warmup, "active": options.active}
            self._action = schedule(**cycle, repeat=options.repeat)

    @property
    def is_due(self) -> bool:
        """Whether the current step is to be recorded."""
        return self._action is None or self._action(self.count) in _RECORDED

    def mark(self) -> None:
        """Mark the end of a step."""
        if threading.get_ident() == self._thread:
            self._is_marked = True
            self._end()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the steps of optimizers in this context."""

        def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._is_marked or threading.get_ident() != self._thread:
                return
            if self._optimizer is None:
                self._optimizer = optimizer
            if optimizer is self._optimizer:
                self._end()

        hook = register_optimizer_step_post_hook(stepped)
        try:
            yield
        finally:
            hook.remove()
            self._optimizer = None

    def _end(self) -> None:
        self.count += 1
        if len(self.ends) < _KEPT:
            self.ends.append(time.time_ns())
        self._on_step()


_RECORDED = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
