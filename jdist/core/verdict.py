"""Verdict: why a run makes no progress, or which mismatch passed unnoticed, by rank, collective and line. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from jdist.core.remedy import Remedy

VerdictKind = Literal["missing", "mismatch", "transfer", "store", "cycle", "slow", "lost"]
"""missing: a rank will not enter a collective in which others wait. mismatch: ranks of a group are in different
collectives under one sequence number, or in the same one with different shapes, dtypes, roots, reductions or splits.
transfer: a send without its recv, or a recv without its send. store: a wait at the rendezvous store for a key that no
rank will set. cycle: ranks wait for each other in a circle. lost: a rank's process is gone. slow: ranks wait for a busy
rank, and may still continue."""
INTERRUPT = Remedy("interrupt", "stop the run everywhere, namespaces kept, group re-formed")
"""Suggested for every run that makes no progress."""


class Verdict(Struct, frozen=True, omit_defaults=True):
    """Why a run makes no progress. ``str()`` gives it in plain words; front ends word the remedies themselves."""

    run: int
    kind: VerdictKind
    responsible: tuple[int, ...]
    """The ranks that the others wait for, those in the minority of a mismatch, or the members of a cycle."""
    waiting: tuple[int, ...]
    reason: str
    """One line, without the run's number."""
    details: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    op: str = ""
    group: str = ""
    number: int = 0
    """Sequence number of the collective in its group; 0 if none is pending."""
    has_passed: bool = False
    """A mismatch that blocked no rank: the run has finished, and the results of the call are wrong."""

    @property
    def is_certain(self) -> bool:
        """Whether the run cannot finish unless the user acts."""
        return self.kind != "slow" and not self.has_passed

    @property
    def headline(self) -> str:
        """The first line while the run is active."""
        if self.has_passed:
            return f"run {self.run} finished, but {self.reason}"
        return f"run {self.run} {'cannot finish' if self.is_certain else 'waits'}: {self.reason}"

    @property
    def final_headline(self) -> str:
        """The first line once the run is over."""
        return self.headline if self.has_passed else f"run {self.run} did not finish: {self.reason}"

    @property
    def final_text(self) -> str:
        """The text once the run is over, without suggested actions."""
        return "\n  ".join((f"● {self.final_headline}", *self.details))

    def text(self, word: Callable[[Remedy], str] = str) -> str:
        """The text while the run is active; ``word`` gives the front end's words for a suggested action."""
        actions = [(word(remedy), remedy.effect) for remedy in self.remedies]
        width = max((len(action) for action, _ in actions), default=0)
        lines = (f"→ {action:<{width}}  {effect}" for action, effect in actions)
        return "\n  ".join((f"● {self.headline}", *self.details, *lines))

    def __str__(self) -> str:
        return self.text()
