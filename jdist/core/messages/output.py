"""Output: what the ranks of a run print and display."""

from typing import Any, Literal

from msgspec import field

from jdist.core.messages.base import Message


class Text(Message, frozen=True):
    """Text that ``ranks`` wrote alike to a stream."""

    ranks: tuple[int, ...]
    stream: Literal["stdout", "stderr"]
    text: str


class Display(Message, frozen=True):
    """A mime bundle shown by ranks: a display() call, a result, or the update of an earlier display."""

    ranks: tuple[int, ...]
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str = ""
    is_result: bool = False
    is_update: bool = False


class Clear(Message, frozen=True):
    """A call of clear_output() on ranks."""

    ranks: tuple[int, ...]
    wait: bool = False


class Tail(Message, frozen=True):
    """The end of a stream above its limit: how much was left out so far, and the newest text. Replaces the last one."""

    rank: int
    stream: Literal["stdout", "stderr"]
    lines: int
    chars: int
    text: str


OutputItem = Text | Display | Clear | Tail


class Output(Message, frozen=True):
    """Output of ranks of a run."""

    run: int
    items: tuple[OutputItem, ...]
