"""Setup: cells that are remembered and run again on any fresh rank, before anything else runs there. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jdist.controller.model.context import Context
from jdist.controller.model.numbering import Numbering
from jdist.controller.model.runs import SETUP, Run


class Setup:
    """The remembered cells, in order; a cell that is run again takes its newest place."""

    def __init__(self, context: Context):
        self._context = context
        self._cells: dict[str, tuple[int, ...]] = {}

    def remember(self, run: Run) -> None:
        """The cell was run with ``--setup``."""
        self._cells.pop(run.code, None)
        self._cells[run.code] = run.ranks

    def restore(self, cells: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """The cells that an earlier controller remembered, oldest first."""
        self._cells = dict(cells) | self._cells

    def grow(self, added: tuple[int, ...]) -> None:
        """Ranks are new in the world: what all others have run is for them, too."""
        others = set(self._context.world.ranks) - set(added)
        for code, ranks in self._cells.items():
            if set(ranks) >= others:
                self._cells[code] = (*ranks, *added)

    def renumber(self, numbering: Numbering) -> None:
        """Ranks have other numbers; what was run on none that is left is forgotten."""
        kept = {code: numbering.kept(ranks) for code, ranks in self._cells.items()}
        self._cells = {code: ranks for code, ranks in kept.items() if ranks}
        for run in list(self._context.runs.queued):
            run.ranks = numbering.kept(run.ranks)
            if not run.ranks:
                self._context.runs.queued.remove(run)

    def queue_replays(self) -> None:
        """Queue the cells for the ranks that need them, ahead of everything else."""
        c = self._context
        fresh = {r.rank for r in c.world.ranks.values() if r.needs_setup}
        for rank in fresh:
            c.world.ranks[rank].needs_setup = False
        replays = []
        for code, ranks in self._cells.items():
            wanted = tuple(r for r in ranks if r in fresh)
            if wanted:
                replays.append(Run(c.runs.new_number(), "", code, wanted, is_internal=True, purpose=SETUP))
        for run in reversed(replays):
            c.runs.add(run, first=True)

    def drop_replays(self, rank: int) -> None:
        """The rank is replaced again: what waits to be replayed on it will be queued anew."""
        for run in list(self._context.runs.queued):
            if run.is_own and rank in run.ranks:
                run.ranks = tuple(r for r in run.ranks if r != rank)
                if not run.ranks:
                    self._context.runs.queued.remove(run)
