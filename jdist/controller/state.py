"""State: everything the controller knows, as a fold. ``step(event, now)`` → instructions; no I/O, no clock of its own.

The world's phases, and what moves it on::

    gathering ──every node joined, every rank up, store up──► forming ──every rank holds it──► ready
     ▲  ▲                                                      │  ▲                             │
     │  │ a node is gone, or a rank died while it was formed   │  └──── dirty and nobody runs ──┤
     │  └──────────────────────────────────────────────────────┼────────────────────────────────┘
     └── restart ── failed ◄── a rank could not form ──────────┘

The parts, each of which knows only those named before it: questions, cells (with setup, doubts and looks), forming
(with reforms), losses, contact (what a node's silence means), resizing, adoption (of what an earlier controller left),
joining, facts.
"""

from __future__ import annotations

from collections.abc import Callable

from jdist.controller.membership.admission import Admission
from jdist.controller.membership.formation import Formation
from jdist.controller.membership.heartbeats import Heartbeats
from jdist.controller.membership.min_nodes import MinNodes
from jdist.controller.membership.rank_loss import RankLoss
from jdist.controller.membership.resizing import Resizing
from jdist.controller.membership.takeover import Takeover
from jdist.controller.model.events import (
    EdgeNotice,
    Event,
    Exit,
    Forget,
    FromAgent,
    FromClient,
    Instruction,
    PeerGone,
    Tick,
)
from jdist.controller.model.model import Model
from jdist.controller.model.runs import RunBook
from jdist.controller.model.world import Node, World
from jdist.controller.queries import Queries
from jdist.controller.runs.lifecycle import RunLifecycle
from jdist.controller.runs.own_runs import ReformCallbacks, SetupCells
from jdist.controller.runs.rank_polling import RankPoller
from jdist.controller.runs.silent_mismatch import SilentMismatch
from jdist.controller.status import Mark, StatusReporter
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.groups import GroupMade, MakeGroup, MakeMesh, StoreDown, StoreUp, WorldFailed, WorldFormed
from jdist.core.messages.membership import (
    AddNode,
    AgentHello,
    AgentLeaving,
    DropNodes,
    Heartbeat,
    LivenessLost,
    RemoveRanks,
    Renumbered,
    Restart,
    Shutdown,
    WorkerDown,
    WorkerUp,
)
from jdist.core.messages.observation import Stalled
from jdist.core.messages.output import Output, only_of
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.runs import InputReply, InputRequest, Interrupt, RankDone, RunCell
from jdist.core.messages.status import Attached, ClientHello, Notice, Phase, StatusRequest, StopCluster, Stopped
from jdist.core.settings import Settings

_ORDINARY = Heartbeat | Output | RankDone | InputRequest | RankReply | NodeReply | Stalled
"""What agents say all the time."""
_COMING = WorkerUp | WorldFormed
"""What they say once for each rank that comes."""
_MOST_CLIENTS = 1024


