"""Hold everything the controller knows of its cluster, and the inputs and outputs of its state machine. Pure.

Events are the inputs to the state machine, and instructions are the actions that it returns. The model also collects
the messages that the present step sends.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jdist.controller.model.phases import CLUSTER, HasPhase, Lifecycle
from jdist.controller.model.records import RunRecords
from jdist.controller.model.runs import Run, RunBook
from jdist.controller.model.world import Rank, World
from jdist.core.errors import Remedy
from jdist.core.import_path import ImportPath
from jdist.core.messages.base import Message
from jdist.core.messages.code import UseImportPath
from jdist.core.messages.membership import Rejected
from jdist.core.messages.status import OBSERVER, Notice, Phase, RequestRefused
from jdist.core.ranks import RankSet, describe_fresh_ranks, describe_ranks
from jdist.core.settings import Settings


@dataclass(frozen=True)
class FromAgent:
    """An agent's message arrived."""

    agent: str
    message: Message


@dataclass(frozen=True)
class FromClient:
    """A client's message arrived."""

    client: str
    message: Message


@dataclass(frozen=True)
class PeerGone:
    """A liveness connection ended: its process is gone, or, if not ``is_dead``, the connection broke."""

    name: str
    is_dead: bool = True


@dataclass(frozen=True)
class EdgeNotice:
    """The edge has seen something that every client is to be told."""

    text: str


