"""Driver: plays clients, agents and the clock for a :class:`State`, and checks what must hold after every step."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jdist.controller.model.model import Event, Exit, Forget, FromAgent, FromClient, PeerGone, Send, Tick
from jdist.controller.state import State
from jdist.core.messages.base import PROTOCOL, Ack, Message
from jdist.core.messages.debug import PauseRanks, RankPaused, ResumeRanks, RunFollowed
from jdist.core.messages.membership import (
    AgentHello,
    CarriedNames,
    EndWorkers,
    FormWorld,
    Heartbeat,
    LauncherTask,
    LivenessRenewed,
    NodeFacts,
    Rejected,
    Shutdown,
    StartStore,
    StartWorker,
    StoreUp,
    Welcome,
    WorkerDown,
    WorkerUp,
    WorldFormed,
)
from jdist.core.messages.nodes import ClockReading
from jdist.core.messages.observation import Activity, Observation, Observe, PauseReason, StackFrame
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.runs import (
    AbortRun,
    CellRefused,
    CellSpec,
    ExecuteCell,
    RankDone,
    RunAccepted,
    RunCell,
    RunEnded,
)
from jdist.core.messages.status import ClientHello
from jdist.core.outcome import ErrorInfo
from jdist.core.settings import Settings
from jdist.core.topology import Topology

VERSION = "1.2.3"
M = TypeVar("M", bound=Message)


def facts(hostname: str = "h", python: str = "3.11.7", torch: str = "2.13.0", gpus: int = 0) -> NodeFacts:
    return NodeFacts(hostname, 7, python, torch, VERSION, gpus, 4, "10.0.0.1")


@dataclass
class Agent:
    """Plays one node's agent: what it says in answer is queued, and said when the driver lets it."""

    name: str
    facts: NodeFacts
    nproc: int = 0
    wanted: int = -1
    task: LauncherTask | None = None
    says: deque[Message] = field(default_factory=deque)
    heard: list[Message] = field(default_factory=list)
    incarnations: dict[int, int] = field(default_factory=dict)
    cells: dict[int, ExecuteCell] = field(default_factory=dict)
    """By worker: the cell that it runs."""
    inner: dict[int, ExecuteCell] = field(default_factory=dict)
    """By worker that is paused: the cell that runs there."""
    paused: set[int] = field(default_factory=set)
    resumes: dict[int, int] = field(default_factory=dict)
    """By worker: how many times it was told to go on in its present cell."""
    pauses: bool = True
    liveness_name: str = ""
    place: int = -1
    is_gone: bool = False
    is_unreachable: bool = False
    """Nothing that it says arrives yet."""
    starts_workers: bool = True
    forms: bool = True
    frees: bool = True
    finishes: bool = False
    ends: bool = True
    """It ends as soon as it is asked to, and not only once its ranks are to be killed."""
    answers: bool = True
    saved: dict[int, CarriedNames] = field(default_factory=dict)
    """By worker: what its next process takes over from the one that was killed."""
    wants: set[int] = field(default_factory=set)
    """Ranks with functions to be called after a forming."""

    def hear(self, message: Message) -> None:
        self.heard.append(message)
        match message:
            case Welcome():
                self.liveness_name = message.liveness_name
                self.place = message.node_rank
                self.cells = {}
                if message.workers:
                    self.incarnations = {}
                for each in message.workers:
                    self._start(each.worker, each.incarnation)
            case LivenessRenewed():
                self.liveness_name = message.name
            case StartStore():
                self.says.append(StoreUp(message.host or "10.0.0.1", message.port or 4000))
            case StartWorker():
                self.cells.pop(message.worker, None)
                self._start(message.worker, message.incarnation)
            case EndWorkers():
                for worker in message.workers:
                    assert worker not in self.cells, f"worker {worker} was removed in its cell"
                    self.incarnations.pop(worker, None)
            case FormWorld() if self.forms:
                for rank, worker in enumerate(message.workers):
                    if worker in self.incarnations:
                        self.place = Topology(message.nproc_per_node).place(rank)
                        at = (("10.0.0.1", 5000 + worker),)
                        carried, wants = self.saved.pop(worker, None), worker in self.wants
                        formed = WorldFormed(worker, message.generation, "cpu", at, (), wants, carried)
                        self.says.append(formed)
            case ExecuteCell() if message.in_run and not self.cells.keys() >= set(message.workers):
                self.says.append(CellRefused(message.run, message.workers))  # one of them has just died
            case ExecuteCell() if message.in_run:
                for worker in message.workers:
                    assert self.cells[worker].run == message.in_run, f"{worker} is in another run"
                    assert worker in self.paused, f"{worker} is not paused"
                    assert worker not in self.inner, f"{worker} has a cell there"
                    self.inner[worker] = message
            case PauseRanks() if self.pauses:
                for worker in message.workers:
                    if worker in self.cells and worker not in self.paused:
                        self.pause(worker)
            case ResumeRanks():
                for worker in message.workers:
                    self.paused.discard(worker)
                    self.resumes[worker] = self.resumes.get(worker, 0) + 1
            case ExecuteCell():
                for worker in message.workers:
                    assert worker not in self.cells, f"{worker} got run {message.run} in {self.cells[worker].run}"
                    self.cells[worker] = message
                    if self.finishes:
                        self.finish(worker)
            case AbortRun() if self.frees:
                for worker in message.workers:
                    while message.run in (on.run for on in (self.inner, self.cells) for on in [on.get(worker)] if on):
                        self.finish(worker, "error")
            case RankQuery() if self.answers:
                for rank in message.ranks:
                    body = (
                        Observation("cpu", Activity("python", "f", 1), 1) if isinstance(message.op, Observe) else Ack()
                    )
                    self.says.append(RankReply(message.request, rank, body))
            case NodeQuery() if self.answers:
                self.says.append(NodeReply(message.request, message.nodes[0], ClockReading(1.0)))
            case Shutdown() if self.ends or not message.grace:
                self.is_gone = True

    def finish(self, worker: int, kind: str = "value", *, echo: bool = False) -> None:
        cell = self.inner.pop(worker, None)
        if cell is None:
            cell = self.cells.pop(worker)
            self.paused.discard(worker)
            self.resumes.pop(worker, None)
        error = ErrorInfo("ValueError", "x", is_echo=echo) if kind == "error" else None
        self.says.append(RankDone(cell.run, worker, kind, 0.1, error=error))

    def pause(self, worker: int, reason: PauseReason = "request", line: int = 8) -> None:
        """The worker pauses, and says so."""
        self.paused.add(worker)
        at = StackFrame("train_step", "", line)
        self.says.append(RankPaused(self.cells[worker].run, worker, reason, at, self.resumes.get(worker, 0)))

    def kill(
        self,
        worker: int,
        reason: str = "killed by signal 9",
        observation: Observation | None = None,
        hands_over: bool = False,
    ) -> None:
        self.cells.pop(worker, None)
        self.inner.pop(worker, None)
        self.paused.discard(worker)
        self.resumes.pop(worker, None)
        self.says.append(WorkerDown(worker, self.incarnations[worker], reason, observation, hands_over))

    def _start(self, worker: int, incarnation: int) -> None:
        self.incarnations[worker] = incarnation
        if self.starts_workers:
            self.says.append(WorkerUp(worker, 1000 + worker, incarnation, worker in self.saved))


