"""Quantities: sizes, rates, durations and counts as text and back, and the argument parser that reads them."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jdist.core.errors import UsageError, nearest

_DURATION = re.compile(r"^(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*(s|m|h)?$")
_NUMBERS = re.compile(r"\d[\d,-]*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def format_bytes(count: float) -> str:
    """Bytes that are moved: ``"999 B"``, ``"1.3 GB"``, ``"620 MB"``; units of 1000."""
    at, units = 0, ("B", "kB", "MB", "GB", "TB")
    while count >= 999.5 and at + 1 < len(units):
        count, at = count / 1000, at + 1
    return f"{count:.0f} {units[at]}" if at == 0 or count >= 99.95 else f"{count:.1f} {units[at]}"


def format_memory(count: int) -> str:
    """Bytes of memory or disk: ``"64 B"``, ``"512 KiB"``, ``"23.5 GiB"``; units of 1024."""
    if count < 1024:
        return f"{count} B"
    at, units = 0, ("KiB", "MiB", "GiB", "TiB")
    size = count / 1024
    while size >= 1023.5 and at + 1 < len(units):
        size, at = size / 1024, at + 1
    return f"{size:.0f} {units[at]}" if at == 0 or size >= 999.5 else f"{size:.3g} {units[at]}"


def format_rate(per_second: float) -> str:
    """Bytes per second: ``"620 MB/s"``, ``"1.3 GB/s"``."""
    return f"{format_bytes(per_second)}/s"


def format_duration(seconds: float) -> str:
    """A time that people wait: ``"0.42 s"``, ``"3.1 s"``, ``"12 s"``, ``"2 min 5 s"``, ``"1 h 4 min"``."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    return format_whole_seconds(seconds)


def format_whole_seconds(seconds: float) -> str:
    """A time that is counted up or down: ``"3 s"``, ``"2 min 5 s"``, ``"1 h 4 min"``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_interval(seconds: float) -> str:
    """A time that was measured, in at most three digits: ``"1.23 s"``, ``"45.6 ms"``, ``"120 µs"``, ``"0"``."""
    size = abs(seconds)
    if size < 5e-7:
        return "0"
    if size < 9.995e-4:
        return f"{seconds * 1e6:.3g} µs"
    if size < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if size < 999.5 else f"{seconds:,.0f} s"


def format_count(number: int, noun: str) -> str:
    """``"1 file"``, ``"2 files"``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def parse_duration(text: str) -> float:
    """Seconds, from ``20``, ``20s``, ``5m`` or ``1h``; like the next two, a type for ArgumentParser.add_argument."""
    m = _DURATION.match(text.strip())
    value = float(m[1]) * _SECONDS[m[2]] if m else 0.0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a time more than 0, such as 20, 20s or 5m; not {text!r}")
    return value


def parse_count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, not {text!r}")
    return int(text)


def parse_amount(text: str) -> float:
    """A number from 0, such as of CPUs or GPUs."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"a number is needed, such as 4 or 0.5; not {text!r}")
    return float(text)


def expression(text: str) -> str:
    """An expression or a list of names, which ranks are to get as it was typed."""
    return str(text)


def expression_part(text: str) -> str:
    """One of the words that are an expression together, with the quotes that a line may have around the word."""
    return str(getattr(text, "typed", text))


class HelpWanted(Exception):
    """The user asked for help instead of giving a command; the text is the help."""


def _option_for(word: str, words: Sequence[str], known: Sequence[str]) -> str:
    """A hint for numbers without an option: the option for ranks or, if there is none, the one for their count."""
    missing = [name for name in ("-r", "-n") if name in known and not any(w.startswith(name) for w in words)]
    return f"; did you mean {missing[0]} {word}?" if missing and _NUMBERS.fullmatch(word) else ""


class ArgumentParser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError instead of ending the process."""

    def __init__(self, prog: str, description: str = ""):
        super().__init__(prog=prog, description=description, add_help=False, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"^-\d")  # argparse knows -1; -2,-1 and -2--1 are ranks too
        self._expand: Callable[[str], str] = str

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n{self.format_usage().strip()}")

    def parse(self, words: Sequence[str], expand: Callable[[str], str] = str) -> argparse.Namespace:
        """Like parse_args, but an unknown option is reported with the nearest known one. Raises HelpWanted.

        ``expand`` is applied to the value of each argument that is no expression.
        """
        self._expand = expand
        if {"-h", "--help"} & set(words):
            raise HelpWanted(self.format_help().strip())
        known = [s for a in self._actions for s in a.option_strings]
        unknown = [w for w in words if w.startswith("--") and " " not in w and w.partition("=")[0] not in known]
        if unknown:  # before argparse finds that something else is missing
            self.error(f"does not understand {unknown[0]}{nearest(unknown[0].partition('=')[0], known)}")
        options, rest = self.parse_known_args(words)
        if rest:
            hint = nearest(rest[0], known) if rest[0].startswith("-") else _option_for(rest[0], words, known)
            self.error(f"does not understand {' '.join(rest)}{hint}")
        return options

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        is_expression = action.type in (expression, expression_part)
        return super()._get_value(action, arg_string if is_expression else self._expand(arg_string))

    def leading_options(self, words: Sequence[str]) -> tuple[int, set[str]]:
        """How many words at the beginning are options and their values, and which options these are."""
        actions = {name: action for action in self._actions for name in action.option_strings}
        found: set[str] = set()
        at = 0
        while at < len(words) and words[at].startswith("-") and words[at] != "--":
            word = words[at]
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            action = actions.get(name)
            found |= {action.dest} if action is not None else set()
            has_value = "=" in word if word.startswith("--") else len(word) > 2  # as in -n4
            at += 1 if has_value or action is None or action.nargs == 0 else 2
        return min(at, len(words)), found

    def add_ranks(self) -> None:
        """Add ``-r/--ranks`` and ``-g/--group``."""
        self.add_argument("-r", "--ranks", help="such as 0-3,7, node=1, dp=0, !2, -1")
        self.add_argument("-g", "--group", help="the ranks of a named group")
