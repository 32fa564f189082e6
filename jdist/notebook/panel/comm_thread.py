"""How a widget's messages reach the kernel while a cell runs, and whether they do.

A front end that can sends them to a subshell of the kernel, a thread beside the one in which cells run (JupyterLab
since 4.4, ipykernel since 7.0). But ipykernel (7.4) delivers a widget's messages where the widget was last written
from, so one that was made by a cell receives clicks only after the cell. Written without a parent message, it receives
them where the front end says, hence :class:`ParentlessContext`.
"""

import contextvars
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# The panel's warning where clicks are late.
LATE = (
    "Here the buttons work only between cells: this front end does not hand clicks to the kernel while a cell runs. "
    "Until then, the Stop button of the notebook interrupts the ranks, and so does `jdist interrupt` in a terminal."
)


class ParentlessContext:
    """Runs functions, from any thread, as if no message had caused them."""

    def __init__(self, kernel: Any):
        self._context = contextvars.copy_context()
        parent = getattr(kernel, "_shell_parent", None)  # the public way would change other threads' parent, too
        if isinstance(parent, contextvars.ContextVar):
            self._context.run(parent.set, {})

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this context."""
        return self._context.copy().run(function, *args, **kwargs)

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function that does so whenever it is called."""
        return lambda *args, **kwargs: self.run(function, *args, **kwargs)


class ClickDelivery:
    """Whether clicks arrive while a cell runs, as far as is known."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._is_late: bool | None = None

    def record_click(self) -> None:
        """Record that a click has arrived in this thread."""
        self._is_late = threading.current_thread() is threading.main_thread()

    @property
    def is_late(self) -> bool:
        """Whether clicks arrive between cells only. Before the first click: whether no front end made a subshell."""
        if self._is_late is not None:
            return self._is_late
        if not getattr(self._kernel, "_supports_kernel_subshells", False):
            return True
        manager = getattr(getattr(self._kernel, "shell_channel_thread", None), "manager", None)
        return not (manager is not None and manager.list_subshell())
