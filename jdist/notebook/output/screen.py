"""Screens show mime bundles: in a notebook's cell output, or as a terminal's lines."""

import contextvars
import html
import json
import sys
import threading
from collections.abc import Mapping
from getpass import getpass
from typing import Any, Protocol

Bundle = Mapping[str, Any]  # Text by mime type; JSON values for types that end in `json`.


class ShownOutput(Protocol):
    """Something on the screen that can be replaced."""

    def update(self, bundle: Bundle) -> None:
        """Show this in its place."""


class Screen(Protocol):
    """The place where a session shows things and asks the user."""

    is_live: bool  # Whether something shown can be replaced.

    def show(self, bundle: Bundle) -> ShownOutput:
        """Show a new thing."""

    def ask(self, prompt: str, is_password: bool) -> str:
        """Read a line from the user."""


class Replaceable:
    """One place on a screen: shown when there is something to show, then replaced."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._shown: ShownOutput | None = None

    @property
    def is_shown(self) -> bool:
        return self._shown is not None

    def show(self, bundle: Bundle) -> None:
        """Show this, in place of what was shown before."""
        if self._shown is None:
            self._shown = self._screen.show(bundle)
        else:
            self._shown.update(bundle)


class _NotebookOutput:
    """One display in a cell's output. Updates may come from other threads: they carry the cell's own context along."""

    def __init__(self, bundle: Bundle):
        import IPython.display

        display: Any = IPython.display.display

        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._handle: Any = display(dict(bundle), raw=True, display_id=True)

    def update(self, bundle: Bundle) -> None:
        with self._lock:
            self._context.run(self._handle.update, dict(bundle), raw=True)


class NotebookScreen:
    """A notebook's cell output."""

    is_live = True

    def show(self, bundle: Bundle) -> ShownOutput:
        return _NotebookOutput(bundle)

    def ask(self, prompt: str, is_password: bool) -> str:
        return getpass(prompt) if is_password else input(prompt)


class _TerminalOutput:
    def __init__(self) -> None:
        self._last = ""

    def update(self, bundle: Bundle) -> None:
        text = bundle["text/plain"]
        if text != self._last:
            self._last = text
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


class TerminalScreen(NotebookScreen):
    """A terminal: what changes is written again as a new line."""

    is_live = False

    def show(self, bundle: Bundle) -> ShownOutput:
        shown = _TerminalOutput()
        shown.update(bundle)
        return shown


def plain(text: str) -> Bundle:
    """A line of text as a bundle."""
    return {"text/plain": text}


def line(text: str) -> Bundle:
    """A line of text and HTML, which may stand in the place of something with HTML."""
    return {"text/plain": text, "text/html": f"<div>{html.escape(text)}</div>"}


def weight(bundle: Bundle) -> int:
    """The number of characters that are sent to show it."""
    return sum(len(v) if isinstance(v, str) else len(json.dumps(v, ensure_ascii=False)) for v in bundle.values())
