"""Remedies: actions suggested to the user, as data. Pure.

Each front end words them: notebook and command line by :mod:`jdist.notebook.text.remedy_text`, JupyterLab as buttons.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

# What is done to a cluster, to some of its ranks, or to a name. run_cell: run a cell of the user's on these ranks.
_OfCluster = Literal["start", "list", "attach", "stop", "status", "doctor", "invite", "sync"]
_OfPauses = Literal["pause", "continue", "where", "debug"]
_OfNames = Literal["push", "pull", "restore"]
Action = _OfCluster | _OfPauses | _OfNames | Literal["interrupt", "restart", "remove", "run_cell", "run"]


class Remedy(Struct, frozen=True, omit_defaults=True):
    """One suggested action and its effect, an infinitive such as "start a fresh process"."""

    action: Action
    effect: str
    ranks: str = ""  # Ranks as a user writes them: "2", "0-3,7", "node=1"; "" for all, or none in particular.
    name: str = ""  # The cluster's name, the path or the variable that it is about, with what is typed beside it.
    run: int = 0  # The only run that it acts on; 0: it is not about one.

    def __str__(self) -> str:
        """Plain words, for a program that has no front end: ``restart rank 2``."""
        is_one = self.ranks.isdecimal()
        ranks = f"rank{'' if is_one or '=' in self.ranks else 's'} {self.ranks}" if self.ranks else ""
        about = self.name or (f"run {self.run}" if self.run else ranks)
        return f"{self.action.replace('_', ' ')} {about}".rstrip()


def sentence(text: str, remedies: Iterable[Remedy], word: Callable[[Remedy], str] = str) -> str:
    """``text`` with its suggested actions in the words of ``word``: "rank 2 is gone; restart rank 2 to replace it"."""
    actions = ", or ".join(f"{word(each)} to {each.effect}" for each in remedies)
    return f"{text}; {actions}" if actions else text
