"""Outcome: the result of one rank's part of a run, and its output."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct, field

from jdist.core.errors import Remedy

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
"""The MIME type of a widget of ipywidgets."""
FORKED = "was called in a forked child of a rank, which has no connection to the rank's groups"
"""What an error says of a collective that could only hang."""


def unconnected(data: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a display where widgets of ranks are not connected: of a widget its picture, or its name.

    Of an empty `Output` it is nothing, since what that captures is shown by itself.
    """
    if WIDGET_VIEW not in data:
        return data
    rest = {mime: shown for mime, shown in data.items() if mime != WIDGET_VIEW}
    if rest.keys() - {"text/plain"}:
        return rest
    return {} if rest.get("text/plain") == "Output()" else data


OutcomeKind = Literal["value", "error", "timeout", "interrupted", "lost"]


class ErrorInfo(Struct, frozen=True):
    """An exception on a rank, as text; the exception object itself stays there."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    """IPython's rendering, with ANSI colours, one entry a frame."""
    cell_line: int | None = None
    """1-based line of the cell that was being executed."""
    source: str | None = None
    """That line's text."""
    is_echo: bool = False
    """It only reports a broken connection to a peer: most likely the effect of another failure."""
    remedies: tuple[Remedy, ...] = ()
    """Suggested actions."""
    exit_code: int | None = None
    """The exit code that the rank's script asked for with ``sys.exit``."""
    installed: tuple[str, ...] = ()
    """By entry of the traceback: its file's path in the folder of installed packages; "" for the user's own code."""


class Outcome(Struct, kw_only=True, dict=True):
    """The result of one rank's part of a run.

    ``kind`` is ``value`` (the cell finished; ``value`` is its last expression's value, or None), ``error``, ``timeout``
    (stopped at the run's deadline), ``interrupted`` or ``lost`` (the process or node is gone).
    """

    kind: OutcomeKind
    read_value: Callable[[], Any] | None = None
    """Makes ``value`` when it is first read: unpickling may import torch and run a class's own code."""
    error: ErrorInfo | None = None
    stdout: str = ""
    stderr: str = ""
    duration: float = 0.0
    """Seconds from the cell's start on the rank to its end there."""

    @property
    def ok(self) -> bool:
        return self.kind == "value"

    @cached_property
    def value(self) -> Any:
        return None if self.read_value is None else self.read_value()

    def __repr__(self) -> str:
        shown = {name.replace("read_value", "value"): None for name in self.__struct_fields__}
        return f"Outcome({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class OutputLine(Struct, frozen=True):
    """One line that a rank wrote, without its newline (``\\r`` already applied)."""

    rank: int
    stream: Literal["stdout", "stderr"]
    text: str


class RichOutput(Struct, frozen=True):
    """Something displayed: a mime bundle (text/plain always there, text/html, image/png as base64, …)."""

    rank: int
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    is_result: bool = False  # The cell's last expression, as against a display() call.


class SkippedLines(Struct, frozen=True):
    """Stands for ``lines`` lines (``chars`` characters) of this rank left out here; the rank's log has them."""

    rank: int
    lines: int
    chars: int


OutputEntry = OutputLine | RichOutput | SkippedLines