@dataclass(frozen=True)
class EndRequested:
    """The controller's process was asked to end."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True)
class Send:
    """Instruction: send to an agent or a client."""

    peer: str
    message: Message


@dataclass(frozen=True)
class Forget:
    """Instruction: an agent or a client is not known any more; if it speaks again it has to say hello first."""

    peer: str


@dataclass(frozen=True)
class Exit:
    """Instruction: the cluster is over."""

    reason: str


Event = FromAgent | FromClient | PeerGone | EdgeNotice | EndRequested | Tick
Instruction = Send | Forget | Exit


@dataclass
class Model(HasPhase[Phase]):
    """One cluster, its members, runs and peers. The handlers of one step change it, one after the other."""

    settings: Settings
    version: str
    now: float  # Time of the present step (monotonic seconds).
    new_name: Callable[[], str]
    world: World
    runs: RunBook = field(default_factory=RunBook)
    records: RunRecords = field(default_factory=RunRecords)

    reason: str = ""  # Why the world failed.
    generation: int = 0
    is_dirty: bool = True  # There is no process group, or it may be out of step: form it before a run starts.
    was_aborted: bool = False  # A run was aborted since the world was last formed.
    reform_ended: bool = False  # Callbacks after a re-forming were ended early (see OwnRuns).
    left_out: tuple[str, ...] = ()  # Nodes that could not be had, and why.
    ending: str = ""  # Why the cluster is to be stopped with this step; "" while it is not.

    import_paths: dict[ImportPath, UseImportPath] = field(default_factory=dict)  # Of clients, for later nodes.
    clients: dict[str, str] = field(default_factory=dict)  # Kind of each attached client, by its socket's identity.
    away: dict[str, float] = field(default_factory=dict)  # When clients are dropped to which the connection broke.
    liveness_names: dict[str, str] = field(default_factory=dict)  # `{liveness connection: its peer}`, expected or open.
    out: list[Instruction] = field(default_factory=list)  # What the present step is to send.
    broadcasts: int = 0  # How many messages have been sent to all clients.

    def __post_init__(self) -> None:
        self.lifecycle: Lifecycle[Phase] = Lifecycle("the cluster", "gathering", CLUSTER)

    def send(self, peer: str, message: Message) -> None:
        """To an agent or a client; "" stands for one that is gone."""
        if peer:
            self.out.append(Send(peer, message))

    def tell(self, run: Run, message: Message) -> None:
        """To the run's client, and to those that follow it; recorded for those that come later."""
        self.records.add(run.number, message)
        for client in run.audience:
            self.send(client, message)

    def forget(self, peer: str) -> None:
        """Have the peer say hello first if it speaks again."""
        self.out.append(Forget(peer))

    def send_to_node(self, node_rank: int, message: Message) -> None:
        """To a node's agent, if it is here."""
        self.send(self.world.nodes[node_rank].agent, message)

    def use_import_path(self, message: UseImportPath) -> None:
        """Have ranks find modules where a client does, from its next cell on."""
        self.import_paths[message.path] = message
        for node_rank in self.world.nodes:
            self.send_to_node(node_rank, message)

    @property
    def is_attended(self) -> bool:
        return any(kind != OBSERVER and client not in self.away for client, kind in self.clients.items())

    def notify_observers(self, message: Message) -> None:
        for client, kind in self.clients.items():
            if kind == OBSERVER:
                self.send(client, message)

    def broadcast(self, message: Message) -> None:
        self.broadcasts += 1
        for client in self.clients:
            self.send(client, message)

    def refuse(self, client: str, request: str, reason: str) -> None:
        """Refuse a request; while the world is not whole, the refusal suggests how to make it so."""
        self.send(client, RequestRefused(request, reason, self.remedies()))

    def reject(self, agent: str, hostname: str, reason: str) -> None:
        """Turn an agent away, and let clients know."""
        self.send(agent, Rejected(reason))
        self.forget(agent)
        self.broadcast(Notice(f"a node ({hostname}) was refused: {reason}"))

    def new_liveness_name(self, peer: str) -> str:
        name = self.new_name()
        self.liveness_names[name] = peer
        return name

    def drop_liveness_names(self, peer: str) -> None:
        """The ends of the peer's liveness connections tell nothing any more."""
        for name in [n for n, owner in self.liveness_names.items() if owner == peer]:
            del self.liveness_names[name]

    @property
    def story(self) -> str:
        """The last transitions of the cluster, of unfinished runs and of ranks without a process, for error reports."""
        stories = [self.lifecycle.story, *(r.lifecycle.story for r in self.runs.running.values())]
        return "; ".join(stories + [r.lifecycle.story for r in self.world.ranks.values() if not r.has_process])

    def unformed(self) -> str:
        """Why the world cannot be formed now; "" if it is formed, or will be."""
        if self.phase == "failed":
            return f"the world is not formed: {self.reason}"
        return self.missing_nodes() or self.missing_ranks() or ("" if self.world.ranks else self.unknown_ranks(()))

    @property
    def is_unformed(self) -> bool:
        """Whether the world could not be formed although no process is missing: cells may still remove the cause."""
        here = all(node.is_here for node in self.world.nodes.values())
        return self.phase == "failed" and here and all(rank.has_process for rank in self.world.ranks.values())

    def unknown_ranks(self, ranks: Iterable[int]) -> str:
        """Why these are no ranks of the world; "" if they are."""
        known = self.world.ranks
        if not known:
            here = sum(n.is_here for n in self.world.nodes.values())
            return f"{here} of {self.world.nnodes} nodes are here; ranks are numbered when all are"
        bad = sorted(r for r in ranks if r not in known)
        if bad:
            return f"there is no rank {', '.join(map(str, bad))}; there are ranks 0-{len(known) - 1}"
        return "" if ranks else f"at least one rank must be named, of ranks 0-{len(known) - 1}"

    def missing_nodes(self) -> str:
        """Such as "node 1 (host) is gone"; empty if every node that had joined is here."""
        if awaited := self.awaited_ranks():
            return f"{describe_ranks(awaited, 'has')} not rejoined the restarted controller yet"
        missing = [n for n in self.world.nodes.values() if not n.is_here]
        names = ", ".join(n.name for n in missing)
        return names and f"{names} {'is' if len(missing) == 1 else 'are'} gone"

    def awaited_ranks(self) -> list[int]:
        """The ranks of nodes that have not rejoined a restarted controller, while it waits for them."""
        nodes = self.world.nodes.values()
        awaited = {n.node_rank for n in nodes if n.awaited_until is not None and self.now < n.awaited_until}
        return [r.rank for r in self.world.ranks.values() if r.node_rank in awaited]

    def missing_ranks(self) -> str:
        """Such as "rank 2 (node 1, host) is gone: exited with code 1"; empty if all get a process by themselves."""
        return "; ".join(f"{self.world.where(r.rank)} is gone: {r.death}" for r in self._gone())

    def _gone(self) -> list[Rank]:
        """The ranks of nodes that are here whose place stays empty."""
        ranks = () if self.phase == "failed" else self.world.ranks.values()
        return [r for r in ranks if r.phase == "gone" and self.world.nodes[r.node_rank].is_here]

    def fresh_notice(self, rank: int, why: str = "") -> Notice:
        """Say that a rank has lost its names, and suggest a copy from a rank that still has its own."""
        text = describe_fresh_ranks((rank,)) + (f"; {why}" if why else "")
        others = [r.rank for r in self.world.ranks.values() if r.phase == "held" and not r.is_fresh and r.rank != rank]
        if not others:
            return Notice(text)
        effect = f"copy what it shared with {describe_ranks(others)}"
        return Notice(text, remedies=(Remedy("restore", effect, name=f"{rank} --from {others[0]} NAMES"),))

    def remedies(self) -> tuple[Remedy, ...]:
        """Suggested actions against what the world lacks now; empty if it lacks nothing."""
        if self.is_unformed:
            return (Remedy("run_cell", "remove the cause; every rank keeps its names"),)
        if self.phase == "failed":
            lost = RankSet(r.rank for r in self.world.ranks.values() if r.phase == "gone")
            if lost and len(lost) < len(self.world.ranks):
                return (Remedy("restart", "try again; the other ranks keep their names", str(lost)),)
            return (Remedy("restart", "try again"),)
        absent = [r.rank for r in self.world.ranks.values() if not self.world.nodes[r.node_rank].is_here]
        if not absent:
            gone = self._gone()
            fresh = "start a fresh one" if len(gone) == 1 else "start fresh ones"
            return (Remedy("restart", fresh, str(RankSet(r.rank for r in gone))),) if gone else ()
        ranks = str(RankSet(absent))
        again = Remedy("restart", "start it again with fresh ranks", ranks)
        without = Remedy("remove", "go on without it", ranks)
        if self.awaited_ranks():  # they may still have their names
            return (without,) if len(absent) < len(self.world.ranks) else ()
        return (again, without) if len(absent) < len(self.world.ranks) else (again,)
