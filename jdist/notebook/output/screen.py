"""Screens show mime bundles: in a notebook's cell output, or as a terminal's lines."""

import contextlib
import contextvars
import functools
import html
import importlib
import json
import logging
import os
import shutil
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from getpass import getpass
from pathlib import Path
from typing import Any, Protocol

import psutil
from traitlets.log import get_logger

from jdist.notebook.text import folding, markup

Bundle = Mapping[str, Any]  # Text by mime type; JSON values for types that end in `json`.
Update = Callable[[Bundle], None]  # Shows another bundle in the place of the one that it belongs to.
Status = Callable[[], Sequence[str]]  # The lines that say how far a run is.

_WITHOUT_UPDATES = {"jupyter-run", "jupyter-console", "jupyter-qtconsole"}  # They ignore update_display_data.
_LOGGING = {"jupyter-nbconvert", "jupyter-execute", "nbconvert"}  # They execute notebooks, and write a log.
_LONGEST_SILENCE = 120.0  # Seconds until a log in which nothing was written gets a line of progress.


class Screen(Protocol):
    """The place where a session shows things and asks the user."""

    is_live: bool  # Whether something shown can be replaced.
    has_page: bool  # Whether a page with jdist's extension may show it.

    def show(self, bundle: Bundle) -> Update:
        """Show a new thing, and return what replaces it."""

    def ask(self, prompt: str, is_password: bool) -> str:
        """Read a line from the user."""


class Replaceable:
    """One place on a screen: shown when there is something to show, then replaced.

    It is where output goes when the place is made, although by the time of an update other cells may run.
    """

    def __init__(self, screen: Screen):
        self.place = screen.place() if isinstance(screen, NotebookScreen) else screen
        self.is_live = self.place.is_live
        self._update: Update | None = None

    @property
    def is_shown(self) -> bool:
        return self._update is not None

    def show(self, bundle: Bundle) -> None:
        """Show this, in place of what was shown before."""
        if self._update is None:
            self._update = self.place.show(bundle)
        else:
            self._update(bundle)


class OutputPlace(Protocol):
    """Where output goes at a moment."""

    is_live: bool  # Whether something shown can be replaced.

    def show(self, bundle: Bundle) -> Update:
        """Show a new thing, and return what replaces it."""


class NotebookPlace:
    """The output of a notebook's cell, of whatever captures that output, or of a widget.

    Updates may come from other threads, and while other cells run: they carry the cell's context and publisher along.
    """

    def __init__(self) -> None:
        from IPython import get_ipython

        shell: Any = get_ipython()
        self.is_live = not _is_output_widget(shell)
        self._publisher = shell.display_pub
        self._context, self._lock = contextvars.copy_context(), threading.Lock()

    def show(self, bundle: Bundle) -> Update:
        from IPython.core.displaypub import CapturingDisplayPublisher

        transient = {"display_id": uuid.uuid4().hex}
        self._publish(transient, bundle)
        if isinstance(self._publisher, CapturingDisplayPublisher):  # it would keep each update beside the others
            captured = next(each for each in self._publisher.outputs if each["transient"] is transient)
            return lambda bundle: captured.update(data=dict(bundle))
        return functools.partial(self._publish, transient, update=self.is_live)

    def _publish(self, transient: dict[str, str], bundle: Bundle, *, update: bool = False) -> None:
        with self._lock:
            self._context.run(self._publisher.publish, dict(bundle), transient=transient, update=update)


def _is_output_widget(shell: Any) -> bool:
    """Whether output goes into a widget, ``with ipywidgets.Output()``. Front ends ignore updates there."""
    if "ipywidgets" not in sys.modules or not hasattr(shell, "get_parent"):
        return False
    widgets = importlib.import_module("ipywidgets")  # waits for another thread that imports it at present
    request = shell.get_parent().get("header", {}).get("msg_id")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ipywidgets has no other way to list its widgets
        known = list(getattr(widgets.Widget, "widgets", {}).values())
    return any(isinstance(each, widgets.Output) and each.msg_id == request for each in known)


