"""Guarded calls of the user's code outside of a cell's own lines, such as a value's ``__reduce__`` after its cell:
whatever it raises ends there, SystemExit included, and an interrupt may end it, too.
"""

from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

T = TypeVar("T")


def guarded(action: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """What ``action``, a Python function, returned, or what it raised. On the main thread."""
    try:
        return action(), None
    except BaseException as e:  # the rank must be able to reply
        return None, e


_asked: deque[tuple[BaseException, str | None, str]] = deque(maxlen=4)  # The errors whose texts were asked for last.


def text_of(error: BaseException) -> tuple[str | None, str]:
    """The text of an error, or None and the type of what asking for it raised.

    An error is asked once in a cell: its text may take a user's code long, and who has interrupted that does not want
    to wait for it again.
    """
    for asked, text, failure in _asked:
        if asked is error:
            return text, failure
    text, raised = guarded(lambda: str(error))
    _asked.append((error, text, "" if raised is None else type(raised).__name__))
    return _asked[-1][1:]


def forget_texts() -> None:
    """Let go of the errors; their frames refer to what the cell has used."""
    _asked.clear()


def described(error: BaseException) -> str:
    """``ValueError: no``, also where the error's own text cannot be had."""
    text, failure = text_of(error)
    if text is None:
        return f"{type(error).__name__}, whose text raises {failure}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


CODE: CodeType = guarded.__code__
"""An interrupt may raise in what this calls, though not in its own frame."""
