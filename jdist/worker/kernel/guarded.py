"""Guarded calls of the user's code outside of a cell's own lines, such as a value's ``__reduce__`` after its cell:
whatever it raises ends there, SystemExit included, and an interrupt may end it, too.
"""

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


_last: list[tuple[BaseException, str | None, BaseException | None]] = []  # The text that was asked for last.


def text_of(error: BaseException) -> tuple[str | None, BaseException | None]:
    """The text of an error, or what asking for it raised. An error is asked once: its text may take a user's code long,
    and who has interrupted that does not want to wait for it again.
    """
    if not _last or _last[0][0] is not error:
        _last[:] = [(error, *guarded(lambda: str(error)))]
    return _last[0][1:]


def forget_text() -> None:
    """Let go of the error."""
    _last.clear()


def described(error: BaseException) -> str:
    """``ValueError: no``, also where the error's own text cannot be had."""
    text, failure = text_of(error)
    if failure is not None:
        return f"{type(error).__name__}, whose text raises {type(failure).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


CODE: CodeType = guarded.__code__
"""An interrupt may raise in what this calls, though not in its own frame."""
