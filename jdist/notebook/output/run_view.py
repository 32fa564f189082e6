"""RunView: one run at one moment, and what went wrong in it, from which text, HTML and JSON are written.

A run may also be a recorded one: the controller keeps it for front ends that have missed some of its output.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct, structs

from jdist.client.cluster import BaseCluster
from jdist.client.debug import list_places
from jdist.client.run import CellRun
from jdist.core.errors import Remedy
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import Verdict
from jdist.core.messages.runs import Output, RankDone
from jdist.core.messages.status import Notice
from jdist.core.outcome import ErrorInfo, Outcome, OutcomeKind
from jdist.core.quantities import format_count, format_duration, format_whole_seconds
from jdist.core.ranks import RankSet, ranks_by
from jdist.core.topology import Topology
from jdist.notebook.output.transcript import Block, Transcript
from jdist.notebook.text import markup, remedy_text
from jdist.notebook.text.cluster_text import PAUSE_SIGN
from jdist.notebook.text.folding import MOST_JOINED, FoldedFrames, fold_frames, joined, numberless
from jdist.notebook.text.markup import cut, naming
from jdist.notebook.text.remedy_text import command, is_magic, typed

_MOST_NOTICES = 3
_URGENCY: Mapping[OutcomeKind, int] = {"lost": 0, "error": 1, "timeout": 2, "interrupted": 3, "value": 4}
_ENDED: Mapping[OutcomeKind, str] = {
    "lost": "lost",
    "error": "failed",
    "timeout": "timed out",
    "interrupted": "interrupted",
}
_MOST_REMEDIES = 4
_SHORT_TRACEBACK = 30  # Lines.
_LONGEST_MESSAGE = 1000  # Characters of an exception's message that are shown; its traceback has the rest.


class Failure(Struct, frozen=True):
    """Ranks on which the same thing went wrong. ``error`` is the first rank's; ``messages`` all ranks', in order."""

    kind: OutcomeKind
    ranks: tuple[int, ...]
    error: ErrorInfo | None
    messages: tuple[str, ...]
    is_echo: bool
    since: float  # Seconds from the start of the run's part on a rank to the earliest of these ends.
    topology: Topology | None
    timeout: float | None  # The run's deadline in seconds.

    @property
    def message(self) -> str:
        """``ValueError: bad 3``; if the ranks' messages differ in the number at the end, with all: ``bad 3 | 4``."""
        if self.error is None:
            return ""
        text = self.error.evalue
        if len(set(self.messages)) > 1:
            together = joined(self.messages) if len(self.messages) <= MOST_JOINED else None
            text = together or f"{text} (rank {self.ranks[0]}; other ranks: other numbers)"
        text = _clipped(markup.strip(text))
        return f"{markup.strip(self.error.ename)}: {text}" if text else markup.strip(self.error.ename)

    @property
    def place(self) -> str:
        """``line 5: dist.all_reduce(t)``, ``train.py line 5: …`` of a script, or empty when it is not known."""
        if self.error is None:
            return ""
        source = markup.strip(self.error.source or "").strip()
        if self.error.cell_line is None:
            return source[:200]
        return f"line {self.error.cell_line}" + (f": {source[:200]}" if source else "")

    def traceback(self, *, is_full: bool) -> list[str | FoldedFrames]:
        """The first rank's traceback in pieces, with its colours; none if it says no more than the message."""
        text = "\n".join(self.error.traceback) if self.error is not None else ""
        if self.error is None or markup.strip(text).strip() in ("", self.message):
            return []
        return [text] if is_full else fold_frames(self.error)

    def stands_open(self, *, is_full: bool) -> bool:
        """Whether the traceback is so short that it stands open if this failure is the first that is shown."""
        pieces = self.traceback(is_full=is_full)
        lines = sum(1 if isinstance(piece, FoldedFrames) else piece.count("\n") + 1 for piece in pieces)
        return self.kind == "error" and lines <= _SHORT_TRACEBACK

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Suggested actions; a restart of the first rank is one of all these ranks, as they failed alike."""
        found = self.error.remedies if self.error is not None and self.kind == "error" else ()
        own, every = str(self.ranks[0]), str(RankSet(self.ranks))
        return tuple(
            structs.replace(each, ranks=every) if each.action == "restart" and each.ranks == own else each
            for each in found[:_MOST_REMEDIES]
        )

    @property
    def headline(self) -> str:
        """Who, what and the message: ``rank 2 (node 1, b) failed: ValueError: bad 3``."""
        if self.kind == "error":
            return self._describe(_located(self.ranks, self.topology), self.message)
        reason = _clipped(markup.strip(self.error.evalue)) if self.error is not None else ""
        return self._describe(_located(self.ranks, self.topology), reason)

    def _describe(self, where: str, reason: str) -> str:
        match self.kind:
            case "timeout":
                after = "" if self.timeout is None else f" after {self.timeout:g} s"
                return f"timeout{after} on {where}"
            case "interrupted":
                return f"{where} interrupted"
        end = "lost" if self.kind == "lost" else "failed"
        return f"{where} {end}: {reason}" if reason else f"{where} {end}"


def _likeness(outcome: Outcome) -> tuple[object, ...]:
    error = outcome.error
    if error is None:
        return (outcome.kind,)
    place = error.cell_line or error.source  # the source of a script has its line
    if outcome.kind in ("timeout", "interrupted"):  # what ended the call they were in differs by chance
        return (outcome.kind, place)
    last = numberless(markup.strip(error.traceback[-1])) if error.traceback else ""
    return (outcome.kind, error.is_echo, error.ename, numberless(error.evalue), place, last)


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


def verdict_text(verdict: Verdict, is_blocking: bool) -> str:
    """The verdict on a run that is not over; while the notebook waits for it, without cells that would wait, too."""
    if is_blocking and is_magic():
        typeable = tuple(each for each in verdict.remedies if each.action != "run_cell")
        verdict = structs.replace(verdict, remedies=typeable)
    return verdict.text(command)


def verdict_of(run: CellRun) -> Verdict | None:
    """The run's verdict, unless its outcomes say the same."""
    is_loss = run.is_done and run.verdict is not None and run.verdict.kind == "lost"
    return None if is_loss else run.verdict


