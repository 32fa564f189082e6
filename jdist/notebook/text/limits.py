"""Limits: keeps text within a size, and says exactly what was left out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from jdist.core.ranks import RankSet
from jdist.notebook.text import ansi
from jdist.notebook.text.remedy_text import typed

MOST_NOTES = 20
_NOTE = 280  # The largest size of a note, in bytes.
_LONGEST_RANKS = 60  # A set of ranks whose name is longer is counted instead.


class Weighed(Protocol):
    """Something that takes room."""

    @property
    def weight(self) -> int:
        """The bytes that it counts for."""


B = TypeVar("B")
C = TypeVar("C", bound=Weighed)


def size(text: str) -> int:
    """Bytes of the text as it is stored in a notebook."""
    return len(text.encode("utf-8", "surrogatepass"))


def cut(text: str, most: int) -> str:
    """The text without its middle when it has more than ``most`` characters; its colours are dropped then, too."""
    if len(text) <= most:
        return text
    text = ansi.strip(text)
    if len(text) <= most:
        return text
    keep = max(0, most - 50)
    first = keep // 3
    return f"{text[:first]} … {len(text) - keep:,} characters left out … {text[len(text) - (keep - first) :]}"


def naming(ranks: Iterable[int]) -> str:
    """``rank 2`` or ``ranks 0-3,7``."""
    chosen = RankSet(ranks)
    text = str(chosen)
    if len(text) > _LONGEST_RANKS:
        return f"{len(chosen)} ranks ({text[:_LONGEST_RANKS].rsplit(',', 1)[0]},…)"
    return f"rank {text}" if len(chosen) == 1 else f"ranks {text}"


def left_out(count: int, ranks: Iterable[int], what: str = "line") -> str:
    """``… 1,234 lines of rank 3 left out; %dist logs -r 3 shows them``."""
    who = RankSet(ranks)
    whose = naming(who) if len(who) == 1 else f"each of {naming(who)}"
    shown = str(who) if len(str(who)) <= 80 else "RANK"
    noun, them = (what, "it") if count == 1 else (f"{what}s", "them")
    return f"… {count:,} {noun} of {whose} left out; {typed('logs')} -r {shown} shows {them}"


def fit(items: Sequence[B], limit: int, make: Callable[[B], C]) -> tuple[list[C], Sequence[B], list[C]]:
    """The first items that fit within ``limit``, made ready; those between, dropped; and the last that fit.

    Two fifths of the room are for the first ones when not all fit. Only what is kept is made.
    """
    head, room = _while_fitting(items, limit, make)
    if len(head) == len(items):
        return head, [], []
    while head and limit - room > limit * 2 // 5:
        room += head.pop().weight
    room -= min(room, MOST_NOTES * _NOTE)
    tail, _ = _while_fitting(items[len(head) :][::-1], room, make)
    return head, items[len(head) : len(items) - len(tail)], tail[::-1]


def _while_fitting(items: Iterable[B], room: int, make: Callable[[B], C]) -> tuple[list[C], int]:
    """The first items that fit, and the room that is left."""
    made: list[C] = []
    for item in items:
        chunk = make(item)
        if chunk.weight > room:
            break
        room -= chunk.weight
        made.append(chunk)
    return made, room
