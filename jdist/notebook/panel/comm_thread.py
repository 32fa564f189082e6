"""Clicks: how a widget's messages reach the kernel while a cell runs, and whether they do.

A front end that can sends them to a subshell of the kernel, a thread beside the one in which cells run (JupyterLab
since 4.4, ipykernel since 7.0). ipykernel (7.4) hands what arrives for a widget to where that has last been written
from, though, so one that was made by a cell hears of clicks only after the cell. Written without a parent message, it
hears of them where the front end says, hence :class:`Apart`.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Apart:
    """Runs functions as if no message had caused them. From any thread."""

    def __init__(self, kernel: Any):
        self._context = contextvars.copy_context()
        parent = getattr(kernel, "_shell_parent", None)  # there is no public way that does not change other threads'
        if isinstance(parent, contextvars.ContextVar):
            self._context.run(parent.set, {})

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Its result."""
        return self._context.copy().run(function, *args, **kwargs)

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, so run whenever it is called."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.run(function, *args, **kwargs)

        return call


class Delivery:
    """Whether clicks arrive while a cell runs, as far as is known."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._late: bool | None = None

    def note(self) -> None:
        """A click has arrived, in this thread."""
        self._late = threading.current_thread() is threading.main_thread()

    @property
    def is_late(self) -> bool:
        """They arrive between cells only. Until one has been seen: no front end has made a subshell."""
        if self._late is not None:
            return self._late
        if not getattr(self._kernel, "_supports_kernel_subshells", False):
            return True
        manager = getattr(getattr(self._kernel, "shell_channel_thread", None), "manager", None)
        return not (manager is not None and manager.list_subshell())


LATE = (
    "Here the buttons work only between cells: this front end does not hand clicks to the kernel while a cell runs. "
    "Until then, the Stop button of the notebook interrupts the ranks, and so does `jdist interrupt` in a terminal."
)
"""What the panel says where clicks are late."""
