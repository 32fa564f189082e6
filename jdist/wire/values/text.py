"""Text that can travel: what stands for a string that is no Unicode, is too long, or for a number that is too large.

Python's strings may have lone surrogates, such as those that stand for the bytes of a file name that is no UTF-8.
"""

from typing import Any

_LEAST, _MOST = -(2**63), 2**64 - 1


def printable(text: str) -> str:
    r"""``text`` with an escape (``\udcff``) for each lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, longest: int, kept: int = 20_000) -> str:
    """``text`` if it has at most ``longest`` characters, else the ``kept`` at each of its ends."""
    if len(text) <= longest:
        return text
    return f"{text[:kept]}\n… {len(text) - 2 * kept:,} characters left out …\n{text[-kept:]}"


def encodable(value: Any) -> Any:
    """Dicts, lists and tuples with printable strings, and floats in place of integers of more than 64 bits."""
    match value:
        case str():
            return printable(value)
        case int() if not _LEAST <= value <= _MOST:
            try:
                return float(value)
            except OverflowError:
                return str(value)
        case dict():
            return {encodable(key): encodable(each) for key, each in value.items()}
        case list() | tuple():
            return [encodable(each) for each in value]
    return value
