"""The controller's own runs: setup cells, run again on fresh ranks, and the callbacks after a re-forming. Pure.

Both are queued when the world has been formed, ahead of every cell of a user, and setup cells come first.
"""

from collections.abc import Iterable

from jdist.controller.model.model import Model
from jdist.controller.model.runs import ON_REFORM, SETUP, Run
from jdist.controller.model.world import Numbering
from jdist.core.messages.runs import CellSpec
from jdist.core.messages.status import Notice
from jdist.core.rank_code import call_on_reform


class OwnRuns:
    """Remembers setup cells, the newest last (one that is run again becomes that), and queues the controller's runs."""

    def __init__(self, model: Model):
        self._model = model
        self._cells: dict[str, tuple[int, ...]] = {}  # `{code: workers that ran it}`.

    def remember(self, run: Run) -> None:
        """The cell was run with ``--setup``."""
        self._cells.pop(run.spec.code, None)
        self._cells[run.spec.code] = tuple(self._model.world.ranks[r].worker for r in run.ranks)

    def restore(self, cells: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """The cells that an earlier controller remembered, oldest first, with the workers that ran them."""
        self._cells = dict(cells) | self._cells

    def grow(self, added: tuple[int, ...]) -> None:
        """Ranks are new in the world: what all others have run is for them, too."""
        ranks = self._model.world.ranks
        new = tuple(ranks[r].worker for r in added)
        others = {rank.worker for rank in ranks.values()} - set(new)
        self._cells = {code: (*ran, *new) if others.issubset(ran) else ran for code, ran in self._cells.items()}

    def handle_removal(self, numbering: Numbering) -> None:
        """Ranks have been removed and the others have new ones: what was run on none that is left is forgotten."""
        m = self._model
        workers = {rank.worker for rank in m.world.ranks.values()}
        self._cells = {code: ran for code, ran in self._cells.items() if workers.intersection(ran)}
        for run in m.runs.queued:
            run.ranks = numbering.kept(run.ranks)
        m.runs.queued = [run for run in m.runs.queued if run.ranks]

    def drop_replays(self, rank: int) -> None:
        """The rank is replaced again: what waits to be replayed on it will be queued anew."""
        for run in self._model.runs.queued:
            if run.is_own:
                run.ranks = tuple(r for r in run.ranks if r != rank)
        self._model.runs.queued = [run for run in self._model.runs.queued if run.ranks]

    def queue(self) -> None:
        """The world has been formed: queue the setup cells for the ranks that need them, then the callbacks."""
        m = self._model
        fresh = [r for _, r in sorted(m.world.ranks.items()) if r.needs_setup]
        own = []
        for code, workers in self._cells.items():
            wanted = tuple(r.rank for r in fresh if r.worker in workers)
            if wanted:
                spec = CellSpec(code, is_setup=True, is_internal=True)
                own.append(Run(m.runs.new_number(), "", spec, wanted, purpose=SETUP))
        for rank in fresh:
            rank.needs_setup = False
        if self._calls_functions():
            code = call_on_reform(m.generation)
            own.append(
                Run(m.runs.new_number(), "", CellSpec(code, is_internal=True), tuple(m.world.ranks), purpose=ON_REFORM)
            )
        m.runs.queued = [*own, *(run for run in m.runs.queued if run.purpose != ON_REFORM)]

    def _calls_functions(self) -> bool:
        """Whether functions of jdist.on_reform are to be called; not if they have just been ended in the middle."""
        m = self._model
        was_ended, m.reform_ended = m.reform_ended, False
        if not any(r.wants_reform for r in m.world.ranks.values()):
            return False
        if was_ended:
            what = "the functions of jdist.on_reform were ended before they were done"
            m.broadcast(Notice(f"{what}, and are not called again for that; call them in a cell"))
        return not was_ended
