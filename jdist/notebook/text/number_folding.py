"""Lines that say the same but for numbers: ``loss 0.1`` on one rank, ``loss 0.2`` on another."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from jdist.core.ranks import ranks_by
from jdist.notebook.text.limits import naming

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)(?!\w)")
_VALUE = re.compile(r"[\[\]{}●]|<\w|\w\(|\([^()]*,")  # A list, dict, tuple, call or repr, or a verdict's mark.
# Addresses, ids such as UUIDs, and numbers.
_ANY_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{4,}\b|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SEPARATOR = re.compile("[|│┃║\0\x1b]")  # It may be a table's, or a colour's.
_HOLE = "\0"
_WIDEST = 160  # Characters of a joined line.

LONGEST = 80  # A longer line is never joined with one that differs.
MOST_JOINED = 8  # The numbers of at most so many ranks are joined in one line.
MOST_NUMBERS = 4  # A line with more numbers than this is never joined: the result could not be read.


def skeleton(text: str) -> str | None:
    """The text with a hole for each number; None when it is not to be joined with another: too long, no number or too
    many of them, coloured, holding a list or a repr, or a bar as a table has it.
    """
    if len(text) > LONGEST or _SEPARATOR.search(text) or _VALUE.search(text):
        return None
    return _NUMBER.sub(_HOLE, text) if 1 <= len(_NUMBER.findall(text)) <= MOST_NUMBERS else None


def joined(texts: Sequence[str]) -> str | None:
    """One line for ``texts`` of one skeleton, in their order, ``step 5 loss 0.1 | 0.2``; None if more than one number
    differs, as a reader could not tell which of them belong together.
    """
    found = [_NUMBER.findall(text) for text in texts]
    words = _NUMBER.sub(_HOLE, texts[0]).split(_HOLE)
    columns = list(zip(*found, strict=True))
    if sum(len(set(column)) > 1 for column in columns) != 1:
        return None
    numbers = (column[0] if len(set(column)) == 1 else " | ".join(column) for column in columns)
    line = _filled(words, numbers)
    return line if len(line) <= _WIDEST else None


def summarized(texts: Mapping[tuple[int, ...], str]) -> str:
    """One line for many ranks' texts of one skeleton, ``loss 0.5 … 0.9 (mean 0.7) · nan on rank 17``: the least and the
    greatest of numbers that differ, the mean if only one of them does, and who has no finite one.
    """
    found = [_NUMBER.findall(text) for text in texts.values()]
    columns = list(zip(*found, strict=True))
    differ = sum(len(set(column)) > 1 for column in columns)
    numbers, odd = [], []
    for column in columns:
        by_rank = {rank: text for ranks, text in zip(texts, column, strict=True) for rank in ranks}
        finite = {rank: text for rank, text in by_rank.items() if math.isfinite(float(text))}
        if len(set(column)) == 1 or not finite:
            numbers.append(column[0] if len(set(column)) == 1 else " | ".join(sorted(set(column))))
            continue
        least, greatest = min(finite.values(), key=float), max(finite.values(), key=float)
        mean = sum(map(float, finite.values())) / len(finite)
        between = least if least == greatest else f"{least} … {greatest}"
        numbers.append(f"{between} (mean {mean:.4g})" if differ == 1 and least != greatest else between)
        others = ranks_by((rank, text) for rank, text in sorted(by_rank.items()) if rank not in finite)
        odd += [f"{text} on {naming(ranks)}" for text, ranks in others.items()]
    words = _NUMBER.sub(_HOLE, next(iter(texts.values()))).split(_HOLE)
    return " · ".join([_filled(words, numbers), *odd])


def _filled(words: Sequence[str], numbers: Iterable[str]) -> str:
    return words[0] + "".join(number + word for number, word in zip(numbers, words[1:], strict=True))


def numberless(text: str) -> str:
    """The text with ``#`` for every number, address and id in hexadecimals, to tell whether two errors are alike."""
    return _ANY_DIGITS.sub("#", text)
