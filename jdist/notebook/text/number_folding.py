"""Lines that say the same but for numbers: ``loss 0.1`` on one rank, ``loss 0.2`` on another."""

import math
import re
from collections.abc import Mapping, Sequence

from jdist.core.ranks import ranks_by
from jdist.notebook.text.limits import naming

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
