"""Screens show mime bundles: in a notebook's cell output, or as a terminal's lines."""

import contextlib
import contextvars
import html
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from getpass import getpass
from pathlib import Path
from typing import Any, Protocol

from traitlets.log import get_logger

from jdist.notebook.text import ansi, bars

Bundle = Mapping[str, Any]  # Text by mime type; JSON values for types that end in `json`.
Update = Callable[[Bundle], None]  # Shows another bundle in the place of the one that it belongs to.
Status = Callable[[], Sequence[str]]  # The lines that say how far a run is.

_WITHOUT_UPDATES = {"jupyter-run", "jupyter-console", "jupyter-qtconsole"}  # They ignore update_display_data.
_LOGGING = {"jupyter-nbconvert", "jupyter-execute", "nbconvert"}  # They execute notebooks, and write a log.
_FIRST_LOGGED, _LONGEST_SILENCE = 30.0, 600.0  # Seconds of silence until a log is told how far a run is.


class Screen(Protocol):
    """The place where a session shows things and asks the user."""

    is_live: bool  # Whether something shown can be replaced.
    has_page: bool  # Whether a page with jdist's extension may show it.

    def show(self, bundle: Bundle) -> Update:
        """Show a new thing, and return what replaces it."""

    def ask(self, prompt: str, is_password: bool) -> str:
        """Read a line from the user."""


class Replaceable:
    """One place on a screen: shown when there is something to show, then replaced."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._update: Update | None = None

    @property
    def is_shown(self) -> bool:
        return self._update is not None

    def show(self, bundle: Bundle) -> None:
        """Show this, in place of what was shown before."""
        if self._update is None:
            self._update = self._screen.show(bundle)
        else:
            self._update(bundle)


class NotebookScreen:
    """A notebook's cell output."""

    is_live = True
    has_page = True

    def show(self, bundle: Bundle) -> Update:
        """Updates may come from other threads: they carry the cell's own context along."""
        import IPython.display

        display: Any = IPython.display.display

        context, lock = contextvars.copy_context(), threading.Lock()
        handle = display(dict(bundle), raw=True, display_id=True)

        def update(bundle: Bundle) -> None:
            with lock:
                context.run(handle.update, dict(bundle), raw=True)

        return update

    def show_status(self, status: Status) -> None:
        """Say how far a run is, where that cannot be seen from what was shown."""

    def end_status(self) -> None:
        """Remove what ``show_status`` has shown."""

    def ask(self, prompt: str, is_password: bool) -> str:
        self.end_status()
        return getpass(prompt) if is_password else input(prompt)


class _Silence:
    """Tells when a log should be told how far a run is: after some silence, and then less and less often."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self.end()

    def end(self) -> None:
        """Something was written."""
        self._wait = _FIRST_LOGGED
        self._until = self._clock() + self._wait

    def is_due(self) -> bool:
        if self._clock() < self._until:
            return False
        self._wait = min(2 * self._wait, _LONGEST_SILENCE)
        self._until = self._clock() + self._wait
        return True


class LoggedNotebookScreen(NotebookScreen):
    """A notebook that a program executes while its log shows the first state of each output only: the kernel's own
    log, which the program passes on, says now and then how far a run is.
    """

    has_page = False

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._silence = _Silence(clock)

    def show(self, bundle: Bundle) -> Update:
        self._silence.end()
        return super().show(bundle)

    def show_status(self, status: Status) -> None:
        log = get_logger()
        handlers = (log.logger if isinstance(log, logging.LoggerAdapter) else log).handlers
        streams = [each.stream for each in handlers if isinstance(each, logging.StreamHandler)]
        if streams and self._silence.is_due():
            streams[0].write("".join(f"{line}\n" for line in status()))
            streams[0].flush()


class TerminalScreen(NotebookScreen):
    """A terminal or a log: what changes is written again as a new line. Below these, a terminal shows how far a run is,
    in lines that are written over; a log is told now and then.
    """

    is_live = False
    has_page = False

    def __init__(self, is_terminal: bool | None = None, clock: Callable[[], float] = time.monotonic):
        self._is_terminal = is_terminal  # None: it is one if stdout is.
        self._silence = _Silence(clock)
        self._rows = 0  # Lines of the status that stand above the cursor.
        self._lock = threading.RLock()  # A run in the background writes on a thread of its own.

    def show(self, bundle: Bundle) -> Update:
        last = ""

        def update(bundle: Bundle) -> None:
            nonlocal last
            if bundle["text/plain"] != last:
                last = bundle["text/plain"]
                self._silence.end()
                self._write(last + "\n")

        update(bundle)
        return update

    def show_status(self, status: Status) -> None:
        if self._can_write_over:
            columns, rows = shutil.get_terminal_size()
            lines = [bars.fit(ansi.strip(line), columns - 1) for line in status()][2 - rows :]
            with self._lock:
                self._write("".join(f"{line}\n" for line in lines))
                self._rows = len(lines)
        elif self._silence.is_due():
            self._write("".join(f"{ansi.strip(line)}\n" for line in status()))

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
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
        names = {Path(word).name for word in words}
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
