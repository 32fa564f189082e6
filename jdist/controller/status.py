"""Status: what clients are sent about the cluster, in brief when it changes, and in full when they ask. Pure."""

from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import Heartbeats
from jdist.controller.model.model import Model
from jdist.controller.model.runs import Run
from jdist.controller.model.world import Rank
from jdist.controller.runs.saving import Autosaver, Saves
from jdist.core.messages.saving import SaveStatus
from jdist.core.messages.status import OBSERVER, ClusterFacts, RankFacts, RunsChanged, StatusReport
from jdist.core.topology import Topology

_SHORTEST_INTERVAL = 0.1  # Seconds between two broadcasts while ranks come one by one.


class StatusReporter:
    """Broadcasts the cluster's facts when they have changed, and answers status requests.

    Collecting the facts takes time for each rank, and ranks send many messages. So an ordinary message is followed by a
    broadcast only if the :meth:`fingerprint` has changed, and the number of ranks that are up only at intervals.
    """

    def __init__(self, model: Model, formation: Formation, heartbeats: Heartbeats, saves: Saves, autosaver: Autosaver):
        self._model = model
        self._heartbeats = heartbeats
        self._saves = saves
        self._autosaver = autosaver
        self._formation = formation
        self._sent: ClusterFacts | None = None
        self._sent_at = -_SHORTEST_INTERVAL
        self.due: float | None = None  # When a change is to be broadcast that was not broadcast at once.
        self._sent_runs: object = ([], [])  # The runs when observers were notified last.

    def facts(self) -> ClusterFacts:
        """The cluster in brief."""
        m = self._model
        topology = m.world.topology
        reason = m.reason or (m.missing_nodes() if m.awaited_ranks() else m.missing_ranks())
        nodes = [m.world.nodes.get(n) for n in range(m.world.nnodes)]
        return ClusterFacts(
            name=m.settings.name,
            phase=m.phase,
            generation=m.generation,
            backend=self._formation.backend if m.world.is_complete else m.settings.backend,
            nnodes=m.world.nnodes,
            nproc_per_node=topology.nproc_per_node,
            hostnames=tuple(n.facts.hostname if n is not None and n.is_here else "" for n in nodes),
            ready=sum(r.has_process for r in m.world.ranks.values()),
            groups=dict(self._formation.named),
            mesh=self._formation.mesh,
            reason=reason,
            remedies=m.remedies() if reason else (),
            init_seconds=self._formation.init_seconds,
            unreachable=tuple(n.node_rank for n in nodes if n is not None and n.is_unreachable),
            is_by_task=m.world.is_by_task,
            node_of=topology.node_of,
            launcher_names=tuple(n.facts.launcher_name if n is not None else "" for n in nodes),
            left_out=m.left_out,
            paused=tuple(sorted(m.runs.paused())),
        )

    def fingerprint(self) -> object:
        """Changes with everything but the single ranks. Takes the same time for any number of ranks."""
        m = self._model
        runs = len(m.runs.running), len(m.runs.queued), sum(len(run.paused) for run in m.runs.running.values())
        return m.phase, m.generation, m.reason, m.is_dirty, len(m.world.ranks), m.world.nnodes, m.broadcasts, *runs

    def notify_soon(self) -> None:
        """Do the same as :meth:`notify`, at once or after a short interval."""
        if self._model.now >= self._sent_at + _SHORTEST_INTERVAL:
            self.notify()
        else:
            self.due = self._sent_at + _SHORTEST_INTERVAL

    def notify(self) -> None:
        """Broadcast the facts if they have changed since the last time."""
        self._sent_at, self.due = self._model.now, None
        facts = self.facts()
        if facts != self._sent:
            self._sent = facts
            self._model.broadcast(facts)

    def notify_observers(self) -> None:
        """Let observers know that runs have changed; the messages of a run go to its client only."""
        if OBSERVER not in self._model.clients.values():
            return
        book = self._model.runs
        running = [
            (r.number, r.abort_reason, r.verdict and r.verdict.reason, tuple(r.paused.values()), tuple(r.pausing))
            for r in book.running.values()
        ]
        runs = (running, [r.number for r in book.queued])
        if runs != self._sent_runs:
            self._sent_runs = runs
            self._model.notify_observers(RunsChanged())

    def report(self, request: str) -> StatusReport:
        """The facts, every rank's row, unfinished runs, the groups that cells made, and who is attached."""
        m = self._model
        runs = [
            (run.number, _state(run), run.ranks, m.now - (run.started_at or m.now)) for run in m.runs.running.values()
        ]
        runs += [(run.number, "queued", run.ranks, 0.0) for run in m.runs.queued]
        topology = m.world.topology
        rows = tuple(self._row(rank, topology) for rank in m.world.ranks.values())
        verdicts = tuple(run.verdict for run in m.runs.running.values() if run.verdict is not None)
        groups, silences = m.world.common_groups(m.generation), self._heartbeats.silences()
        clients = tuple(kind for client, kind in m.clients.items() if kind != OBSERVER and client not in m.away)
        saves = self._save_status()
        return StatusReport(request, self.facts(), rows, tuple(runs), groups, verdicts, silences, saves, clients)

    def _save_status(self) -> SaveStatus:
        now, auto = self._model.now, self._autosaver
        at, last = self._saves.last or (now, None)
        due_in = max(0.0, (auto.due_at or now) - now)
        return SaveStatus(last, now - at, auto.options, auto.every, due_in, auto.waits_for)

    def _row(self, rank: Rank, topology: Topology) -> RankFacts:
        runs = self._model.runs.runs_on(rank.rank)
        run = runs[0] if runs else None
        paused = run.paused.get(rank.rank) if run else None
        doing = rank.phase if not rank.has_process else "paused" if paused else "running" if run else "idle"
        is_unreachable = self._model.world.nodes[rank.node_rank].is_unreachable
        return RankFacts(
            rank=rank.rank,
            node_rank=topology.node_rank(rank.rank),
            hostname=topology.host_of(rank.rank),
            pid=rank.pid,
            state="unreachable" if is_unreachable else doing,
            run=run.number if run else 0,
            last_line=rank.last_line,
            fresh=rank.is_fresh,
            death=rank.death,
            death_age=self._model.now - rank.died_at if rank.death else 0.0,
            paused=next((at for r in runs if (at := r.paused.get(rank.rank)) is not None), None),
            is_pausing=any(rank.rank in r.pausing for r in runs),
        )


def _state(run: Run) -> str:
    """As a report gives it; a run is paused if one of its ranks is."""
    return "halted" if run.abort_reason else "paused" if run.paused else "running"
