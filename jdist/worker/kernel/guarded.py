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


def described(error: BaseException) -> str:
    """``ValueError: no``, also where the error's own text cannot be had."""
    text, failure = guarded(lambda: str(error))
    if failure is not None:
        return f"{type(error).__name__}, whose text raises {type(failure).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


CODE: CodeType = guarded.__code__
"""An interrupt may raise in what this calls, though not in its own frame."""
