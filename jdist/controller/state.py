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

from jdist.controller.membership.admission import Joining
from jdist.controller.membership.formation import Forming
from jdist.controller.membership.heartbeats import Contact
from jdist.controller.membership.min_nodes import Shortfall
from jdist.controller.membership.rank_loss import Losses
from jdist.controller.membership.resizing import Resizing
from jdist.controller.membership.takeover import Adoption
from jdist.controller.model.context import Context
from jdist.controller.model.events import (
    AgentSaid,
    ClientSaid,
    Event,
    Exit,
    Forget,
    Instruction,
    PeerGone,
    Remark,
    Tick,
    ToPeer,
)
from jdist.controller.model.runs import RunBook
from jdist.controller.model.world import Node, World
from jdist.controller.queries import Questions
from jdist.controller.runs.lifecycle import Cells
from jdist.controller.runs.on_reform import Reforms
from jdist.controller.runs.rank_polling import Looks
from jdist.controller.runs.setup_cells import Setup
from jdist.controller.runs.silent_mismatch import Doubts
from jdist.controller.status import Facts, Mark
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

__all__ = [
    "AgentSaid",
    "ClientSaid",
    "Event",
    "Exit",
    "Forget",
    "Instruction",
    "PeerGone",
    "Remark",
    "State",
    "Tick",
    "ToPeer",
]


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
        self._context = c = Context(settings, version, now, new_name)
        setup = Setup(c)
        self._questions = Questions(c)
        self._doubts = Doubts(c)
        self._cells = Cells(c, setup, self._doubts)
        self._looks = Looks(c, self._cells)
        self._forming = Forming(c, self._cells, setup, Reforms(c))
        self._losses = Losses(c, self._questions, self._cells, self._forming, setup)
        self._contact = Contact(c, self._losses)
        self._resizing = Resizing(c, self._questions, setup, self._looks, self._forming, self._losses)
        self._adoption = Adoption(c, self._cells, setup, self._forming, self._losses)
        self._joining = Joining(c, self._forming, self._losses, self._resizing, self._adoption)
        self._shortfall = Shortfall(c, self._joining)
        self._facts = Facts(c, self._forming, self._contact)

    # ------------------------------------------------------------ what may be looked at

    @property
    def world(self) -> World:
        return self._context.world

    @property
    def runs(self) -> RunBook:
        return self._context.runs

    @property
    def phase(self) -> Phase:
        return self._context.phase

    @property
    def reason(self) -> str:
        return self._context.reason

    @property
    def generation(self) -> int:
        return self._context.generation

    @property
    def clients(self) -> dict[str, str]:
        """Kind of each attached client, by its socket's identity."""
        return dict(self._context.clients)

    @property
    def lifelines(self) -> dict[str, str]:
        """Names of the lifelines that may come or stand, and the peer that each belongs to."""
        return dict(self._context.lifelines)

    # ------------------------------------------------------------ the fold

    def step(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; what is to be done about it. A cluster that has been stopped does nothing more."""
        c = self._context
        c.now = now
        c.out = []
        if c.phase == "stopping":
            return c.out
        before = self._facts.mark()
        match event:
            case AgentSaid():
                self._on_agent(event.agent, event.message)
            case ClientSaid():
                self._on_client(event.client, event.message)
            case PeerGone():
                self._on_gone(event.name, event.is_dead)
            case Remark():
                c.tell_all(Notice(event.text))
            case Tick():
                self._on_tick()
        self._move_on()
        self._tell(event, before)
        if c.ending:
            self._stop(c.ending)
        return c.out

    def _move_on(self) -> None:
        """Form when it is time, then start what may start, then tell what has changed."""
        c = self._context
        self._cells.end_stuck_reforms()
        self._resizing.carry_on()
        self._joining.let_in()
        if c.phase in ("gathering", "ready") and c.is_dirty:
            self._forming.form_if_possible()
        if c.phase == "ready" and not c.is_dirty:
            self._cells.start_ready()
        if c.is_attended or c.runs.running:
            self._unattended_since = c.now

    def _tell(self, event: Event, before: Mark) -> None:
        """Tell clients what has changed, if this event can have changed anything that they are told."""
        message = event.message if isinstance(event, AgentSaid) else None
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
        self._context.out = []
        self._stop(reason)
        return self._context.out

    def next_wakeup(self) -> float | None:
        """When a Tick is due, as far as is known now."""
        c = self._context
        if c.phase == "stopping":
            return None
        times = (
            self._contact.next_deadline(),
            c.runs.next_deadline(),
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
        c = self._context
        if isinstance(message, AgentHello):
            self._joining.join(agent, message)
            return
        node = c.world.node_of_agent(agent)
        if node is None:
            if not self._joining.hear_waiting(agent):
                c.out.append(Forget(agent))
            return
        self._contact.heard(node)
        translated = self._resizing.translate(node, message)
        if translated is not None:
            self._on_node(node, translated)

    def _on_node(self, node: Node, message: Message) -> None:
        c = self._context
        number = getattr(message, "rank", None)
        if number is not None and not c.world.of_node(node, (number,)):
            return  # an agent speaks for its own ranks only
        if isinstance(message, Output):
            message = only_of(message, lambda ranks: c.world.of_node(node, ranks))
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
                self._contact.renew_lifeline(node)
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
        c = self._context
        if isinstance(message, ClientHello):
            self._attach(client, message)
            return
        if client not in c.clients:
            c.refuse(client, getattr(message, "request", ""), "say hello first")
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
                c.send(client, self._facts.survey(message.request))
            case RankQuery():
                self._questions.ask(client, message)
            case NodeQuery():
                self._questions.ask_nodes(client, message)
            case StopCluster():
                self._stop("stopped by a client")

    def _attach(self, client: str, hello: ClientHello) -> None:
        c = self._context
        if hello.protocol != PROTOCOL:
            reason = f"this client speaks protocol {hello.protocol} (jdist {hello.version}), the cluster {PROTOCOL}"
            c.refuse(client, "", f"{reason} (jdist {c.version}); restart one of them")
            return
        if client not in c.clients and len(c.clients) >= _MOST_CLIENTS:
            c.refuse(client, "", f"{_MOST_CLIENTS} clients are attached already")
            return
        c.drop_lifelines(client)
        c.clients[client] = hello.kind
        c.send(client, Attached(c.new_lifeline(client), self.cluster, c.version))
        c.send(client, self._facts.now())

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
        if end is not None and self._context.now >= end:
            self._stop(f"no client for {self._context.now - self._unattended_since:.0f} s")

    def _unattended_end(self) -> float | None:
        c = self._context
        if c.is_attended or c.runs.running:
            return None
        return self._unattended_since + (self.settings.idle_timeout if c.generation else self.settings.empty_timeout)

    def _on_gone(self, name: str, is_dead: bool) -> None:
        c = self._context
        peer = c.lifelines.pop(name, "")
        if not peer:
            return
        if peer in c.clients:
            del c.clients[peer]
            self._questions.forget(peer)
            self._resizing.forget(peer)
            c.out.append(Forget(peer))
        node = c.world.node_of_agent(peer)
        if node is not None:
            self._contact.lifeline_ended(node, is_dead)
        elif peer.startswith("a-"):
            c.out.append(Forget(peer))  # it was released

    def _stop(self, reason: str) -> None:
        c = self._context
        if c.phase == "stopping":
            return
        c.phase = "stopping"
        for node_rank in c.world.nodes:
            c.send_to_node(node_rank, Shutdown())
        c.tell_all(Stopped(reason))
        c.out.append(Exit(reason))