@dataclass
class RunLog:
    """What a client was told about one of its runs."""

    ranks: tuple[int, ...]
    done: list[RankDone] = field(default_factory=list)
    ended: list[RunEnded] = field(default_factory=list)


class Driver:
    """A controller's state with played peers. After each step the invariants hold, or the test fails."""

    def __init__(self, nnodes: int = 2, nproc: tuple[int, ...] = (2,), **settings: float | str):
        self.now = 100.0
        self._names = itertools.count()
        self.settings = Settings(name="c1", nnodes=nnodes, nproc_per_node=nproc, **settings)  # type: ignore[arg-type]
        self.state = State(self.settings, "cid", VERSION, self.now, lambda: f"life{next(self._names)}")
        self.agents: dict[str, Agent] = {}
        self.inbox: dict[str, list[Message]] = {}
        self.exits: list[str] = []
        self.forgotten: list[str] = []
        """Peers that were given up or turned away."""
        self.runs: dict[int, RunLog] = {}
        self._requests: dict[str, tuple[int, ...]] = {}
        self._generations: list[int] = [0]
        self._halted_since_formed = False

    # ------------------------------------------------------------ time and delivery

    def step(self, *events: Event) -> list[Message]:
        """One step, of events that came together; what was sent in it."""
        self.state.begin_step(self.now)
        for event in events:
            self.state.handle(event)
        instructions = self.state.end_step()
        sent = []
        for instruction in instructions:
            if isinstance(instruction, Exit):
                self.exits.append(instruction.reason)
            elif isinstance(instruction, Forget):
                self.forgotten.append(instruction.peer)
            else:
                sent.append(instruction.message)
                self._carry(instruction)
        self._check()
        for agent in self.agents.values():
            if agent.is_gone and agent.liveness_name in self.state.model.liveness_names:
                sent += self.step(PeerGone(agent.liveness_name))
        return sent

    def _carry(self, instruction: Send) -> None:
        message = instruction.message
        self._note(message)
        if instruction.peer == "-":
            return  # the client of a run that an earlier controller had; it is told nothing
        agent = self.agents.get(instruction.peer)
        if agent is not None:
            if not isinstance(message, Rejected):
                assert not agent.is_gone, f"{message} was sent to {agent.name}, which is gone"
            agent.hear(message)
            return
        self.inbox.setdefault(instruction.peer, []).append(message)
        if isinstance(message, RankDone):
            done = self.runs.setdefault(message.run, RunLog(())).done
            if not any(each is message for each in done):  # it goes to every client that follows the run
                done.append(message)
        elif isinstance(message, RunEnded):
            ended = self.runs.setdefault(message.run, RunLog(())).ended
            if not any(each is message for each in ended):
                ended.append(message)
        elif isinstance(message, RunFollowed):
            self.runs.setdefault(message.run, RunLog(())).ranks = message.ranks
        elif isinstance(message, RunAccepted):
            self.runs.setdefault(message.run, RunLog(())).ranks = self._requests[message.request]

    def _note(self, message: Message) -> None:
        """What must hold of the order of instructions."""
        match message:
            case AbortRun():
                self._halted_since_formed = self._halted_since_formed or not message.is_inner
            case FormWorld():
                assert message.generation >= self._generations[-1], "a generation went back"
                self._generations.append(message.generation)
                self._halted_since_formed = False
                assert not self.state.model.runs.running, "a world was formed while a run was running"
            case ExecuteCell() if message.unformed:
                assert self.state.model.phase == "failed"
            case ExecuteCell() if not message.in_run:
                assert not self._halted_since_formed, "a run was started in a generation that a halt has broken"
                assert self.state.model.phase == "ready"

    def _check(self) -> None:
        """What must hold after every step."""
        busy = [r for run in self.state.model.runs.running.values() for r in run.pending - run.inside.keys()]
        assert len(busy) == len(set(busy)), f"a rank has two runs: {sorted(busy)}"
        running = self.state.model.runs.running.values()
        assert all(run.pending or run.phase in ("diagnosing", "comparing") for run in running), (
            "a run that is over counts as running"
        )
        for log in self.runs.values():
            ranks = [d.rank for d in log.done]
            assert len(ranks) == len(set(ranks)), f"two ends for one rank: {ranks}"
            assert len(log.ended) <= 1
            if log.ended:
                assert sorted(ranks) == sorted(log.ranks)
        if self.state.model.phase == "stopping":
            assert (self.state.next_wakeup() is None) is bool(self.exits)
            return
        wakeup = self.state.next_wakeup()
        runs = self.state.model.runs.running.values()
        due = [r.deadline for r in runs if not r.abort_reason and r.compare_until is None]
        due += [r.give_up_at for r in runs] + [r.compare_until for r in runs]
        assert not any(r.paused and (r.deadline or r.final_poll_at) for r in runs), "a deadline of a paused run moves"
        assert not any(r.paused.keys() - r.pending or r.pausing - r.pending for r in runs), "who has ended is paused"
        here = [n for n in self.state.model.world.nodes.values() if n.is_here]
        due += [n.last_heard + n.grace(self.settings) for n in here]
        due += [n.last_heard + self.settings.beat_timeout for n in here if not n.is_unreachable]
        assert all(wakeup is not None and wakeup <= t for t in due if t is not None), "a deadline has no wake-up"

    def deliver(self, agent: Agent, count: int = 1) -> list[Message]:
        """The agent says the oldest thing it has to say, or that many at once."""
        return self.step(*(FromAgent(agent.name, agent.says.popleft()) for _ in range(min(count, len(agent.says)))))

    def settle(self) -> None:
        """Let every agent say all that it has to say."""
        for _ in range(10000):
            talkers = [a for a in self.agents.values() if a.says and not a.is_gone and not a.is_unreachable]
            if not talkers:
                return
            for agent in talkers:
                if agent.says:
                    self.deliver(agent)
        raise AssertionError("the agents and the controller talk in circles")

    def sleep(self, seconds: float, *, beating: bool = True) -> None:
        """Time passes: every wake-up on the way is served, agents beat."""
        end = self.now + seconds
        while True:
            when = self.state.next_wakeup()
            beat = self.now + 1.0
            self.now = min([end, beat] + ([when] if when is not None else []))
            if when is not None and self.now >= when:
                self.step(Tick())
                after = self.state.next_wakeup()
                assert after is None or after > self.now, "a wake-up that was served is due again"
            if beating:
                for agent in self.agents.values():
                    if not agent.is_gone and not agent.is_unreachable and agent.liveness_name:
                        self.step(FromAgent(agent.name, Heartbeat()))
            self.settle()
            if self.now >= end or self.exits:
                return

    # ------------------------------------------------------------ what peers do

    def add_agent(self, name: str, *, hello: bool = True, **options: object) -> Agent:
        """An agent appears and says hello."""
        agent = Agent(name, options.pop("facts", facts(name)), **options)  # type: ignore[arg-type]
        self.agents[name] = agent
        if hello:
            self.step(
                FromAgent(name, AgentHello(PROTOCOL, VERSION, agent.facts, agent.nproc, agent.wanted, None, agent.task))
            )
        return agent

    def ready(self) -> Driver:
        """A client and as many agents as the world needs; formed."""
        self.attach("c-1")
        for node in range(self.settings.nnodes):
            self.add_agent(f"a-{node}")
        self.settle()
        assert self.state.model.phase == "ready", self.state.model.reason
        return self

    def attach(self, client: str = "c-1") -> str:
        """The client says hello; its liveness connection's name."""
        before = set(self.state.model.liveness_names)
        self.step(FromClient(client, ClientHello(PROTOCOL, VERSION, "test", 1)))
        return next(iter(set(self.state.model.liveness_names) - before))

    def say(self, message: Message, client: str = "c-1") -> list[Message]:
        return self.step(FromClient(client, message))

    def run(
        self, ranks: Iterable[int] = (0, 1, 2, 3), timeout: float | None = None, client: str = "c-1", **options: Any
    ) -> int:
        """Submit a cell; its number, or 0 when it was refused."""
        request = f"r{next(self._names)}"
        self._requests[request] = tuple(ranks)
        self.say(RunCell(request, CellSpec(f"code {request}", timeout=timeout, **options), tuple(ranks)), client)
        last = [m for m in self.inbox[client] if getattr(m, "request", "") == request][-1]
        return getattr(last, "run", 0)

    def lose(self, agent: Agent) -> None:
        """The agent's process ends: its liveness connection does."""
        agent.is_gone = True
        agent.says.clear()
        self.step(PeerGone(agent.liveness_name))

    def greet(self, agent: Agent) -> None:
        """The agent was given up and says hello again, for the place it had."""
        agent.is_unreachable = False
        agent.says.clear()
        hello = AgentHello(PROTOCOL, VERSION, agent.facts, agent.nproc, agent.place, None, agent.task)
        self.step(FromAgent(agent.name, hello))

    def agent_of(self, rank: int) -> Agent:
        node = self.state.model.world.ranks[rank].node_rank
        return self.agents[self.state.model.world.nodes[node].agent]

    def worker(self, rank: int) -> int:
        """The id of the rank's worker: the number that it was given first."""
        return self.state.model.world.ranks[rank].worker

    def finish(self, rank: int, kind: str = "value", *, echo: bool = False) -> None:
        agent = self.agent_of(rank)
        agent.finish(self.worker(rank), kind, echo=echo)
        self.settle()

    # ------------------------------------------------------------ what was said

    def told(self, kind: type[M], client: str = "c-1") -> list[M]:
        """The messages of one kind that the client got."""
        return [m for m in self.inbox.get(client, []) if isinstance(m, kind)]

    def heard(self, kind: type[M]) -> list[M]:
        """The messages of one kind that the agents got."""
        return [m for a in self.agents.values() for m in a.heard if isinstance(m, kind)]

    def kinds(self, run: int) -> dict[int, str]:
        """How each rank's part of the run ended."""
        return {d.rank: d.kind for d in self.runs[run].done}
