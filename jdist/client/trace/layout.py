"""Layout: calls of one rank that overlap are put side by side, and those too narrow to be seen are added up. Pure."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from jdist.client.trace.timeline import Bar


def lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """The bars in the fewest lanes without overlaps; blocking calls all fit into one."""
    found: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.began, -b.ended)):
        free = next((lane for lane in found if lane[-1].ended <= bar.began), None)
        if free is None:
            found.append([bar])
        else:
            free.append(bar)
    return found


class Bin(Struct, frozen=True):
    """Calls in a stretch of time that are too narrow to be drawn one by one, and their parts (0 to 1) of it."""

    at: float
    working: float
    waiting: float
    counts: tuple[tuple[str, int], ...]
    group: str  # The group of most of the calls.


def crowd(bars: Sequence[Bar], width: float) -> tuple[list[Bar], list[Bin]]:
    """The bars as wide as ``width`` seconds or wider, and the rest in bins of that width."""
    wide = [b for b in bars if b.ended - b.began >= width]
    held: dict[int, list[Bar]] = {}
    for bar in bars:
        if bar.ended - bar.began < width:
            held.setdefault(int(bar.began / width), []).append(bar)
    alone = [b for part in held.values() if len(part) == 1 for b in part]
    bins = [_bin(number * width, width, part) for number, part in sorted(held.items()) if len(part) > 1]
    return sorted(wide + alone, key=lambda b: b.began), bins


def _bin(at: float, width: float, bars: Sequence[Bar]) -> Bin:
    working = sum(b.ended - b.work for b in bars)
    waiting = sum(b.work - b.began for b in bars)
    whole = max(width, working + waiting)
    ops = Counter(b.call.op for b in bars).most_common()
    group = Counter(b.call.group for b in bars).most_common(1)[0][0]
    return Bin(at, working / whole, waiting / whole, tuple(ops), group)
