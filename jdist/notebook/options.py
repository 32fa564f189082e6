"""Options of ``%%dist`` and of a start, and their parser, whose errors name the nearest right word."""

import argparse
import functools
import re
import shlex
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from jdist.client.variables.variables import split_outside
from jdist.core.errors import UsageError
from jdist.core.messages.runs import CellSpec
from jdist.core.profile import parse_schedule
from jdist.core.quantities import ArgumentParser, expression, parse_count, parse_duration
from jdist.core.settings import LIMIT_OPTIONS, DeclaredOption, StartOptions, declared_options
from jdist.launch.hosts import read_hostfile
from jdist.notebook.text.remedy_text import typed

_READERS = {int: parse_count, float: parse_duration}  # Of an option's words, by its type; others are text.
_WHOLLY_QUOTED = re.compile(r"""(['"])(?:(?!\1).)*\1\Z""", re.DOTALL)
_QUOTED_IN_BRACES = re.compile(r"""[^'"]*\{[^}'"]*['"]""")


class Word(str):
    """A word of a line, without the quotes around it. ``typed`` is the word with them."""

    __slots__ = ("typed",)
    typed: str

    @classmethod
    def read(cls, typed: str) -> "Word":
        """Raises ValueError for a final backslash, as in ``--name=\\``."""
        is_quoted = _WHOLLY_QUOTED.match(typed) or (typed[0] == "-" and not _QUOTED_IN_BRACES.match(typed))
        word = cls(shlex.split(typed)[0] if is_quoted else typed)
        word.typed = typed
        return word


def split_words(line: str) -> list[str]:
    """A line's words. Inside brackets and quotes a space divides nothing: ``check d['a b'][0, 1]`` is two words.

    Quotes around a whole word or option's value are dropped. Raises UsageError for an open quote or final backslash.
    """
    try:
        return [Word.read(typed) for typed in split_outside(line, " \t\n") if typed]
    except ValueError as e:
        raise UsageError(f"{line.strip()}: {e}") from None


def join_expression(words: Sequence[str]) -> str:
    """The expression that consists of these parts. Quotes around all of it are dropped, those inside it are kept."""
    text = " ".join(words)
    return text[1:-1] if _WHOLLY_QUOTED.match(text) else text


@functools.cache
def cell_parser() -> ArgumentParser:
    """``%%dist``."""
    p = ArgumentParser("%%dist", "Run this cell on the ranks of the cluster.")
    p.add_ranks()
    for option in declared_options(CellSpec):
        _add_option(p, option, option.about.word)
    p.add_argument("-o", "--out", metavar="NAME", help="bind the CellRun to this name in the notebook")
    pull = "pull these variables at the end, as {rank: value}"
    p.add_argument("-p", "--pull", type=expression, metavar="NAME[,NAME]", help=pull)
    p.add_argument("-b", "--background", action="store_true", help="return immediately; output continues in this cell")
    p.add_argument("--local", action="store_true", help="run it in the notebook too")
    p.add_argument("--lead", type=int, metavar="K", help="show rank K's output; a click shows the others'")
    profile = "run it under torch.profiler, and show who waited for whom; with FILE, write a Chrome trace"
    p.add_argument("--profile", nargs="?", const="", metavar="FILE", help=profile)
    steps = "profile only these steps of the loop: wait=1,warmup=1,active=3,repeat=2"
    p.add_argument("--profile-steps", type=parse_schedule, metavar="STEPS", help=steps)
    p.add_argument("--profile-activities", metavar="cpu,cuda", help="profile only these; default: all available")
    return p


def add_script_options(p: ArgumentParser) -> None:
    """How a script is run."""
    p.add_argument("-m", "--module", action="store_true", help="run a module, as python -m does")
    p.add_argument("-t", "--timeout", type=parse_duration, help="seconds for the script (20s, 5m)")
    hold = "pause on a failure, at the point of failure, so that a notebook can inspect the ranks"
    p.add_argument("--hold", action="store_true", help=hold)


def add_start_options(p: ArgumentParser, wait: str = "--timeout") -> None:
    """The options of ``%dist start``; ``wait`` is the name of the one that limits how long a start waits."""
    for option in declared_options():
        if option.about.help:
            _add_option(p, option, wait if option.name == "timeout" else option.about.word)
        if option.name == "hosts":
            hosts = "file with a line `host slots=N` for each host, as for OpenMPI"
            p.add_argument("--hostfile", metavar="F", help=hosts)


def add_at_options(p: ArgumentParser) -> None:
    """At which host a cluster is, and which Python is started there."""
    p.add_argument("--at", metavar="HOST", help="the host it is on, behind ssh")
    python = "the Python at that host, or its conda environment"
    p.add_argument("--python", metavar="PATH|NAME", default="", help=python)
    p.add_argument("--install", action="store_true", help="make an environment with jdist there if it is missing")


def _add_option(p: ArgumentParser, option: DeclaredOption, word: str) -> None:
    """Add a declared option; ``word`` is how it is written, if not as its name."""
    plain = option.name.replace("_", "-")
    own: dict[str, Any]
    about, kinds = option.about, [get_origin(kind) or kind for kind in (option.type, *get_args(option.type))]
    if option.type is bool:
        own = {"dest": option.name, "help": about.help}
        own["action"] = "store_false" if option.default else "store_true"
        p.add_argument(word or (f"--no-{plain}" if option.default else f"--{plain}"), **own)
        return
    own = {"default": option.default, "metavar": about.metavar, "help": about.help}
    if about.word:
        own["dest"] = option.name
    if dict in kinds:
        own |= {"action": "append", "default": []}
    elif Literal in kinds:
        own |= {"choices": get_args(option.type)}
    elif str not in kinds:
        own |= {"type": next(_READERS[kind] for kind in kinds if kind in _READERS)}
    p.add_argument(*filter(None, (about.short, word or f"--{plain}")), **own)


def start_parser(prog: str) -> ArgumentParser:
    """A parser of the words after ``start``."""
    p = ArgumentParser(prog, "Start a cluster and form the world.")
    add_start_options(p)
    return p


def at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """A start's own words, and those after ``--``, which are for its launcher."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def names_a_start(o: argparse.Namespace) -> bool:
    """Whether a verb that takes the options of a start was given any of them."""
    defaults = vars(start_parser("").parse([]))
    return bool(o.rest) or any(getattr(o, name) != value for name, value in defaults.items())


def start_options(o: argparse.Namespace) -> dict[str, Any]:
    """The parsed options as arguments of :meth:`AsyncCluster.start`; ``o.rest`` are the words after ``--``."""
    if o.hosts and o.hostfile is not None:
        raise UsageError(f"{typed('start')}: --hosts and --hostfile are two ways to name hosts; use one")
    env = {}
    for word in o.env:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{typed('start')}: --env {word!r}: write NAME=VALUE")
        env[name] = value
    own = {"launcher_args": o.rest, "env": env, "hosts": o.hosts if o.hostfile is None else read_hostfile(o.hostfile)}
    options = {name: getattr(o, name) for name in StartOptions.__struct_fields__ if name not in own} | own
    return {name: value for name, value in options.items() if name not in LIMIT_OPTIONS or value is not None}
