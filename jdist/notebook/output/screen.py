"""Screens show mime bundles: in a notebook's cell output, or as a terminal's lines."""

import contextlib
import contextvars
import html
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from getpass import getpass
from pathlib import Path
from typing import Any, Protocol

Bundle = Mapping[str, Any]  # Text by mime type; JSON values for types that end in `json`.
Update = Callable[[Bundle], None]  # Shows another bundle in the place of the one that it belongs to.


_WITHOUT_UPDATES = {"jupyter-run", "jupyter-console", "jupyter-qtconsole"}  # They ignore update_display_data.


class Screen(Protocol):
    """The place where a session shows things and asks the user."""

    is_live: bool  # Whether something shown can be replaced.

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

    def ask(self, prompt: str, is_password: bool) -> str:
        return getpass(prompt) if is_password else input(prompt)


class TerminalScreen(NotebookScreen):
    """A terminal: what changes is written again as a new line."""

    is_live = False

    def show(self, bundle: Bundle) -> Update:
        last = ""

        def update(bundle: Bundle) -> None:
            nonlocal last
            if bundle["text/plain"] != last:
                last = bundle["text/plain"]
                sys.stdout.write(last + "\n")
                sys.stdout.flush()

        update(bundle)
        return update


def kernel_screen() -> Screen:
    """The screen of a kernel: lines where the program that started it shows no updates of what was displayed."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace").split("\0")
        if {Path(word).name for word in words} & _WITHOUT_UPDATES:
            return TerminalScreen()
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
