"""PanelPart: buttons whose errors and results are shown beside them, for the parts of the panel."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any

from jdist.client.blocking import bridge
from jdist.core.errors import JdistError
from jdist.notebook.panel import html, widgets
from jdist.notebook.panel.comm_thread import ClickDelivery, ParentlessContext
from jdist.notebook.text.remedy_text import worded


class PanelPart:
    """Handles clicks, and writes its widgets, apart from the cell that made it."""

    def __init__(self, kernel: Any):
        self._parentless = ParentlessContext(kernel)
        self._delivery = ClickDelivery(kernel)
        self._message = widgets.markup()

    def _button(self, text: str, tooltip: str, on_click: Callable[[], object], icon: str = "", style: str = "") -> Any:
        """A button whose errors are shown in the message."""

        def click() -> None:
            self._delivery.record_click()
            try:
                on_click()
            except JdistError as e:
                self._show_message(worded(e), is_error=True)
            self._after_click()

        return widgets.button(text, tooltip, self._parentless.wrap(click), icon, style)

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