class RunView(Struct, frozen=True, kw_only=True, dict=True):
    """One run at one moment, all that is needed to show it. ``elapsed`` and ``timeout`` are seconds."""

    run: int
    ranks: tuple[int, ...]
    state: Literal["waiting", "running", "done"]
    elapsed: float = 0.0
    blocks: Sequence[Block] = ()
    outcomes: Mapping[int, Outcome] = {}  # The outcomes of the ranks that have finished.
    notices: tuple[str, ...] = ()
    topology: Topology | None = None
    lead: int | None = None  # Show this rank's output only, the others' one click away.
    cluster: str = ""  # The cluster's name.
    cluster_id: str = ""  # Tells apart clusters of the same name.
    is_blocking: bool = False  # The notebook waits for it: a cell for its ranks would wait behind it.
    timeout: float | None = None  # The run's deadline, named once it has passed.
    verdict: Verdict | None = None  # Why the run does not move, or did not finish.
    has_told_verdict: bool = False  # The user has read it already.
    first_failed: int | None = None  # The rank that was seen to fail first; without it the earliest end counts.
    paused: Mapping[int, RankPaused] = {}  # Where ranks are paused.
    is_full: bool = False  # Show whole tracebacks, also the frames of installed packages.
    frames: str = ""  # In which frames the cell runs, if not in the ranks' own names, such as "in the paused frames".

    @property
    def verdict_text(self) -> str:
        """The verdict in words; once the run is over, without suggested actions."""
        if self.verdict is None or self.has_told_verdict:
            return ""
        is_over = self.state == "done"
        return markup.strip(self.verdict.final_text if is_over else verdict_text(self.verdict, self.is_blocking))

    @property
    def paused_text(self) -> str:
        """Where the ranks are paused, and how to resume them; "" if none is."""
        if not self.paused:
            return ""
        others = [rank for rank in self.ranks if rank not in self.outcomes and rank not in self.paused]
        unknown = f"not paused; {typed('where')} shows what {'it does' if len(others) == 1 else 'they do'}"
        lines = list_places(self.paused, dict.fromkeys(others, unknown))
        how = "%%dist cells run in the paused frames" if is_magic() else f"{typed('where')} shows the stacks"
        head = f"{PAUSE_SIGN} run {self.run} is paused · {typed('continue')} resumes it · {how}"
        return "\n  ".join((head, *map(markup.strip, lines)))

    @cached_property
    def failures(self) -> tuple[list[Failure], list[Failure]]:
        """Causes, the first one first, and their echoes. When all are echoes the first one stands as the cause."""
        found = []
        for ranks in ranks_by((r, _likeness(o)) for r, o in sorted(self.outcomes.items()) if not o.ok).values():
            kind, error = self.outcomes[ranks[0]].kind, self.outcomes[ranks[0]].error
            messages = tuple(e.evalue for r in ranks if (e := self.outcomes[r].error) is not None)
            is_echo = kind == "error" and error is not None and error.is_echo
            since = min(self.outcomes[r].duration for r in ranks)
            found.append(Failure(kind, tuple(ranks), error, messages, is_echo, since, self.topology, self.timeout))
        first = self.first_failed
        found.sort(key=lambda f: (f.is_echo, first not in f.ranks, f.since, _URGENCY[f.kind], f.ranks))
        count = sum(not failure.is_echo for failure in found) or 1
        return found[:count], found[count:]

    @property
    def follows_failures(self) -> bool:
        """Whether the verdict stands below the failures: ranks wait for one that has failed, which is the cause."""
        v = self.verdict
        if v is None or v.kind == "mismatch":
            return False
        causes, _ = self.failures
        return any(f.kind in ("error", "lost") and not f.is_echo and set(f.ranks) & set(v.responsible) for f in causes)

    @property
    def echo_summary(self) -> str:
        """``ranks 0,2 failed because of rank 1``; there is at least one echo."""
        causes, echoes = self.failures
        is_mismatch = self.verdict is not None and self.verdict.kind == "mismatch"
        cause = "that" if is_mismatch else naming(causes[0].ranks)  # the verdict stands above it
        return f"{naming(rank for echo in echoes for rank in echo.ranks)} failed because of {cause}"

    def newest_notices(self, longest: int) -> list[str]:
        """A few notices, each of at most ``longest`` characters, and before them how many were left out."""
        notices = list(self.notices)
        if len(notices) > _MOST_NOTICES:
            notices = [f"{len(notices) - 2} earlier notices left out", *notices[-2:]]
        return [cut(markup.strip(text), longest) for text in notices]

    @property
    def footer(self) -> str:
        """``run 12 · 4 ranks · 0.03 s · 1 failed``, or how far the run is. What went wrong has been told above it."""
        count = format_count(len(self.ranks), "rank")
        words = [f"run {self.run}"]
        if self.state == "waiting":
            words += ["waiting", count]
        elif self.state == "running":
            missing = [rank for rank in self.ranks if rank not in self.outcomes]
            words += [f"{len(self.ranks) - len(missing)} of {count} done", format_whole_seconds(self.elapsed)]
            moving = [rank for rank in missing if rank not in self.paused]
            words += [f"running on {naming(moving)}"] if moving else []
            words += [f"paused on {naming(self.paused)}"] if self.paused else []
        else:
            words += [count, format_duration(self.elapsed)]
        words += [self.frames] if self.frames else []
        causes, _ = self.failures
        ended = Counter(dict.fromkeys(_ENDED, 0))
        for cause in causes:
            ended[cause.kind] += len(cause.ranks)
        words += [f"{ended[kind]} {word}" for kind, word in _ENDED.items() if ended[kind]]
        return " · ".join(words)


def recorded_view(cluster: BaseCluster, run: CellRun, *, is_full: bool = False) -> RunView:
    """The run of :meth:`~jdist.client.cluster.AsyncCluster.read_run`, to be shown as it would have been shown live."""
    transcript, notices = Transcript(run.ranks), []

    def feed(message: Message | None) -> None:
        match message:
            case Output():
                for item in message.items:
                    transcript.feed(item)
            case RankDone():
                transcript.close([message.rank])
            case Notice():
                notices.append(remedy_text.worded(message))

    run.watch(feed)
    if run.is_done:
        transcript.close()
    return RunView(
        run=run.number,
        ranks=tuple(run.ranks),
        state="done" if run.is_done else "waiting" if run.state == "queued" else "running",
        elapsed=run.seconds,
        blocks=transcript.blocks(),
        outcomes=dict(run.outcomes),
        notices=tuple(notices),
        topology=cluster.facts.topology,
        timeout=run.timeout,
        first_failed=run.first_failure,
        verdict=verdict_of(run),
        cluster=cluster.name,
        cluster_id=cluster.id,
        paused=dict(run.paused),
        is_full=is_full,
    )
