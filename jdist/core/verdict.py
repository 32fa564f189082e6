"""Verdict: why a run does not move, or what went wrong in it unnoticed, by rank, collective and line."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

VerdictKind = Literal["missing", "mismatch", "transfer", "store", "cycle", "slow", "lost"]
"""missing: a rank will not enter a collective in which others wait. mismatch: ranks of a group are in different
collectives under one number, or in the same one with other shapes, dtypes, roots, reductions or splits. transfer: a
send without its recv, or the other way round. store: a wait at the rendezvous store that nobody will end. cycle: ranks
wait for each other in a circle. lost: a rank's process is gone. slow: ranks wait for a busy one, and may yet go on."""


class Remedy(Struct, frozen=True):
    """A way out: what to type, and what it does."""

    command: str
    effect: str


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What is known about a run that does not move. ``str()`` is what the user is shown."""

    run: int
    kind: VerdictKind
    responsible: tuple[int, ...]
    """The ranks that the others wait for; those of a mismatch's minority, or of a cycle."""
    waiting: tuple[int, ...]
    reason: str
    """One line, without the run's number."""
    details: tuple[str, ...] = ()
    ways: tuple[Remedy, ...] = ()
    op: str = ""
    group: str = ""
    number: int = 0
    """Of the collective in its group; 0 where no collective is waited in."""
    has_passed: bool = False
    """Of a mismatch that stopped nobody: the run has finished, and what the call left is wrong."""

    @property
    def is_certain(self) -> bool:
        """Whether the run cannot finish unless somebody acts."""
        return self.kind != "slow" and not self.has_passed

    @property
    def headline(self) -> str:
        """The first line."""
        if self.has_passed:
            return f"run {self.run} finished, but {self.reason}"
        return f"run {self.run} {'cannot finish' if self.is_certain else 'waits'}: {self.reason}"

    @property
    def final_headline(self) -> str:
        """The first line once the run is over."""
        return self.headline if self.has_passed else f"run {self.run} did not finish: {self.reason}"

    @property
    def final_text(self) -> str:
        """What is shown once the run is over: no way out is needed any more."""
        return "\n  ".join((f"● {self.final_headline}", *self.details))

    def __str__(self) -> str:
        width = max((len(w.command) for w in self.ways), default=0)
        ways = (f"→ {w.command:<{width}}  {w.effect}" for w in self.ways)
        return "\n  ".join((f"● {self.headline}", *self.details, *ways))
