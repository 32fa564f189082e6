"""Table: figures and their floors, measured in the same minute as interleaved pairs.

Machines differ and are shared, so a time alone says little. Each figure has a floor, the same thing done with as little
as possible between the user and it. The two take turns, and the ratio is the median of the turns' ratios: what slows
one down slows the other, mostly.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Action = Callable[[], float | None]
"""Does one thing. What it returns is the figure; None: the seconds it took."""


@dataclass(frozen=True)
class Pairs:
    """Figures and floors, turn by turn."""

    figures: tuple[float, ...]
    floors: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over the turns of figure / floor."""
        return statistics.median(figure / floor for figure, floor in zip(self.figures, self.floors, strict=True))


@dataclass(frozen=True)
class Unit:
    """How a number is written: times ``factor``, with ``digits`` after the point."""

    name: str
    factor: float = 1.0
    digits: int = 1

    def write(self, values: Sequence[float]) -> str:
        """Median, and the range."""
        low, middle, high = (
            f"{value * self.factor:.{self.digits}f}" for value in (min(values), statistics.median(values), max(values))
        )
        return f"{middle} {self.name} ({low}-{high})" if len(values) > 1 else f"{middle} {self.name}"


MILLISECONDS = Unit("ms", 1e3)
SECONDS = Unit("s", 1.0, 2)
MEGABYTES = Unit("MB", 1e-6)


def timed(action: Action) -> float:
    """What ``action`` returns, or the seconds it took."""
    began = time.perf_counter()
    figure = action()
    return time.perf_counter() - began if figure is None else figure


def pairs(figure: Action, floor: Action, turns: int, warm_up: int = 1) -> Pairs:
    """``turns`` times figure and floor, every other time the floor first, after ``warm_up`` unmeasured turns."""
    measured: tuple[list[float], list[float]] = ([], [])
    for turn in range(-warm_up, turns):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for which in order:
            value = timed((figure, floor)[which])
            if turn >= 0:
                measured[which].append(value)
    return Pairs(tuple(measured[0]), tuple(measured[1]))


class Table:
    """Rows of figure, floor, ratio and aim; printed as each row is known, with the widths of the heading."""

    _WIDTHS = (44, 28, 28, 7, 12)

    def __init__(self, title: str):
        cores = len(os.sched_getaffinity(0))
        print(f"\n{title}\n{cores} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")
        self._print("", "figure: median (min-max)", "floor: median (min-max)", "ratio", "aim")

    def row(
        self, what: str, measured: Pairs, unit: Unit, most: float | None = None, least: float | None = None
    ) -> None:
        """Pairs, with the aim for their ratio: ``most`` or ``least``."""
        ratio = measured.ratio
        aim, is_met = _judge(ratio, most, least, "x")
        self._print(what, unit.write(measured.figures), unit.write(measured.floors), f"{ratio:.2f}", aim, is_met)

    def alone(self, what: str, figures: Sequence[float], unit: Unit, most: float | None = None) -> None:
        """Figures that have no floor, with the aim for their median."""
        aim, is_met = _judge(statistics.median(figures) * unit.factor, most, None, f" {unit.name}")
        self._print(what, unit.write(figures), "", "", aim, is_met)

    def fact(self, what: str, is_met: bool) -> None:
        """Something that is so or not."""
        self._print(what, "yes" if is_met else "no", "", "", "yes", is_met)

    def _print(self, *columns: object) -> None:
        *texts, last = columns
        is_met = last if isinstance(last, bool) else None
        if is_met is None:
            texts.append(last)
        line = " ".join(f"{text!s:<{width}}" for text, width in zip(texts, self._WIDTHS, strict=True))
        print(line.rstrip() if is_met is not False else f"{line} missed", flush=True)


def _judge(value: float, most: float | None, least: float | None, unit: str) -> tuple[str, bool]:
    if most is not None:
        return f"<= {most:g}{unit}", value <= most
    if least is not None:
        return f">= {least:g}{unit}", value >= least
    return "", True


def cannot_run(why: str) -> None:
    """End the script with code 1."""
    print(f"{os.path.basename(sys.argv[0])} cannot run: {why}", file=sys.stderr)
    sys.exit(1)
