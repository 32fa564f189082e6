"""The registry of verbs: what stands behind ``%dist VERB`` and ``jdist VERB``, with options and help."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from msgspec import Struct

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


def never(_: Words) -> bool:
    """The command finds or makes its clusters itself."""
    return False


class Verb(Struct, frozen=True):
    """A verb. Its function's docstring is the verb's help."""

    name: str
    function: Callable[[Session, Namespace], Any]
    options: tuple[Option, ...]
    attaches: Callable[[Words], bool] | None  # Whether the command attaches to a cluster first; None: it is no command.
    split: Callable[[Words], tuple[Words, Words]]

    @property
    def summary(self) -> str:
        """Its effect and how it is written, in a line."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def parser(self) -> ArgumentParser:
        """The parser of the words after the verb."""
        more = (self.function.__doc__ or "").strip().partition("\n")[2]
        text = f"{self.summary.partition(f': {self.name} ')[0]}.\n{more}"
        parser = ArgumentParser(typed(self.name), text[:1].upper() + text[1:])
        for add in self.options:
            add(parser)
        return parser

    def __call__(self, session: Session, words: Words, expand: Callable[[str], str] = str) -> Any:
        """Carry it out. Raises UsageError, and HelpWanted for ``--help``."""
        own, rest = self.split(words)
        options = self.parser().parse(own, expand)
        options.rest = [expand(word) for word in rest]
        return self.function(session, options)


VERBS: dict[str, Verb] = {}


def verb(
    name: str,
    *options: Option,
    attaches: Callable[[Words], bool] | None = lambda _: True,
    split: Callable[[Words], tuple[Words, Words]] = lambda words: (words, []),
) -> Callable[[Callable[[Session, Namespace], Any]], Callable[[Session, Namespace], Any]]:
    """Registers a function as a verb; its docstring is the verb's help, and its result that of ``%dist``.

    It gets the session and the options; ``options.rest`` are the words that ``split`` cut off. A command first attaches
    to the cluster that it names, or the newest, unless ``attaches(words)`` is false.
    """

    def register(function: Callable[[Session, Namespace], Any]) -> Callable[[Session, Namespace], Any]:
        VERBS[name] = Verb(name, function, options, attaches, split)
        return function

    return register


def usage() -> str:
    """Every verb with its line."""
    return "\n".join(f"{typed(name.ljust(10))} {found.summary}" for name, found in VERBS.items())


def call(session: Session, name: str, words: Words, expand: Callable[[str], str] = str) -> Any:
    """Carry out a verb. Raises UsageError naming the nearest.

    ``expand`` is applied to each word that is neither an option's name nor part of an expression.
    """
    if name not in VERBS:
        raise UsageError(f"{typed('').rstrip()} has no verb {name!r}{nearest(name, VERBS)}")
    try:
        with worded_errors():
            return VERBS[name](session, words, expand)
    except HelpWanted as text:
        session.echo(str(text))
        return None
