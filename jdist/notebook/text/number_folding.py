"""Lines that say the same but for one number: ``loss 0.1`` on one rank, ``loss 0.2`` on another."""

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)(?!\w)")
_VALUE = re.compile(r"[\[\]{}●]|<\w|\w\(|\([^()]*,")  # A list, dict, tuple, call or repr, or a verdict's mark.
_ANY_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_SEPARATOR = re.compile("[|│┃║\0\x1b]")  # It may be a table's, or a colour's.
_HOLE = "\0"

LONGEST = 80  # A longer line is never joined with one that differs.
MOST_NUMBERS = 4  # A line with more numbers than this is never joined: the result could not be read.


def skeleton(text: str) -> tuple[str, int] | None:
    """The text with a hole for each number, and the numbers' length; None when it is not to be joined with another: too
    long, no number or too many of them, coloured, holding a list or a repr, or a bar as a table has it.
    """
    if len(text) > LONGEST or _SEPARATOR.search(text) or _VALUE.search(text):
        return None
    numbers = _NUMBER.findall(text)
    if not 1 <= len(numbers) <= MOST_NUMBERS:
        return None
    return _NUMBER.sub(_HOLE, text), sum(map(len, numbers))


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
    return words[0] + "".join(number + word for number, word in zip(numbers, words[1:], strict=True))


def numberless(text: str) -> str:
    """The text with every run of digits and every address replaced by ``#``, to tell whether two errors are alike."""
    return _ANY_DIGITS.sub("#", text)
