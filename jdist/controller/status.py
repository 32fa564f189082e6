"""Facts: what clients are told about the cluster, in a few words and in a row for each rank. Pure."""

from __future__ import annotations

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.heartbeats import Heartbeats
from jdist.controller.model.model import Model
from jdist.controller.model.world import Rank
from jdist.core.messages.status import OBSERVER, ClusterFacts, RankFacts, RunsChanged, StatusReport
from jdist.core.topology import Topology

_PACE = 0.1
"""Seconds between two tellings of what changes with each rank that comes."""

Mark = tuple[object, ...]


class StatusReporter:
    """Says what is known, and says it again when it has changed.

    What is known costs as much to look through as there are ranks, and each rank says much: so what a rank's ordinary
    word may have changed is told by :meth:`mark`, and how many have come so far is not told for each of them.
    """

    def __init__(self, model: Model, formation: Formation, heartbeats: Heartbeats):
        self._model = model
        self._heartbeats = heartbeats
        self._formation = formation
        self._told: ClusterFacts | None = None
        self._told_at = -_PACE
        self.due: float | None = None
        """When a change that was not told at once is to be told."""
        self._moves: object = ([], [])
        """The runs as those that look on were told last."""

    def now(self) -> ClusterFacts:
        """The cluster in a few words."""
        c = self._model
        topology = c.world.topology
        reason = c.reason or c.missing_ranks()
        here = [n in c.world.nodes and c.world.nodes[n].is_here for n in range(c.world.nnodes)]
        return ClusterFacts(
            name=c.settings.name,
            phase=c.phase,
            generation=c.generation,
            backend=self._formation.backend if c.world.is_complete else c.settings.backend,
            nnodes=c.world.nnodes,
            nproc_per_node=topology.nproc_per_node,
            hostnames=tuple(h if here[n] else "" for n, h in enumerate(topology.hostnames)),
            ready=sum(r.has_process for r in c.world.ranks.values()),
            groups=dict(self._formation.named),
            mesh=self._formation.mesh,
            reason=reason,
            remedies=c.remedies() if reason else (),
            init_seconds=self._formation.init_seconds,
            unreachable=tuple(n for n in sorted(c.world.nodes) if c.world.nodes[n].is_cut_off),
            is_by_task=c.world.is_by_task,
            node_of=topology.node_of,
            launcher_names=tuple(
                c.world.nodes[n].facts.launcher_name if n in c.world.nodes else "" for n in range(c.world.nnodes)
            ),
            left_out=c.left_out,
        )

    def mark(self) -> Mark:
        """Another one if the cluster's life has taken a turn. Takes the same time for any number of ranks."""
        c = self._model
        runs = len(c.runs.running), len(c.runs.queued)
        return c.phase, c.generation, c.reason, c.is_dirty, len(c.world.ranks), c.world.nnodes, c.broadcasts, *runs

    def tell_soon(self) -> None:
        """The same as :meth:`tell_changes`, now or a moment later."""
        if self._model.now >= self._told_at + _PACE:
            self.tell_changes()
        else:
            self.due = self._told_at + _PACE

    def tell_changes(self) -> None:
        """Tell every client if something has changed since it was told last."""
        self._told_at, self.due = self._model.now, None
        facts = self.now()
        if facts != self._told:
            self._told = facts
            self._model.broadcast(facts)

    def tell_moves(self) -> None:
        """The news of a run are its client's; those that look on hear that there are some."""
        if OBSERVER not in self._model.clients.values():
            return
        runs = self._model.runs
        moves = [(r.number, r.abort_reason, r.verdict) for r in runs.running.values()]
        seen = (moves, [r.number for r in runs.queued])
        if seen != self._moves:
            self._moves = seen
            self._model.notify_observers(RunsChanged())

    def survey(self, request: str) -> StatusReport:
        """Every rank's row, unfinished runs, and the groups that cells made."""
        c = self._model
        runs = [
            (
                r.number,
                "halted" if r.abort_reason else state,
                r.ranks,
                0.0 if r.started_at is None else c.now - r.started_at,
            )
            for state, part in (("running", c.runs.running.values()), ("queued", c.runs.queued))
            for r in part
        ]
        topology = c.world.topology
        rows = tuple(self._row(rank, topology) for rank in c.world.ranks.values())
        verdicts = tuple(r.verdict for r in c.runs.running.values() if r.verdict is not None)
        groups, silences = c.world.common_groups(c.generation), self._heartbeats.silences()
        return StatusReport(request, self.now(), rows, tuple(runs), groups, verdicts, silences)

    def _row(self, rank: Rank, topology: Topology) -> RankFacts:
        c = self._model
        run = c.runs.run_on(rank.rank)
        doing = rank.phase if not rank.has_process else "running" if run else "idle"
        is_cut_off = c.world.nodes[rank.node_rank].is_cut_off
        return RankFacts(
            rank=rank.rank,
            node_rank=topology.node_rank(rank.rank),
            hostname=topology.host_of(rank.rank),
            pid=rank.pid,
            state="cut off" if is_cut_off else doing,
            run=run.number if run else 0,
            last_line=rank.last_line,
            fresh=rank.is_fresh,
            death=rank.death,
            death_age=c.now - rank.died_at if rank.death else 0.0,
        )