class NotebookScreen:
    """A notebook's cell output."""

    is_live = True
    has_page = True

    def place(self) -> "OutputPlace":
        """Where output goes at present."""
        return NotebookPlace()

    def show(self, bundle: Bundle) -> Update:
        return self.place().show(bundle)

    def show_status(self, status: Status) -> None:
        """Say how far a run is, where that cannot be seen from what was shown."""

    def end_status(self) -> None:
        """Remove what ``show_status`` has shown."""

    def ask(self, prompt: str, is_password: bool) -> str:
        self.end_status()
        return getpass(prompt) if is_password else input(prompt)


class LoggedNotebookScreen(NotebookScreen):
    """A notebook that a program executes while its log shows the first state of each output only: the kernel's own
    log, which the program passes on, gets a line of progress now and then.
    """

    has_page = False

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._due_at = clock() + _LONGEST_SILENCE

    def place(self) -> OutputPlace:
        self._due_at = self._clock() + _LONGEST_SILENCE
        return super().place()

    def show_status(self, status: Status) -> None:
        log = get_logger()
        handlers = (log.logger if isinstance(log, logging.LoggerAdapter) else log).handlers
        streams = [each.stream for each in handlers if isinstance(each, logging.StreamHandler)]
        if streams and self._clock() >= self._due_at:
            streams[0].write(f"{markup.strip(status()[-1])}\n")
            streams[0].flush()
            self._due_at = self._clock() + _LONGEST_SILENCE


class TerminalScreen(NotebookScreen):
    """A terminal or a log: what changes is written again as a new line. Below these, a terminal shows how far a run is,
    in lines that are written over; a log gets a line of progress now and then.
    """

    is_live = False
    has_page = False

    def __init__(self, is_terminal: bool | None = None, clock: Callable[[], float] = time.monotonic):
        self._is_terminal = is_terminal  # None: it is one if stdout is.
        self._clock = clock
        self._due_at = clock() + _LONGEST_SILENCE  # The time of the next line of progress in a log.
        self._rows = 0  # Lines of the status that stand above the cursor.
        self._lock = threading.RLock()  # A run in the background writes on a thread of its own.

    def place(self) -> OutputPlace:
        return self

    def show(self, bundle: Bundle) -> Update:
        last = ""

        def update(bundle: Bundle) -> None:
            nonlocal last
            if bundle["text/plain"] != last:
                last = bundle["text/plain"]
                self._due_at = self._clock() + _LONGEST_SILENCE
                self._write(last + "\n")

        update(bundle)
        return update

    def show_status(self, status: Status) -> None:
        if self._can_write_over:
            columns, rows = shutil.get_terminal_size()
            lines = [folding.fit(markup.strip(line), columns - 1) for line in status()][2 - rows :]
            with self._lock:
                self._write("".join(f"{line}\n" for line in lines))
                self._rows = len(lines)
        elif self._clock() >= self._due_at:
            self._due_at = self._clock() + _LONGEST_SILENCE
            self._write(f"{markup.strip(status()[-1])}\n")

    def end_status(self) -> None:
        self._write("")

    @property
    def _can_write_over(self) -> bool:
        if self._is_terminal is None:
            return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        return self._is_terminal

    def _write(self, text: str) -> None:
        """Write in the place of the status."""
        with self._lock:
            over, self._rows = f"\x1b[{self._rows}F\x1b[J" if self._rows else "", 0
            if over or text:
                sys.stdout.write(over + text)
                sys.stdout.flush()


def kernel_screen() -> Screen:
    """The screen of a kernel: lines where the program that started it shows no updates of what was displayed."""
    with contextlib.suppress(psutil.Error):
        words = psutil.Process(os.getppid()).cmdline()
        names = {Path(word).name.removesuffix(".exe") for word in words}
        if names & _WITHOUT_UPDATES:
            return TerminalScreen(is_terminal="jupyter-console" in names)
        if names & _LOGGING or {"papermill", "--log-output"} <= names:
            return LoggedNotebookScreen()
    return NotebookScreen()


def plain(text: str) -> Bundle:
    """A line of text as a bundle."""
    return {"text/plain": text}


def line(text: str) -> Bundle:
    """A line of text and HTML, which may stand in the place of something with HTML."""
    return {"text/plain": text, "text/html": f"<div>{html.escape(text)}</div>"}


def weight(bundle: Bundle) -> int:
    """The number of characters that are sent to show it."""
    return sum(len(v) if isinstance(v, str) else len(json.dumps(v, ensure_ascii=False)) for v in bundle.values())
