"""Remedy text: verbs and actions as typed, ``%dist stop`` in a notebook (the default) or ``jdist stop`` in a shell."""

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Literal

from jdist.core.errors import JdistError, Remedy, sentence
from jdist.core.messages.status import Notice, Stopped

Style = Literal["magic", "command"]

_PREFIX: dict[Style, str] = {"magic": "%dist", "command": "jdist"}
_style: ContextVar[Style] = ContextVar("jdist_style", default="magic")


@contextlib.contextmanager
def style(name: Style) -> Iterator[None]:
    """Word everything in this style while the context lasts."""
    token = _style.set(name)
    try:
        yield
    finally:
        _style.reset(token)


def typed(words: str) -> str:
    """A verb and its options, as they are typed: ``typed("stop c1")`` is ``%dist stop c1`` in a notebook."""
    return f"{_PREFIX[_style.get()]} {words}"


def is_magic() -> bool:
    """Whether the user types in a notebook."""
    return _style.get() == "magic"


def command(remedy: Remedy) -> str:
    """A suggested action, as it is typed."""
    ranks = f" -r {remedy.ranks}" if remedy.ranks else ""
    run = f" --run {remedy.run}" if remedy.run else ""
    if remedy.action == "run_cell":
        return f"%%dist{ranks}" if is_magic() else f"{typed('run')}{ranks} SCRIPT.py"
    return typed(remedy.action) + (f" {remedy.name}" if remedy.name else "") + ranks + run


def arrows(remedies: Iterable[Remedy]) -> list[str]:
    """A line for each suggested action: ``→ %dist push model  copy the notebook's``."""
    actions = [(command(remedy), remedy.effect) for remedy in remedies]
    width = max((len(action) for action, _ in actions), default=0)
    return [f"→ {action:<{width}}  {effect}" for action, effect in actions]


def worded(about: JdistError | Notice | Stopped) -> str:
    """The text of an error, a notice or the cluster's end, with its suggested actions."""
    match about:
        case JdistError():
            text = about.message
        case Notice():
            text = about.text
        case Stopped():
            text = about.reason
    return sentence(text, about.remedies, command)


@contextlib.contextmanager
def worded_errors() -> Iterator[None]:
    """Errors leave the context with their suggested actions worded in their messages."""
    try:
        yield
    except JdistError as e:
        e.message, e.remedies = worded(e), ()
        raise
