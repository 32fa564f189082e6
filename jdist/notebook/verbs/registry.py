"""The registry of verbs: what stands behind ``%dist VERB`` and ``jdist VERB``, with options and help."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from jdist.core.errors import UsageError, nearest
from jdist.core.quantities import ArgumentParser, HelpWanted
from jdist.notebook.session import Session
from jdist.notebook.text.remedy_text import typed, worded_errors

Words = list[str]
Option = Callable[[ArgumentParser], object]  # Adds something to a verb's parser.
RANKS: Option = ArgumentParser.add_ranks


def option(*names: str, **settings: Any) -> Option:
    """An argument as ``ArgumentParser.add_argument`` takes it."""
    return lambda parser: parser.add_argument(*names, **settings)


def always(_: Words) -> bool:
    """The command is about one cluster, the newest one if none is named."""
    return True


def never(_: Words) -> bool:
    """The command finds or makes its clusters itself."""
    return False


def nothing_after(words: Words) -> tuple[Words, Words]:
    """The usual split: all words are the verb's own."""
    return words, []


class Verb:
    """A verb. ``attaches(words)`` says whether the command attaches to a cluster first; None: it is no command."""

    def __init__(
        self,
        name: str,
        function: Callable[[Session, Namespace], Any],
        options: tuple[Option, ...],
        attaches: Callable[[Words], bool] | None,
        split: Callable[[Words], tuple[Words, Words]],
    ):
        self.name = name
        self.attaches = attaches
        self._function = function
        self._options = options
        self._split = split
        # Its effect and how it is written, in a line.
        self.summary, _, more = (function.__doc__ or "").strip().partition("\n")
        self._description = f"{self.summary.partition(f': {name} ')[0]}.\n{more}"

    def parser(self) -> ArgumentParser:
        """The parser of the words after the verb."""
        parser = ArgumentParser(typed(self.name), self._description[:1].upper() + self._description[1:])
        for add in self._options:
            add(parser)
        return parser

    def __call__(self, session: Session, words: Words) -> Any:
        """Carry it out. Raises UsageError, and HelpWanted for ``--help``."""
        own, rest = self._split(words)
        options = self.parser().parse(own)
        options.words, options.rest = words, rest
        return self._function(session, options)


VERBS: dict[str, Verb] = {}


def verb(
    name: str,
    *options: Option,
    attaches: Callable[[Words], bool] | None = always,
    split: Callable[[Words], tuple[Words, Words]] = nothing_after,
) -> Callable[[Callable[[Session, Namespace], Any]], Callable[[Session, Namespace], Any]]:
    """Registers a function as a verb; its docstring is the verb's help, and its result that of ``%dist``.

    The function gets the session and the parsed options; ``options.words`` are all its words, ``options.rest``
    those that ``split`` cut off.
    """

    def register(function: Callable[[Session, Namespace], Any]) -> Callable[[Session, Namespace], Any]:
        VERBS[name] = Verb(name, function, options, attaches, split)
        return function

    return register


def usage() -> str:
    """Every verb with its line."""
    return "\n".join(f"{typed(name.ljust(10))} {found.summary}" for name, found in VERBS.items())


def call(session: Session, name: str, words: Words) -> Any:
    """Carry out a verb. Raises UsageError naming the nearest."""
    if name not in VERBS:
        raise UsageError(f"{typed('').rstrip()} has no verb {name!r}{nearest(name, VERBS)}")
    try:
        with worded_errors():
            return VERBS[name](session, words)
    except HelpWanted as text:
        session.echo(str(text))
        return None
