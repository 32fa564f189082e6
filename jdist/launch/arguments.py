"""Arguments: what a user writes for one launcher, after ``--``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from jdist.core.errors import UsageError, nearest


class Arguments(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError, with the launcher's name and the nearest right word."""

    def __init__(self, launcher: str):
        super().__init__(prog=f"--launcher {launcher} --", add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n{self.format_usage().strip()}")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """As parse_args."""
        options, rest = self.parse_known_args(words)
        if rest:
            known = [s for a in self._actions for s in a.option_strings]
            self.error(f"does not understand {rest[0]}{nearest(rest[0].partition('=')[0], known)}")
        return options


def amount(text: str) -> float:
    """A number from 0: of CPUs or GPUs."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,4})?", text):
        raise argparse.ArgumentTypeError(f"a number is needed, such as 4 or 0.5; not {text!r}")
    return float(text)


def whole(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, is needed; not {text!r}")
    return int(text)
