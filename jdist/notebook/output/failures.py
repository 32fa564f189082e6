"""Failures: what went wrong in a run, first cause first, ranks that failed alike together, echoes under their cause."""

from collections.abc import Mapping

from msgspec import Struct

from jdist.core.outcome import ErrorInfo, Outcome, OutcomeKind
from jdist.core.ranks import RankSet, ranks_by
from jdist.core.topology import Topology
from jdist.notebook.text import ansi
from jdist.notebook.text.limits import naming
from jdist.notebook.text.number_folding import joined, numberless, skeleton

_URGENCY: Mapping[OutcomeKind, int] = {"lost": 0, "error": 1, "timeout": 2, "interrupted": 3, "value": 4}
# Characters of an exception's own message that are shown; the traceback and the rank's log have the rest.
_LONGEST_MESSAGE = 1000


class Failure(Struct, frozen=True):
    """Ranks on which the same thing went wrong. ``error`` is the first rank's; ``messages`` all ranks', in order."""

    kind: OutcomeKind
    ranks: tuple[int, ...]
    error: ErrorInfo | None
    messages: tuple[str, ...]
    is_echo: bool
    since: float  # Seconds from the start of the run's part on a rank to the earliest of these ends.
    topology: Topology | None = None
    timeout: float | None = None

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

    @property
    def traceback(self) -> str:
        """The first rank's traceback, with its colours."""
        return "\n".join(self.error.traceback) if self.error is not None else ""

    @property
    def headline(self) -> str:
        """Who, what and the message: ``rank 2 (node 1, b) failed: ValueError: bad 3``."""
        where = _located(self.ranks, self.topology)
        match self.kind:
            case "timeout":
                return self._timed_out(where)
            case "interrupted":
                return f"{where} interrupted"
            case "lost":
                return f"{where} lost: {_clipped(ansi.strip(self.error.evalue))}" if self.error else f"{where} lost"
        return f"{where} failed: {self.message}" if self.message else f"{where} failed"

    @property
    def brief(self) -> str:
        """The headline as a run's last line has it: ``rank 2 failed: ValueError``."""
        who = naming(self.ranks)
        match self.kind:
            case "timeout":
                return self._timed_out(who)
            case "error":
                return f"{who} failed: {ansi.strip(self.error.ename)}" if self.error else f"{who} failed"
        return f"{who} {self.kind}"

    def _timed_out(self, where: str) -> str:
        return f"timeout{'' if self.timeout is None else f' after {self.timeout:g} s'} on {where}"


def failures(
    outcomes: Mapping[int, Outcome],
    first_failed: int | None = None,
    topology: Topology | None = None,
    timeout: float | None = None,
) -> list[Failure]:
    """The failures of a run in the order in which they are reported: first cause first, echoes last.

    ``first_failed`` is the rank that was seen to fail first, where that is known; else the earliest end counts. The
    headlines need ``topology`` and ``timeout``, the run's deadline in seconds.
    """
    found = []
    for ranks in ranks_by((r, _likeness(o)) for r, o in sorted(outcomes.items()) if not o.ok).values():
        first = outcomes[ranks[0]]
        messages = tuple(e.evalue for r in ranks if (e := outcomes[r].error) is not None)
        is_echo = first.kind == "error" and first.error is not None and first.error.is_echo
        since = min(outcomes[r].duration for r in ranks)
        found.append(Failure(first.kind, tuple(ranks), first.error, messages, is_echo, since, topology, timeout))
    return sorted(found, key=lambda f: (f.is_echo, first_failed not in f.ranks, f.since, _URGENCY[f.kind], f.ranks))


def _likeness(outcome: Outcome) -> tuple[object, ...]:
    error = outcome.error
    if error is None:
        return (outcome.kind,)
    if outcome.kind in ("timeout", "interrupted"):  # what ended the call they were in differs by chance
        return (outcome.kind, error.cell_line)
    last = numberless(ansi.strip(error.traceback[-1])) if error.traceback else ""
    return (outcome.kind, error.is_echo, error.ename, numberless(error.evalue), error.cell_line, last)


def split_echoes(found: list[Failure]) -> tuple[list[Failure], list[Failure]]:
    """Causes and their echoes. When all are echoes the first one stands as the cause."""
    causes = [f for f in found if not f.is_echo]
    echoes = [f for f in found if f.is_echo]
    return (causes, echoes) if causes else (echoes[:1], echoes[1:])


def _located(ranks: tuple[int, ...], topology: Topology | None) -> str:
    """``rank 2 (node 1, host)`` or ``ranks 0-3 (nodes 0,1)``; without the nodes when they are not known."""
    if topology is None or max(ranks, default=0) >= topology.world_size:
        return naming(ranks)
    nodes = sorted({topology.node_rank(rank) for rank in ranks})
    if len(nodes) > 1:
        return f"{naming(ranks)} (nodes {RankSet(nodes)})"
    host = f", {topology.host_of(ranks[0])}" if topology.hostnames else ""
    return f"{naming(ranks)} (node {nodes[0]}{host})"


def _clipped(text: str) -> str:
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return f"{text[:_LONGEST_MESSAGE]} … {len(text) - _LONGEST_MESSAGE:,} more characters"
