"""Output: what the ranks of a run print and display."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import field, structs

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


def only_of(output: Output, own: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Output:
    """The output without ranks that ``own`` removes."""
    items: list[OutputItem] = []
    for item in output.items:
        said = (item.rank,) if isinstance(item, Tail) else item.ranks
        left = own(said)
        if left == said:
            items.append(item)
        elif left and not isinstance(item, Tail):
            items.append(structs.replace(item, ranks=left))
    return Output(output.run, tuple(items))
