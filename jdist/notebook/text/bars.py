"""Progress bars among the lines of text: `` 41%|████▏     | 410/1000 [00:12<00:17]`` and what rich, Keras and pip draw.

Bars of several ranks belong together though they differ. Those of many ranks are one bar, from the slowest to the
fastest rank.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from jdist.core.ranks import RankSet
from jdist.notebook.text import ansi

MOST = 8  # Bars of more ranks are shown as one.
T = TypeVar("T")
_WIDTH, _LEAST_WIDTH = 24, 10
_LONGEST = 1000  # A longer line is no bar.
_METER = re.compile(r"(?<=%)\|[ #0-9█▉▊▋▌▍▎▏░▒▓.·=>-]*\||[━╸╺╾╼─╌█▓▒░]{8,}|\[[=#>.\s-]{6,}\]")
_PERCENT = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d+)?) ?%")
_COUNT = re.compile(r"(?<![\w./])(\d+(?:\.\d+)?)([kMGT]?)i?B?/(\d+(?:\.\d+)?)([kMGT]?)i?B?(?![\w/])")
_UNCOUNTED = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([kMGT]?)\w* \[\d+:\d\d(?::\d\d)?, ")  # tqdm without a total
_DIGITS = re.compile(r"\d+")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class ProgressBar(Struct, frozen=True):
    """A progress bar, as parsed from a line."""

    label: str  # The words before the bar.
    part: float | None  # How much is done, from 0 to 1; None where the total is unknown.
    count: float = 0.0
    total: float = 0.0
    count_text: str = ""  # As it is written.
    total_text: str = ""


def find(line: str) -> ProgressBar | None:
    """The bar in a line; None if there is none."""
    if len(line) > _LONGEST or not ("%" in line or "/" in line or "[" in line):
        return None
    text = ansi.strip(line)
    meter = _METER.search(text)
    if meter is None:
        if (found := _UNCOUNTED.search(text)) is None:
            return None
        return ProgressBar(_label(text[: found.start()]), None, _number(found[1], found[2]), 0.0, found[1] + found[2])
    percent = _PERCENT.search(text)
    count = _COUNT.search(text, meter.end()) or _COUNT.search(text, 0, meter.start())
    if count is not None and (total := _number(count[3], count[4])) > 0:
        done = _number(count[1], count[2])
        part = done / total
        texts = count[1] + count[2], count[3] + count[4]
    elif percent is not None:
        part, done, total, texts = float(percent[1]) / 100, 0.0, 0.0, ("", "")
    else:
        return None
    before = text[: meter.start()]
    for number in (percent, count):
        if number is not None and number.end() <= meter.start():
            before = before.replace(number[0], " ", 1)
    return ProgressBar(_label(before), min(1.0, part), done, total, *texts)


def fit(line: str, most: int) -> str:
    """The line in at most so many characters: its bar is drawn shorter, so that what stands after it is seen."""
    too_long = len(line) - most
    meter = _METER.search(line) if 0 < too_long < _LONGEST else None
    if meter is None or (size := len(meter[0]) - too_long) < _LEAST_WIDTH:
        return line[:most]
    ends, inside = (meter[0][0], meter[0][-1]), meter[0][1:-1]
    drawn = "".join(inside[i * len(inside) // (size - 2)] for i in range(size - 2))
    return f"{line[: meter.start()]}{ends[0]}{drawn}{ends[1]}{line[meter.end() :]}"


def kind(bar: ProgressBar) -> str:
    """A key that is equal for bars that may be shown as one."""
    return _DIGITS.sub("#", bar.label)


def summary(by_ranks: Mapping[tuple[int, ...], ProgressBar]) -> str:
    """One line for the bars of many ranks: ``train 41-44 % ━━━──╌╌╌ 410-440/1000 · slowest rank 17``."""
    bars = list(by_ranks.values())
    words = [_between([bar.label for bar in bars])]
    least = min(bars, key=_progress)
    most = max(bars, key=_progress)
    parts = [bar.part for bar in bars if bar.part is not None]
    if len(parts) == len(bars):
        low, high = min(parts), max(parts)
        words += [_range(str(int(low * 100)), str(int(high * 100))) + " %", _draw(low, high)]
    if all(bar.count_text for bar in bars) and len({bar.total_text for bar in bars}) == 1:
        counts = _range(least.count_text, most.count_text)
        words.append(f"{counts}/{least.total_text}" if least.total_text else counts)
    line = " ".join(filter(None, words))
    if _progress(least) == _progress(most):
        return line
    last = [rank for ranks, bar in by_ranks.items() for rank in ranks if _progress(bar) == _progress(least)]
    if len(last) > MOST:
        return f"{line} · slowest {len(last)} ranks"
    return f"{line} · slowest rank{'s' if len(last) > 1 else ''} {RankSet(last)}"


def slowest(by_ranks: Mapping[T, ProgressBar], most: int) -> list[T]:
    """The ranks whose bars have made the least progress."""
    return sorted(by_ranks, key=lambda ranks: _progress(by_ranks[ranks]))[:most]


def _label(text: str) -> str:
    return text.strip(" :|[\t")


def _number(digits: str, unit: str) -> float:
    return float(digits) * _SCALE[unit]


def _progress(bar: ProgressBar) -> float:
    return bar.part if bar.part is not None else bar.count


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def _between(labels: Sequence[str]) -> str:
    """The label of all, with an ellipsis for each number that differs."""
    if len(set(labels)) == 1:
        return labels[0]
    columns = zip(*(_DIGITS.findall(label) for label in labels), strict=True)
    numbers = [column[0] if len(set(column)) == 1 else "…" for column in columns]
    words = _DIGITS.split(labels[0])
    return words[0] + "".join(number + word for number, word in zip(numbers, words[1:], strict=True))


def _draw(low: float, high: float) -> str:
    first, last = int(low * _WIDTH), int(high * _WIDTH)
    return "━" * first + "─" * (last - first) + "╌" * (_WIDTH - last)
