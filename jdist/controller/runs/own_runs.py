"""The controller's own runs: setup cells, run again on fresh ranks, and the callbacks after a re-forming. Pure.

Both are queued when the world has been formed, ahead of every cell of a user, and setup cells come first.
"""

from collections.abc import Iterable

from jdist.controller.model.model import Model
from jdist.controller.model.runs import ON_REFORM, SETUP, Run
from jdist.controller.model.world import Numbering
from jdist.core.messages.status import Notice
from jdist.core.rank_code import call_on_reform


class SetupCells:
    """The remembered cells, in order; a cell that is run again takes its newest place."""

    def __init__(self, model: Model):
        self._model = model
        self._cells: dict[str, tuple[int, ...]] = {}

    def remember(self, run: Run) -> None:
        """The cell was run with ``--setup``."""
        self._cells.pop(run.code, None)
        self._cells[run.code] = tuple(self._model.world.ranks[r].worker for r in run.ranks)

    def restore(self, cells: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """The cells that an earlier controller remembered, oldest first, with the workers that ran them."""
        self._cells = dict(cells) | self._cells

    def grow(self, added: tuple[int, ...]) -> None:
        """Ranks are new in the world: what all others have run is for them, too."""
        ranks = self._model.world.ranks
        new = tuple(ranks[r].worker for r in added)
        others = {rank.worker for rank in ranks.values()} - set(new)
        for code, workers in self._cells.items():
            if set(workers) >= others:
                self._cells[code] = (*workers, *new)

    def handle_removal(self, numbering: Numbering) -> None:
        """Ranks have been removed and the others have new ones: what was run on none that is left is forgotten."""
        m = self._model
        workers = {rank.worker for rank in m.world.ranks.values()}
        self._cells = {code: ran for code, ran in self._cells.items() if workers.intersection(ran)}
        for run in list(m.runs.queued):
            run.ranks = numbering.kept(run.ranks)
            if not run.ranks:
                m.runs.queued.remove(run)

    def queue_replays(self) -> None:
        """Queue the cells for the ranks that need them, ahead of everything else."""
        m = self._model
        fresh = {r.rank for r in m.world.ranks.values() if r.needs_setup}
        for rank in fresh:
            m.world.ranks[rank].needs_setup = False
        replays = []
        for code, workers in self._cells.items():
            wanted = tuple(r for r in sorted(fresh) if m.world.ranks[r].worker in workers)
            if wanted:
                replays.append(Run(m.runs.new_number(), "", code, wanted, is_internal=True, purpose=SETUP))
        for run in reversed(replays):
            m.runs.add(run, first=True)

    def drop_replays(self, rank: int) -> None:
        """The rank is replaced again: what waits to be replayed on it will be queued anew."""
        for run in list(self._model.runs.queued):
            if run.is_own and rank in run.ranks:
                run.ranks = tuple(r for r in run.ranks if r != rank)
                if not run.ranks:
                    self._model.runs.queued.remove(run)


class ReformCallbacks:
    """Queues the internal run that calls the functions registered with `jdist.on_reform`."""

    def __init__(self, model: Model):
        self._model = model

    def queue(self) -> None:
        """The world has been formed: have them called before anything else but setup cells."""
        m = self._model
        for run in [r for r in m.runs.queued if r.purpose == ON_REFORM]:
            m.runs.queued.remove(run)  # of a generation that is over
        was_ended, m.reform_ended = m.reform_ended, False
        if not any(r.wants_reform for r in m.world.ranks.values()):
            return
        if was_ended:
            text = (
                "the functions of jdist.on_reform were ended before they were done, and are not called again for that"
            )
            m.broadcast(Notice(f"{text}; call them in a cell"))
            return
        code = call_on_reform(m.generation)
        ranks = tuple(m.world.ranks)
        m.runs.add(Run(m.runs.new_number(), "", code, ranks, is_internal=True, purpose=ON_REFORM), first=True)
