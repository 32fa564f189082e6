"""PanelPart: buttons whose errors and results are shown beside them, and how clicks reach the kernel while a cell runs.

A front end that can sends a widget's messages to a subshell of the kernel, a thread beside the one in which cells run
(JupyterLab since 4.4, ipykernel since 7.0). But ipykernel (7.4) delivers them where the widget was last written from,
so one that was made by a cell receives clicks only after the cell. Written without a parent message, it receives them
where the front end says, hence :class:`ParentlessContext`.
"""

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import ipywidgets

from jdist.client.blocking import bridge
from jdist.core.errors import JdistError
from jdist.notebook.panel import html, widgets
from jdist.notebook.text.remedy_text import worded

P = ParamSpec("P")
R = TypeVar("R")

_TICK = 5.0  # Seconds between two ticks.
_PATIENCE = 15.0  # Seconds without a tick after which the panel counts as hidden.
LATE = (  # The panel's warning where clicks are late.
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


class Visibility:
    """Whether a browser still shows the panel: its ``widget``, a hidden Play, ticks there while that matters.

    The kernel is not informed when a page is closed, but then the ticks end. Without ``can_tick()`` (ticks can arrive
    now) the panel counts as visible. ``on_return`` is called when it becomes visible again.
    """

    def __init__(
        self,
        can_tick: Callable[[], bool],
        on_return: Callable[[], None],
        context: ParentlessContext,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._can_tick = can_tick
        self._on_return = on_return
        self._context = context
        self._clock = clock
        self._ticked_at = clock()
        layout = ipywidgets.Layout(display="none")
        self.widget: Any = ipywidgets.Play(interval=int(_TICK * 1000), max=1_000_000_000, layout=layout)
        self.widget.observe(self._tick, "value")

    def _tick(self, _: object) -> None:
        was_visible = self.is_visible()
        self._ticked_at = self._clock()
        if not was_visible:
            self._on_return()

    def begin(self) -> None:
        """Start the ticks."""
        self._ticked_at = self._clock()
        self.probe()

    def probe(self) -> None:
        """Make a page that was loaded meanwhile begin to tick at once."""
        self.end()
        self._context.run(setattr, self.widget, "playing", True)

    def end(self) -> None:
        """Stop the ticks."""
        self._context.run(setattr, self.widget, "playing", False)

    def is_visible(self) -> bool:
        """Whether a browser shows the panel, or that cannot be known."""
        return not self._can_tick() or self._clock() - self._ticked_at < _PATIENCE


class PanelPart:
    """Handles clicks, and writes its widgets, apart from the cell that made it."""

    def __init__(self, kernel: Any):
        self._parentless = ParentlessContext(kernel)
        self._delivery = ClickDelivery(kernel)
        self._message = widgets.markup()

    def _button(self, text: str, tooltip: str, on_click: Callable[[], object], icon: str = "", style: str = "") -> Any:
        """A button as wide as its words, whose errors are shown in the message."""

        def click(_: object) -> None:
            self._delivery.record_click()
            try:
                on_click()
            except JdistError as e:
                self._show_message(worded(e), is_error=True)
            self._after_click()

        layout = ipywidgets.Layout(width="auto", max_width="100%", align_self="flex-start")
        made = ipywidgets.Button(description=text, tooltip=tooltip, icon=icon, button_style=style, layout=layout)
        made.on_click(self._parentless.wrap(click))
        return made

    def _after_click(self) -> None:
        """Called after each click."""

    def _show_message(self, text: str, *, is_error: bool = False) -> None:
        self._message.value = html.draw_message(text, is_error)

    def _submit(self, text: str, work: Coroutine[Any, Any, str]) -> concurrent.futures.Future[None]:
        """Do it without waiting, as this thread may be the one that the next click needs; show ``work``'s result."""
        self._show_message(f"{text} …")

        async def work_and_report() -> None:
            try:
                self._parentless.run(self._after_work, await work)
            except (JdistError, OSError) as e:  # TimeoutError is an OSError
                text = worded(e) if isinstance(e, JdistError) else str(e)
                self._parentless.run(self._after_work, text, is_error=True)
            except asyncio.CancelledError:
                self._parentless.run(self._after_work, "cancelled; what was begun is ended")
                raise

        return asyncio.run_coroutine_threadsafe(work_and_report(), bridge().loop)

    def _after_work(self, text: str, *, is_error: bool = False) -> None:
        """Called with the result of work that was submitted."""
        self._show_message(text, is_error=is_error)
