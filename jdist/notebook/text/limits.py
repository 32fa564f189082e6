"""Limits: keeps text within a size, and says exactly what was left out."""

from collections.abc import Iterable, Sequence

from jdist.core.ranks import RankSet
from jdist.notebook.text import ansi
from jdist.notebook.text.remedy_text import typed

_LONGEST_RANKS = 60  # A set of ranks whose name is longer is counted instead.
_MOST_WIDGETS = 3  # So many kinds of widgets are named.


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


def without_widgets(names: Sequence[str]) -> str:
    """What stands for widgets that ranks displayed; ``names`` are those of their classes."""
    found = sorted(set(names))
    more = f" and {len(found) - _MOST_WIDGETS} more" if len(found) > _MOST_WIDGETS else ""
    return (
        f"{', '.join(found[:_MOST_WIDGETS])}{more}: widgets of ranks are not connected to the notebook; print what "
        f"they show, or create them in a cell of the notebook's own and send their values with {typed('push')}"
    )
