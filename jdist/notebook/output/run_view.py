"""View: one run at one moment, all that is needed to show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from jdist.core.outcome import Outcome
from jdist.core.topology import Topology
from jdist.core.verdict import Verdict
from jdist.notebook.output.transcript import Block


class RunView(Struct, frozen=True, kw_only=True):
    """One run at one moment, all that is needed to show it. ``elapsed`` and ``timeout`` are seconds."""

    run: int
    ranks: tuple[int, ...]
    state: Literal["waiting", "running", "done"]
    elapsed: float = 0.0
    blocks: Sequence[Block] = ()
    outcomes: Mapping[int, Outcome] = {}
    """Of the ranks that are through."""
    notices: tuple[str, ...] = ()
    topology: Topology | None = None
    lead: int | None = None
    """Show this rank's output only, the others' one click away."""
    title: str = ""
    cluster: str = ""
    """The cluster's name."""
    timeout: float | None = None
    """The run's deadline, named when it has passed."""
    verdict: Verdict | None = None
    """Why the run does not move, or did not finish."""
    first_failed: int | None = None
    """The rank that was seen to fail first; without it the earliest end counts."""

    @property
    def told(self) -> str:
        """The verdict in words: once the run is over, without ways out of it."""
        if self.verdict is None:
            return ""
        return self.verdict.final_text if self.state == "done" else str(self.verdict)
