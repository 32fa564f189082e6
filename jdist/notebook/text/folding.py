"""Fold lines into one: those equal but for numbers, progress bars, and a traceback's frames of installed packages.

Lines that say the same but for numbers are ``loss 0.1`` on one rank and ``loss 0.2`` on another. Progress bars are
`` 41%|████▏     | 410/1000 [00:12<00:17]`` and what rich, Keras and pip draw. Bars of several ranks belong together
though they differ; those of many ranks are one bar, from the slowest to the fastest rank.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from jdist.core.outcome import ErrorInfo
from jdist.core.quantities import format_count
from jdist.core.ranks import RankSet, ranks_by
from jdist.notebook.text import markup
from jdist.notebook.text.markup import naming

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)(?!\w)")
_END = re.compile(rf"([^|│┃║\0\x1b\n]*?)({_NUMBER.pattern})")
_VALUE = re.compile(r"[\[\]{}●]|<\w|\w\(|\([^()]*,")  # A list, dict, tuple, call or repr, or a verdict's mark.
# Addresses, ids such as UUIDs, and numbers.
_ANY_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{4,}\b|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SEPARATOR = re.compile("[|│┃║\0\x1b]")  # It may be a table's, or a colour's.
_HOLE = "\0"
_WIDEST = 160  # Characters of a joined line.

LONGEST = 80  # A longer line is never like one that differs.
MOST_JOINED = 8  # The numbers of at most so many ranks are joined in one line.
MOST_NUMBERS = 4  # A line with more numbers than this, such as a table's, is never like one of another rank.


def skeleton(text: str) -> str | None:
    """The text with a hole for each number, as lines that one statement prints share it. None for a line that is like
    no other: too long, no number or too many of them, coloured, holding a list or a repr, or a bar as a table has it.
    """
    if len(text) > LONGEST or _SEPARATOR.search(text) or _VALUE.search(text):
        return None
    return _NUMBER.sub(_HOLE, text) if 1 <= len(_NUMBER.findall(text)) <= MOST_NUMBERS else None


def joined(texts: Sequence[str]) -> str | None:
    """One line for ``texts``, in their order, ``step 5 loss 0.1 | 0.2``, if they differ only in the number at the end.

    None if they differ anywhere else: ``2 | 4 6 done`` would be read as two lines.
    """
    if (found := _split_end(texts)) is None:
        return None
    words, numbers = found
    line = words + " | ".join(numbers)
    return line if len(line) <= _WIDEST else None


def summarized(texts: Mapping[tuple[int, ...], str]) -> str | None:
    """One line for many ranks' texts that differ only in the number at the end, else None: the least and the greatest
    number, the mean, and who has no finite one, ``loss 0.5 … 0.9 (mean 0.7) · nan on rank 17``.
    """
    if (found := _split_end([*texts.values()])) is None:
        return None
    words, numbers = found
    by_rank = {rank: number for ranks, number in zip(texts, numbers, strict=True) for rank in ranks}
    finite = [number for number in by_rank.values() if math.isfinite(float(number))]
    others = ranks_by((r, number) for r, number in sorted(by_rank.items()) if not math.isfinite(float(number)))
    between = []
    if finite:
        least, greatest = min(finite, key=float), max(finite, key=float)
        mean = f" (mean {sum(map(float, finite)) / len(finite):.4g})"
        between = [f"{words}{least}" if least == greatest else f"{words}{least} … {greatest}{mean}"]
    odd = [f"{number} on {naming(ranks)}" for number, ranks in others.items()]
    return " · ".join([*between, *odd] if between else [f"{words}{odd[0]}", *odd[1:]])


def _split_end(texts: Sequence[str]) -> tuple[str, list[str]] | None:
    """The words with which all texts begin, and the numbers, not all equal, with which they end; else None."""
    found = [_END.fullmatch(text) for text in texts]
    words, numbers = {match and match[1] for match in found}, [match[2] for match in found if match is not None]
    if len(words) > 1 or None in words or len(set(numbers)) < 2:
        return None
    return str(words.pop()), numbers


def numberless(text: str) -> str:
    """The text with ``#`` for every number, address and id in hexadecimals, to tell whether two errors are alike."""
    return _ANY_DIGITS.sub("#", text)


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
    text = markup.strip(line)
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


# ---------------------------------------------------------------- tracebacks

_FRAME = re.compile(r"\s*(?:File|Cell|Input) .*?(?P<line>\d+)(?:,? in (?P<function>[^(\n]+))?(?:\(|\n|\Z)")
_SKIPPED = "[... skipping"  # IPython's entry for hidden frames, and for those of a recursion
_MOST_NAMES = 3


class FoldedFrames(Struct, frozen=True):
    """Consecutive frames of installed packages: the line that stands for them, and their text with its colours."""

    summary: str
    text: str


class _Entry(Struct, frozen=True):
    text: str
    path: str  # Of a frame in an installed package; else "".
    plain: str

    @property
    def frame(self) -> re.Match[str] | None:
        return _FRAME.match(self.plain)


def fold_frames(error: ErrorInfo) -> list[str | FoldedFrames]:
    """The traceback in pieces. If an error was raised in a package, the line for its frames says in which function."""
    entries = _entries(error)
    groups = [(path, list(group)) for path, group in itertools.groupby(entries, key=lambda entry: bool(entry.path))]
    pieces: list[str | FoldedFrames] = []
    for at, (is_installed, group) in enumerate(groups):
        text = "\n".join(entry.text for entry in group)
        is_last = at + 1 == len(groups) or groups[at + 1][1][0].frame is None
        pieces.append(FoldedFrames(_summary(group, is_last=is_last), text) if is_installed else text)
    return pieces


def _entries(error: ErrorInfo) -> list[_Entry]:
    found: list[_Entry] = []
    for text, path in itertools.zip_longest(error.traceback, error.installed[: len(error.traceback)], fillvalue=""):
        plain = markup.strip(text)
        is_skipped = plain.lstrip().startswith(_SKIPPED) and bool(found)
        found.append(_Entry(text, found[-1].path if is_skipped else path, plain))
    return found


def _summary(group: list[_Entry], *, is_last: bool) -> str:
    """``… 6 frames in torch``; of the last frames before an error, also the one that raised it."""
    names = list(dict.fromkeys(re.split(r"[/.]", entry.path, maxsplit=1)[0] for entry in group))
    names = names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], "others"]
    frames = [(entry.path, found) for entry in group if (found := entry.frame) is not None]
    text = f"… {format_count(len(frames), 'frame')} in {', '.join(names)}"
    if not is_last or not frames:
        return text
    path, last = frames[-1]
    at = f"{path}:{last['line']}"
    return f"{text}; the last is {last['function'].strip()}, {at}" if last["function"] else f"{text}; the last is {at}"
