"""RunView: one run at one moment. Its plain text, its HTML and its JSON are all written from this."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct

from jdist.core.observation import Verdict
from jdist.core.outcome import Outcome
from jdist.core.quantities import format_count, format_duration, format_whole_seconds
from jdist.core.topology import Topology
from jdist.notebook.output.failures import Failure, failures, split_echoes
from jdist.notebook.output.transcript import Block
from jdist.notebook.text import ansi
from jdist.notebook.text.limits import cut, naming
from jdist.notebook.text.remedy_text import command

_MOST_NOTICES = 3


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
    timeout: float | None = None  # The run's deadline, named once it has passed.
    verdict: Verdict | None = None  # Why the run does not move, or did not finish.
    first_failed: int | None = None  # The rank that was seen to fail first; without it the earliest end counts.

    @property
    def verdict_text(self) -> str:
        """The verdict in words; once the run is over, without suggested actions."""
        if self.verdict is None:
            return ""
        return ansi.strip(self.verdict.final_text if self.state == "done" else self.verdict.text(command))

    @cached_property
    def failures(self) -> tuple[list[Failure], list[Failure]]:
        """Causes, the first one first, and their echoes."""
        return split_echoes(failures(self.outcomes, self.first_failed, self.topology, self.timeout))

    @property
    def echo_summary(self) -> str:
        """``ranks 0,2 failed because of rank 1``; there is at least one echo."""
        causes, echoes = self.failures
        return f"{naming(rank for echo in echoes for rank in echo.ranks)} failed because of {naming(causes[0].ranks)}"

    def newest_notices(self, longest: int) -> list[str]:
        """A few notices, each of at most ``longest`` characters, and before them how many were left out."""
        notices = list(self.notices)
        if len(notices) > _MOST_NOTICES:
            notices = [f"{len(notices) - 2} earlier notices left out", *notices[-2:]]
        return [cut(ansi.strip(text), longest) for text in notices]

    @property
    def footer(self) -> str:
        """``run 12 · 4 ranks · 0.03 s · rank 2 failed: ValueError``, or how far the run is."""
        count = format_count(len(self.ranks), "rank")
        words = [f"run {self.run}"]
        if self.state == "waiting":
            words += ["waiting", count]
        elif self.state == "running":
            missing = [rank for rank in self.ranks if rank not in self.outcomes]
            words += [f"{len(self.ranks) - len(missing)} of {count} done", format_whole_seconds(self.elapsed)]
            words += [f"running on {naming(missing)}"] if missing else []
        else:
            words += [count, format_duration(self.elapsed)]
        causes, _ = self.failures
        words += [cut(cause.brief, 150) for cause in causes[:3]]
        words += [f"{len(causes) - 3} more"] if len(causes) > 3 else []
        return " · ".join(words)
