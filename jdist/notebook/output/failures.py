"""Failures: what went wrong in a run, first cause first, ranks that failed alike together, echoes under their cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from jdist.core.outcome import ErrorInfo, Outcome, OutcomeKind
from jdist.core.ranks import RankSet
from jdist.core.topology import Topology
from jdist.notebook.output.number_folding import joined, numberless, skeleton
from jdist.notebook.text import ansi

_URGENCY: Mapping[OutcomeKind, int] = {"lost": 0, "error": 1, "timeout": 2, "interrupted": 3, "value": 4}
_LONGEST_MESSAGE = 1000
"""Characters of an exception's own message that are shown; the traceback and the rank's log have the rest."""
_LONGEST_RANKS = 60
"""A set of ranks whose name is longer is counted instead."""


class Failure(Struct, frozen=True):
    """Ranks on which the same thing went wrong. ``error`` is the first rank's; ``messages`` all ranks', in order."""

    kind: OutcomeKind
    ranks: tuple[int, ...]
    error: ErrorInfo | None
    messages: tuple[str, ...]
    is_echo: bool
    since: float
    """Seconds from the start of the run's part on a rank to the earliest of these ends."""

    @property
    def message(self) -> str:
        """``ValueError: bad 3``; when the ranks' messages differ in their numbers, all of them: ``bad 3 | 4``."""
        if self.error is None:
            return ""
        text = self.error.evalue
        if len(set(self.messages)) > 1:
            alike = {s[0] if (s := skeleton(m)) else None for m in self.messages}
            if len(self.messages) <= 8 and len(alike) == 1 and None not in alike:
                text = joined(self.messages)
            else:
                text = f"{text} (rank {self.ranks[0]}; other ranks: other numbers)"
        text = _clipped(ansi.strip(text))
        return f"{ansi.strip(self.error.ename)}: {text}" if text else ansi.strip(self.error.ename)

    @property
    def place(self) -> str:
        """``line 5: dist.all_reduce(t)``, ``train.py line 5: …`` of a script, or empty when it is not known."""
        if self.error is None:
            return ""
        source = ansi.strip(self.error.source or "").strip()
        if self.error.cell_line is None:
            return source[:200]
        return f"line {self.error.cell_line}" + (f": {source[:200]}" if source else "")


def failures(outcomes: Mapping[int, Outcome], first_failed: int | None = None) -> list[Failure]:
    """The failures of a run in the order to tell them: first cause first, echoes last.

    ``first_failed`` is the rank that was seen to fail first, where that is known; else the earliest end counts.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        if not outcome.ok:
            groups.setdefault(_likeness(outcome), []).append(rank)
    found = [_failure(ranks, outcomes) for ranks in groups.values()]
    return sorted(found, key=lambda f: (f.is_echo, first_failed not in f.ranks, f.since, _URGENCY[f.kind], f.ranks))


def _likeness(outcome: Outcome) -> tuple[object, ...]:
    error = outcome.error
    if error is None:
        return (outcome.kind,)
    if outcome.kind in ("timeout", "interrupted"):  # what ended the call they were in differs by chance
        return (outcome.kind, error.cell_line)
    last = numberless(ansi.strip(error.traceback[-1])) if error.traceback else ""
    return (outcome.kind, error.is_echo, error.ename, numberless(error.evalue), error.cell_line, last)


def _failure(ranks: list[int], outcomes: Mapping[int, Outcome]) -> Failure:
    first = outcomes[ranks[0]]
    messages = tuple(e.evalue for r in ranks if (e := outcomes[r].error) is not None)
    is_echo = first.kind == "error" and first.error is not None and first.error.is_echo
    since = min(outcomes[r].duration for r in ranks)
    return Failure(first.kind, tuple(ranks), first.error, messages, is_echo, since)


def split_echoes(found: list[Failure]) -> tuple[list[Failure], list[Failure]]:
    """Causes and their echoes. When all are echoes the first one stands as the cause."""
    causes = [f for f in found if not f.is_echo]
    echoes = [f for f in found if f.is_echo]
    return (causes, echoes) if causes else (echoes[:1], echoes[1:])


def naming(ranks: Iterable[int]) -> str:
    """``rank 2`` or ``ranks 0-3,7``."""
    chosen = RankSet(ranks)
    text = str(chosen)
    if len(text) > _LONGEST_RANKS:
        return f"{len(chosen)} ranks ({text[:_LONGEST_RANKS].rsplit(',', 1)[0]},…)"
    return f"rank {text}" if len(chosen) == 1 else f"ranks {text}"


def located(ranks: tuple[int, ...], topology: Topology | None) -> str:
    """``rank 2 (node 1, host)`` or ``ranks 0-3 (nodes 0,1)``; without the nodes when they are not known."""
    if topology is None or max(ranks, default=0) >= topology.world_size:
        return naming(ranks)
    nodes = sorted({topology.node_rank(rank) for rank in ranks})
    if len(nodes) > 1:
        return f"{naming(ranks)} (nodes {RankSet(nodes)})"
    host = f", {topology.host_of(ranks[0])}" if topology.hostnames else ""
    return f"{naming(ranks)} (node {nodes[0]}{host})"


def headline(failure: Failure, where: str, timeout: float | None = None) -> str:
    """One line: who, what, and the message: ``rank 2 (node 1, b) failed: ValueError: bad 3``."""
    if failure.kind == "timeout":
        after = f" after {timeout:g} s" if timeout is not None else ""
        return f"timeout{after} on {where}"
    if failure.kind == "interrupted":
        return f"{where} interrupted"
    if failure.kind == "lost":
        return f"{where} lost: {_clipped(ansi.strip(failure.error.evalue))}" if failure.error else f"{where} lost"
    return f"{where} failed: {failure.message}" if failure.message else f"{where} failed"


def in_short(failure: Failure, timeout: float | None = None) -> str:
    """What a run's last line says of it: ``rank 2 failed: ValueError``."""
    if failure.kind == "error" and failure.error is not None:
        return f"{naming(failure.ranks)} failed: {ansi.strip(failure.error.ename)}"
    if failure.kind == "lost":
        return f"{naming(failure.ranks)} lost"
    return headline(failure, naming(failure.ranks), timeout)


def advice(causes: list[Failure]) -> str:
    """What to do next, in one line."""
    lost = sorted({rank for f in causes if f.kind == "lost" for rank in f.ranks})
    if lost:
        return f"%dist restart -r {RankSet(lost)} gives a fresh process; the lost namespace does not come back"
    kinds = {f.kind for f in causes}
    if "error" in kinds:
        return "correct the cell and run it again; every namespace is kept, err.values has what the other ranks gave"
    if "timeout" in kinds:
        return "%dist status says what each rank does; run again with a longer -t, every namespace is kept"
    return "every namespace is kept; run the cell again when ready"


def _clipped(text: str) -> str:
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return f"{text[:_LONGEST_MESSAGE]} … {len(text) - _LONGEST_MESSAGE:,} more characters"