class State:
    """The controller's truth. Only :meth:`step` changes it."""

    def __init__(self, settings: Settings, cluster: str, version: str, now: float, new_name: Callable[[], str]):
        self.settings = settings
        self.cluster = cluster
        self._unattended_since = now
        self._model = m = Model(settings, version, now, new_name)
        setup = SetupCells(m)
        self._questions = Queries(m)
        self._doubts = SilentMismatch(m)
        self._cells = RunLifecycle(m, setup, self._doubts)
        self._looks = RankPoller(m, self._cells)
        self._forming = Formation(m, self._cells, setup, ReformCallbacks(m))
        self._losses = RankLoss(m, self._questions, self._cells, self._forming, setup)
        self._contact = Heartbeats(m, self._losses)
        self._resizing = Resizing(m, self._questions, setup, self._looks, self._forming, self._losses)
        self._adoption = Takeover(m, self._cells, setup, self._forming, self._losses)
        self._joining = Admission(m, self._forming, self._losses, self._resizing, self._adoption)
        self._shortfall = MinNodes(m, self._joining)
        self._facts = StatusReporter(m, self._forming, self._contact)

    # ------------------------------------------------------------ what may be looked at

    @property
    def world(self) -> World:
        return self._model.world

    @property
    def runs(self) -> RunBook:
        return self._model.runs

    @property
    def phase(self) -> Phase:
        return self._model.phase

    @property
    def reason(self) -> str:
        return self._model.reason

    @property
    def generation(self) -> int:
        return self._model.generation

    @property
    def clients(self) -> dict[str, str]:
        """Kind of each attached client, by its socket's identity."""
        return dict(self._model.clients)

    @property
    def liveness_names(self) -> dict[str, str]:
        """Names of the liveness connections that may come or stand, and the peer that each belongs to."""
        return dict(self._model.liveness_names)

    # ------------------------------------------------------------ the fold

    def step(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; what is to be done about it. A cluster that has been stopped does nothing more."""
        m = self._model
        m.now = now
        m.out = []
        if m.phase == "stopping":
            return m.out
        before = self._facts.mark()
        match event:
            case FromAgent():
                self._on_agent(event.agent, event.message)
            case FromClient():
                self._on_client(event.client, event.message)
            case PeerGone():
                self._on_gone(event.name, event.is_dead)
            case EdgeNotice():
                m.broadcast(Notice(event.text))
            case Tick():
                self._on_tick()
        self._move_on()
        self._tell(event, before)
        if m.ending:
            self._stop(m.ending)
        return m.out

    def _move_on(self) -> None:
        """Form when it is time, then start what may start, then tell what has changed."""
        m = self._model
        self._cells.end_stuck_reforms()
        self._resizing.carry_on()
        self._joining.let_in()
        if m.phase in ("gathering", "ready") and m.is_dirty:
            self._forming.form_if_possible()
        if m.phase == "ready" and not m.is_dirty:
            self._cells.start_ready()
        if m.is_attended or m.runs.running:
            self._unattended_since = m.now

    def _tell(self, event: Event, before: Mark) -> None:
        """Tell clients what has changed, if this event can have changed anything that they are told."""
        message = event.message if isinstance(event, FromAgent) else None
        self._facts.tell_moves()
        has_turned = self._facts.mark() != before
        if has_turned or not isinstance(message, _ORDINARY | _COMING):
            self._facts.tell_changes()
        elif isinstance(message, _COMING):
            self._facts.tell_soon()

    def take_over(self) -> None:
        """An earlier controller of this cluster has died: its agents are out there and will come with their ranks."""
        self._adoption.begin()

    def stop(self, reason: str) -> list[Instruction]:
        """End the cluster from within its own process."""
        self._model.out = []
        self._stop(reason)
        return self._model.out

    def next_wakeup(self) -> float | None:
        """When a Tick is due, as far as is known now."""
        m = self._model
        if m.phase == "stopping":
            return None
        times = (
            self._contact.next_deadline(),
            m.runs.next_deadline(),
            self._looks.next_wakeup(),
            self._forming.deadline,
            self._resizing.deadline,
            self._adoption.deadline,
            self._facts.due,
            self._unattended_end(),
        )
        return min((t for t in times if t is not None), default=None)

    # ------------------------------------------------------------ agents

    def _on_agent(self, agent: str, message: Message) -> None:
        m = self._model
        if isinstance(message, AgentHello):
            self._joining.join(agent, message)
            return
        node = m.world.node_of_agent(agent)
        if node is None:
            if not self._joining.hear_waiting(agent):
                m.out.append(Forget(agent))
            return
        self._contact.heard(node)
        translated = self._resizing.translate(node, message)
        if translated is not None:
            self._on_node(node, translated)

    def _on_node(self, node: Node, message: Message) -> None:
        m = self._model
        number = getattr(message, "rank", None)
        if number is not None and not m.world.of_node(node, (number,)):
            return  # an agent speaks for its own ranks only
        if isinstance(message, Output):
            message = only_of(message, lambda ranks: m.world.of_node(node, ranks))
        if isinstance(message, StoreUp | StoreDown) and node.node_rank != 0:
            return  # all ranks would meet at a store that another node names
        match message:
            case WorkerUp():
                self._losses.worker_up(message)
            case WorkerDown():
                self._losses.worker_down(message)
            case Renumbered():
                self._resizing.renumbered(node)
            case LivenessLost():
                self._contact.renew_liveness(node)
            case NodeReply():
                self._questions.take_node(node.agent, message)
            case AgentLeaving():
                self._losses.node_gone(node, message.reason)
            case StoreUp() | StoreDown() | WorldFormed() | WorldFailed() | GroupMade():
                self._forming.hear(message)
            case Output() | RankDone() | InputRequest() | RankReply() | Stalled():
                self._on_rank(message)

    def _on_rank(self, message: Output | RankDone | InputRequest | RankReply | Stalled) -> None:
        match message:
            case Output():
                self._cells.pass_output(message)
            case RankDone():
                self._cells.settle(message)
            case InputRequest():
                self._cells.pass_input_request(message)
            case RankReply() if self._questions.is_asked(message.request):
                self._questions.take(message)
            case RankReply():
                self._on_answer(message)
            case Stalled():
                self._looks.stalled(message)

    def _on_answer(self, answer: RankReply) -> None:
        """To what the controller itself has asked."""
        explained = self._doubts.note(answer)
        if explained is not None:
            self._cells.end_if_over(explained)
        else:
            self._looks.note(answer)

    # ------------------------------------------------------------ clients

    def _on_client(self, client: str, message: Message) -> None:
        m = self._model
        if isinstance(message, ClientHello):
            self._attach(client, message)
            return
        if client not in m.clients:
            m.refuse(client, getattr(message, "request", ""), "say hello first")
            return
        match message:
            case RunCell():
                self._cells.accept(client, message)
            case Interrupt():
                self._cells.interrupt(client, message)
            case InputReply():
                self._cells.pass_input(message)
            case Restart():
                self._losses.restart(client, message)
            case AddNode():
                self._resizing.add(client, message)
            case RemoveRanks():
                self._resizing.remove(client, message)
            case DropNodes():
                self._shortfall.leave_out(client, message)
            case MakeGroup():
                self._forming.make_group(client, message)
            case MakeMesh():
                self._forming.make_mesh(client, message)
            case StatusRequest():
                m.send(client, self._facts.survey(message.request))
            case RankQuery():
                self._questions.ask(client, message)
            case NodeQuery():
                self._questions.ask_nodes(client, message)
            case StopCluster():
                self._stop("stopped by a client")

    def _attach(self, client: str, hello: ClientHello) -> None:
        m = self._model
        if hello.protocol != PROTOCOL:
            reason = f"this client speaks protocol {hello.protocol} (jdist {hello.version}), the cluster {PROTOCOL}"
            m.refuse(client, "", f"{reason} (jdist {m.version}); restart one of them")
            return
        if client not in m.clients and len(m.clients) >= _MOST_CLIENTS:
            m.refuse(client, "", f"{_MOST_CLIENTS} clients are attached already")
            return
        m.drop_liveness_names(client)
        m.clients[client] = hello.kind
        m.send(client, Attached(m.new_liveness_name(client), self.cluster, m.version))
        m.send(client, self._facts.now())

    # ------------------------------------------------------------ time and ends

    def _on_tick(self) -> None:
        self._cells.meet_deadlines()
        self._looks.look()
        self._losses.give_up()
        self._forming.meet_deadline()
        self._resizing.meet_deadline()
        self._contact.meet_deadlines()
        self._adoption.meet_deadline()
        end = self._unattended_end()
        if end is not None and self._model.now >= end:
            self._stop(f"no client for {self._model.now - self._unattended_since:.0f} s")

    def _unattended_end(self) -> float | None:
        m = self._model
        if m.is_attended or m.runs.running:
            return None
        return self._unattended_since + (self.settings.idle_timeout if m.generation else self.settings.empty_timeout)

    def _on_gone(self, name: str, is_dead: bool) -> None:
        m = self._model
        peer = m.liveness_names.pop(name, "")
        if not peer:
            return
        if peer in m.clients:
            del m.clients[peer]
            self._questions.forget(peer)
            self._resizing.forget(peer)
            m.out.append(Forget(peer))
        node = m.world.node_of_agent(peer)
        if node is not None:
            self._contact.liveness_ended(node, is_dead)
        elif peer.startswith("a-"):
            m.out.append(Forget(peer))  # it was released

    def _stop(self, reason: str) -> None:
        m = self._model
        if m.phase == "stopping":
            return
        m.phase = "stopping"
        for node_rank in m.world.nodes:
            m.send_to_node(node_rank, Shutdown())
        m.broadcast(Stopped(reason))
        m.out.append(Exit(reason))
