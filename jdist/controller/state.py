"""State: all that the controller knows and decides. A step takes events and a time, and returns instructions; no I/O.

An imperative core in one piece: each event has one handler, found in the tables below, which changes the shared Model
and puts messages into its outbox. Then, once for all the events that came together, whatever has become possible is
begun. The phases are in docs/design/states.md, the order of a recovery in docs/design/recovery.md.

At the end of the cluster, every agent ends its ranks, which are given time for that, and then itself. Clients are told
that the cluster is gone once all agents have ended, or should have: what ranks write until then, and which of them took
too long, is still passed on.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from jdist.controller.membership.admission import Admission
from jdist.controller.membership.formation import Formation
from jdist.controller.membership.rank_loss import Heartbeats, RankLoss
from jdist.controller.membership.resizing import Resizing
from jdist.controller.membership.takeover import Takeover
from jdist.controller.model.model import (
    EdgeNotice,
    EndRequested,
    Event,
    Exit,
    FromAgent,
    FromClient,
    Instruction,
    Model,
    PeerGone,
    Tick,
)
from jdist.controller.model.phases import transition
from jdist.controller.model.world import Node, World
from jdist.controller.queries import Queries
from jdist.controller.runs.lifecycle import OwnRuns, RunLifecycle
from jdist.controller.runs.pausing import Pausing
from jdist.controller.runs.rank_polling import RankPoller
from jdist.controller.runs.saving import Autosaver, Saves
from jdist.controller.runs.silent_mismatch import SilentMismatch
from jdist.controller.status import StatusReporter
from jdist.core.messages import membership
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.code import ModuleReply, ModuleRequest, UseImportPath
from jdist.core.messages.debug import FollowRun, Pause, RankPaused, Resume
from jdist.core.messages.membership import (
    EndOverdue,
    GroupMade,
    LivenessLost,
    LivenessRenewed,
    MakeGroup,
    MakeMesh,
    Owner,
    Shutdown,
    StoreDown,
    StoreUp,
    WorldFailed,
    WorldFormed,
)
from jdist.core.messages.nodes import ListRuns, RunIntervals
from jdist.core.messages.observation import Stalled
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.runs import (
    CellRefused,
    HandlerRun,
    InputReply,
    InputRequest,
    Interrupt,
    MetricsLogged,
    Output,
    RankDone,
    ReadRun,
    RunCell,
)
from jdist.core.messages.saving import Autosave, EndAnnounced, PartSaved, SaveEnded, SavePoint, SaveStarted
from jdist.core.messages.status import Attached, ClientHello, Notice, StatusRequest, StopCluster, Stopped
from jdist.core.settings import Settings

_log = logging.getLogger("jdist.controller")

# Messages that agents send all the time, after which the cluster's status need not be looked through.
_ORDINARY = membership.Heartbeat | Output | MetricsLogged | RankDone | InputRequest | RankReply | NodeReply | Stalled
_STARTING = membership.WorkerUp | WorldFormed  # Messages that come once for each rank that starts.
_ORDINARY_OR_STARTING = _ORDINARY | _STARTING
_UNTIL_THE_END = Output | MetricsLogged | RankDone | membership.EndOverdue  # Passed on while the cluster stops.
_MOST_CLIENTS = 1024
_CLIENT_GRACE = 12 * 3600.0  # Seconds for which a client is kept whose connection broke: its computer may sleep.
_AGENTS_END = 5.0  # Seconds for agents to end themselves, and workers that were killed.

Handlers = Mapping[type[Message], Callable[[Any, Any], None]]


class State:
    """The controller's truth. Only :meth:`step` changes it."""

    def __init__(self, settings: Settings, cluster: str, version: str, now: float, new_name: Callable[[], str]):
        self.cluster = cluster
        self._handled: list[Event] = []  # The events of the present step.
        self._fingerprint: object = None  # The status before it.
        self.model = m = Model(settings, version, now, new_name, World(settings.nnodes))
        self._unattended_since = now
        own_runs = OwnRuns(m)
        self._queries = Queries(m)
        self._silent_mismatch = SilentMismatch(m)
        self._runs = RunLifecycle(m, own_runs, self._silent_mismatch)
        self._pausing = Pausing(m)
        self._poller = RankPoller(m, self._runs)
        self._formation = Formation(m, self._runs, own_runs)
        self._saves = Saves(m)
        self._autosaver = Autosaver(m, self._saves, new_name, lambda run: self._runs.abort(run, "interrupted"))
        self._runs.on_own_end = self._autosaver.handle_run_ended
        self._runs.on_users_end = self._formation.handle_run_ended
        self._rank_loss = RankLoss(m, self._queries, self._runs, self._formation, own_runs, self._saves)
        self._rank_loss.on_loss = self._autosaver.handle_loss
        self._heartbeats = Heartbeats(m, self._rank_loss)
        self._resizing = Resizing(m, self._queries, own_runs, self._poller, self._formation, self._rank_loss)
        self._takeover = Takeover(
            m, self._runs, own_runs, self._formation, self._rank_loss, self._resizing, self._autosaver
        )
        self._admission = Admission(
            m, self._formation, self._rank_loss, self._resizing, self._takeover, self._autosaver
        )
        self._stopping = Stopping(m)
        self._status = StatusReporter(m, self._formation, self._heartbeats, self._saves, self._autosaver)
        self._events: Mapping[type[Event], Callable[[Any], None]] = {
            FromAgent: self._handle_agent,
            FromClient: self._handle_client,
            PeerGone: self._handle_peer_gone,
            EdgeNotice: lambda event: m.broadcast(Notice(event.text)),
            Tick: lambda _: self._handle_tick(),
            EndRequested: self._handle_end_requested,
        }
        self._from_node: Handlers = self._node_handlers()
        self._from_client: Handlers = self._client_handlers()

    def _node_handlers(self) -> Handlers:
        """Handlers of what a node that has a place sends; each takes the node and the message."""
        formation, runs = self._formation, self._runs
        return {
            membership.WorkerUp: self._rank_loss.handle_worker_up,
            membership.WorkerDown: self._rank_loss.handle_worker_down,
            membership.EndOverdue: self._stopping.handle_overdue,
            membership.AgentLeaving: lambda node, message: self._rank_loss.node_gone(node, message.reason),
            membership.LivenessLost: lambda node, _: self._heartbeats.renew_liveness(node),
            StoreUp: formation.handle_store_up,
            StoreDown: formation.handle_store_down,
            WorldFormed: formation.handle_world_formed,
            WorldFailed: formation.handle_world_failed,
            GroupMade: formation.handle_group_made,
            Output: runs.handle_output,
            MetricsLogged: runs.handle_metrics,
            RankDone: self._takeover.handle_rank_done,
            RankPaused: self._pausing.handle_rank_paused,
            HandlerRun: runs.handle_handler_run,
            SaveStarted: self._handle_save_started,
            SavePoint: self._autosaver.handle_point,
            EndAnnounced: self._autosaver.handle_end_announced,
            PartSaved: self._saves.handle_part,
            CellRefused: self._rank_loss.handle_not_begun,
            InputRequest: runs.handle_input_request,
            ModuleRequest: runs.handle_module_request,
            Stalled: self._poller.handle_stalled,
            RankReply: self._handle_rank_reply,
            NodeReply: lambda node, reply: self._queries.forward(node.agent, reply),
        }

    def _client_handlers(self) -> Handlers:
        """Handlers of what an attached client sends; each takes the client and the message."""
        return {
            RunCell: self._runs.handle_run_cell,
            Interrupt: self._runs.handle_interrupt,
            ReadRun: self._runs.handle_read_run,
            ListRuns: self._handle_list_runs,
            InputReply: self._runs.handle_input_reply,
            Pause: self._pausing.handle_pause,
            Resume: self._pausing.handle_resume,
            FollowRun: self._pausing.handle_follow,
            membership.Restart: self._rank_loss.handle_restart,
            membership.AddNode: self._resizing.handle_add_node,
            membership.AbortAddNode: self._resizing.handle_abort,
            membership.RemoveRanks: self._resizing.handle_remove_ranks,
            membership.DropNodes: self._admission.handle_drop_nodes,
            Autosave: self._autosaver.handle_autosave,
            ModuleReply: self._runs.handle_module_reply,
            UseImportPath: lambda _client, message: self.model.use_import_path(message),
            MakeGroup: self._formation.handle_make_group,
            MakeMesh: self._formation.handle_make_mesh,
            LivenessLost: lambda client, _: self._renew_liveness(client),
            StatusRequest: lambda client, ask: self.model.send(client, self._status.report(ask.request)),
            RankQuery: self._queries.handle_rank_query,
            NodeQuery: self._queries.handle_node_query,
            StopCluster: lambda _client, message: self._stopping.begin("stopped by a client", now=message.now),
        }

    def step(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event; returns what is to be done about it."""
        self.begin_step(now)
        self.handle(event)
        return self.end_step()

    def begin_step(self, now: float) -> None:
        """Begin a step, which handles the events that have come together."""
        self.model.now, self.model.out = now, []
        self._handled, self._fingerprint = [], self._status.fingerprint()

    def handle(self, event: Event) -> None:
        """Handle an event of this step."""
        self._handled.append(event)
        if self.model.phase == "stopping":
            self._handle_last(event)
        else:
            self._events[type(event)](event)

    def _handle_last(self, event: Event) -> None:
        """Handle an event while the cluster stops: begin nothing, and replace nothing that ends."""
        m = self.model
        match event:
            case FromAgent(message=message) if isinstance(message, _UNTIL_THE_END):
                self._handle_agent(event)
            case FromClient(message=ClientHello() | StopCluster() | StatusRequest()):
                self._handle_client(event)
            case FromClient(client, message):
                m.refuse(client, getattr(message, "request", ""), "the cluster is being stopped")
            case PeerGone(name, is_dead):
                peer = m.liveness_names.get(name, "")
                if peer in m.clients:
                    self._handle_peer_gone(event)
                elif is_dead:
                    m.drop_liveness_names(peer)

    def end_step(self) -> list[Instruction]:
        """Begin what has become possible; returns what is to be done about this step's events."""
        m = self.model
        if self._handled and m.phase != "stopping":
            self._begin_what_can_be()
        if self._handled:
            self._publish()
        if m.ending:
            self._stopping.begin(m.ending)
        self._stopping.finish_if_over()
        return m.out

    def _begin_what_can_be(self) -> None:
        """Resize, admit and form when it is time, then start the runs whose ranks are free."""
        m = self.model
        self._resizing.remove_pending()
        added = self._resizing.admit_waiting()
        if added is not None:
            self._admission.welcome(added)
        self._formation.retry_if_due()
        if m.phase in ("gathering", "ready") and m.is_dirty:
            self._formation.form_if_possible()
        self._autosaver.begin_if_possible()
        self._runs.start_ready()
        if m.is_attended or m.runs.is_active:
            self._unattended_since = m.now

    def _publish(self) -> None:
        """Send clients what has changed, if this step's events can have changed anything that they are sent."""
        messages = [event.message if isinstance(event, FromAgent) else None for event in self._handled]
        self._status.notify_observers()
        told = len(self.model.out)
        is_ordinary = all(isinstance(message, _ORDINARY_OR_STARTING) for message in messages)
        if self._status.fingerprint() != self._fingerprint or not is_ordinary:
            self._status.notify()
        elif any(isinstance(message, _STARTING) for message in messages):
            self._status.notify_soon()
        if any(isinstance(message, RankPaused | RankDone) for message in messages):
            # Before the news of the run, since a client that waits for it may go on with a cell for the paused ranks.
            self.model.out[:] = self.model.out[told:] + self.model.out[:told]

    def owners(self) -> dict[str, Owner]:
        """The agents with their workers, by name; until a takeover is settled, also those that are not back yet."""
        found = self.model.world.owners()
        if self._takeover.deadline is not None:
            back = {worker for owner in found.values() for worker in owner.workers}
            found = {a: own for a, own in self._takeover.owners.items() if back.isdisjoint(own.workers)} | found
        return found

    def take_over(self, owners: Mapping[str, Owner]) -> None:
        """An earlier controller of this cluster has died: its agents, by name, will come with their ranks."""
        self._takeover.has_begun, self._takeover.owners = True, owners

    def stop(self, reason: str) -> list[Instruction]:
        """End the cluster from within its own process."""
        self._stopping.begin(reason)
        return self.model.out

    def _handle_agent(self, event: FromAgent) -> None:
        if isinstance(event.message, membership.AgentHello):
            self._admission.handle_hello(event.agent, event.message)
            return
        node = self.model.world.node_of_agent(event.agent)
        if node is None:
            if not self._resizing.is_waiting(event.agent):
                self.model.forget(event.agent)
            return
        self._heartbeats.record(node)
        message = self.model.world.from_node(node, event.message)
        if message is not None and type(message) in self._from_node:
            self._from_node[type(message)](node, message)

    def _handle_list_runs(self, client: str, ask: ListRuns) -> None:
        m = self.model
        m.send(client, RunIntervals(ask.request, m.runs.spans(m.now, ask.seconds)))

    def _handle_end_requested(self, event: EndRequested) -> None:
        def end(_: SaveEnded | None) -> None:
            self.model.ending = event.reason

        self._autosaver.save_now(end)

    def _handle_save_started(self, node: Node, message: SaveStarted) -> None:
        self._saves.handle_begun(node, message)
        self._autosaver.handle_started(message)

    def _handle_rank_reply(self, _: Node, reply: RankReply) -> None:
        """A rank has answered a client's query, or one of the controller's own."""
        if self._queries.is_asked(reply.request):
            self._queries.handle_rank_reply(reply)
            return
        run = self._silent_mismatch.handle_rank_reply(reply)
        if run is not None:
            self._runs.end_if_over(run)
        else:
            self._poller.handle_rank_reply(reply)

    def _handle_client(self, event: FromClient) -> None:
        m, client, message = self.model, event.client, event.message
        if isinstance(message, ClientHello):
            self._attach(client, message)
        elif client not in m.clients:
            m.refuse(client, getattr(message, "request", ""), "say hello first")
        elif type(message) in self._from_client:
            self._from_client[type(message)](client, message)

    def _attach(self, client: str, hello: ClientHello) -> None:
        m = self.model
        if hello.protocol != PROTOCOL:
            reason = f"this client speaks protocol {hello.protocol} (jdist {hello.version}), the cluster {PROTOCOL}"
            m.refuse(client, "", f"{reason} (jdist {m.version}); restart one of them")
            return
        if client not in m.clients and len(m.clients) >= _MOST_CLIENTS:
            m.refuse(client, "", f"{_MOST_CLIENTS} clients are attached already")
            return
        m.drop_liveness_names(client)
        m.away.pop(client, None)
        m.clients[client] = hello.kind
        _log.info("client %s attached: %s, process %d", client, hello.kind, hello.pid)
        m.send(client, Attached(m.new_liveness_name(client), self.cluster, m.version, os.getpid()))
        m.send(client, self._status.facts())
        self._takeover.tell(client)

    def _renew_liveness(self, client: str) -> None:
        """A client is back, or was never away: the network between has dropped its connections."""
        m = self.model
        m.away.pop(client, None)
        m.drop_liveness_names(client)
        m.send(client, LivenessRenewed(m.new_liveness_name(client)))

    def _drop_client(self, client: str) -> None:
        m = self.model
        del m.clients[client]
        m.away.pop(client, None)
        _log.info("client %s is gone", client)
        self._queries.forget(client)
        self._resizing.forget(client)
        self._pausing.forget(client)
        m.forget(client)

    def _drop_absent_clients(self) -> None:
        for client in [c for c, until in self.model.away.items() if until <= self.model.now]:
            self.model.drop_liveness_names(client)
            self._drop_client(client)

    def _handle_peer_gone(self, event: PeerGone) -> None:
        m = self.model
        peer = m.liveness_names.get(event.name, "")
        if peer in m.clients and not event.is_dead:
            m.away[peer] = m.now + _CLIENT_GRACE
            return
        m.liveness_names.pop(event.name, None)
        if not peer:
            return
        if peer in m.clients:
            self._drop_client(peer)
        node = m.world.node_of_agent(peer)
        if node is not None and event.is_dead:
            self._rank_loss.node_gone(node, "its agent's process ended")
        elif node is not None:
            self._heartbeats.renew_liveness(node)
        elif peer.startswith("a-"):
            m.forget(peer)  # it was released

    def next_wakeup(self) -> float | None:
        """When a Tick is due, as far as is known now."""
        if self.model.phase == "stopping":
            return self._stopping.deadline
        times = (
            self.model.runs.next_deadline(),
            self._poller.next_wakeup(),
            self._formation.deadline,
            self._resizing.deadline,
            self._heartbeats.next_wakeup(),
            self._takeover.deadline,
            self._saves.next_wakeup(),
            self._autosaver.next_wakeup(),
            self._status.due,
            self._unattended_end(),
            *self.model.away.values(),
        )
        return min((t for t in times if t is not None), default=None)

    def _handle_tick(self) -> None:
        self._drop_absent_clients()
        self._runs.handle_tick()
        self._poller.handle_tick()
        self._rank_loss.handle_tick()
        self._formation.handle_tick()
        self._resizing.handle_tick()
        self._heartbeats.handle_tick()
        self._takeover.handle_tick()
        self._saves.handle_tick()
        self._autosaver.handle_tick()
        end = self._unattended_end()
        if end is not None and self.model.now >= end:
            self._stopping.begin(f"no client for {self.model.now - self._unattended_since:.0f} s")

    def _unattended_end(self) -> float | None:
        m = self.model
        if m.is_attended or m.runs.is_active:
            return None
        return self._unattended_since + (m.settings.idle_timeout if m.generation else m.settings.empty_timeout)


class Stopping:
    """Ends the cluster."""

    def __init__(self, model: Model):
        self._model = model
        self._reason = ""
        self.deadline: float | None = None  # When agents that have not ended are no longer waited for.

    def begin(self, reason: str, *, now: bool = False) -> None:
        """Have every agent end. Called again, only ``now`` has an effect: ranks are not waited for any longer."""
        m = self._model
        grace = 0.0 if now else m.settings.end_grace
        if m.phase != "stopping":
            transition(m, "stopping", reason)
            self._reason = reason
            agents = {node.agent for node in m.world.nodes.values()}
        elif now:
            agents = self._awaited()
        else:
            return
        for agent in sorted(agents):
            m.send(agent, Shutdown(grace))
        self.deadline = m.now + grace + _AGENTS_END
        self.finish_if_over()

    def finish_if_over(self) -> None:
        """End the controller once no agent is left, or at the deadline."""
        m = self._model
        if self.deadline is None:
            return
        if m.now >= self.deadline or not self._awaited():
            self.deadline = None
            m.broadcast(Stopped(self._reason))
            m.out.append(Exit(self._reason))

    def _awaited(self) -> set[str]:
        """Agents whose processes have not ended, as far as is known."""
        return {peer for peer in self._model.liveness_names.values() if peer.startswith("a-")}

    def handle_overdue(self, _: Node, message: EndOverdue) -> None:
        """A rank had to be killed: say what was cut off. Also after a restart, or when it was removed."""
        text = f"rank {message.as_rank} did not end within {message.grace:g} s and was killed: {message.doing}"
        self._model.broadcast(Notice(text))
