"""State: any order of events keeps the cluster's promises; and how a cluster ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.controller import state as state_module
from jdist.controller.model.model import FromAgent, FromClient, PeerGone, Tick
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import (
    AgentHello,
    EndOverdue,
    GroupMade,
    GroupSpec,
    Heartbeat,
    LivenessLost,
    LivenessRenewed,
    MakeGroup,
    MakeMesh,
    Restart,
    Shutdown,
)
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import (
    CellSpec,
    ExecuteCell,
    Interrupt,
    Output,
    RankDone,
    RunCell,
    RunEnded,
    RunStarted,
    Text,
)
from jdist.core.messages.status import (
    OBSERVER,
    ClientHello,
    ClusterFacts,
    Notice,
    RequestRefused,
    RunsChanged,
    StatusReport,
    StatusRequest,
    StopCluster,
    Stopped,
)
from support.driver import VERSION, Agent, Driver, facts

# ---------------------------------------------------------------- every order of events

RANKS = st.sets(st.integers(0, 3), min_size=1).map(lambda s: tuple(sorted(s)))
ACTIONS = st.one_of(
    st.tuples(st.just("run"), RANKS, st.sampled_from([None, 0.5, 3.0]), st.booleans()),
    st.tuples(st.just("deliver"), st.integers(0, 7), st.integers(1, 4)),
    st.tuples(st.just("finish"), st.integers(0, 3), st.sampled_from(["value", "error"])),
    st.tuples(st.just("interrupt"), st.sampled_from([(), (0,), (1, 2)])),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("group"), RANKS),
    st.tuples(st.just("restart"), RANKS),
    st.tuples(st.just("made"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
    st.tuples(st.just("join")),
    st.tuples(st.just("stubborn"), st.integers(0, 1)),
    st.tuples(st.just("attach")),
    st.tuples(st.just("leave")),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 0.4, 1.0, 6.0])),
)


class Story:
    """Acts out a list of actions; what agents have to say is said only when an action delivers it."""

    def __init__(self) -> None:
        self.d = Driver(interrupt_grace=1.0, beat_timeout=30.0, node_grace=60.0, form_timeout=20.0).ready()
        self.lives: list[str] = []
        self.requests: list[str] = []

    def act(self, action: tuple[object, ...]) -> None:
        getattr(self, str(action[0]))(*action[1:])

    def _live(self) -> list[Agent]:
        return [a for a in self.d.agents.values() if not a.is_gone]

    def _request(self) -> str:
        self.requests.append(f"q{len(self.requests)}")
        return self.requests[-1]

    def run(self, ranks: tuple[int, ...], timeout: float | None, is_setup: bool) -> None:
        self.d.run(ranks, timeout, is_setup=is_setup)

    def deliver(self, which: int, count: int) -> None:
        talkers = [a for a in self._live() if a.says]
        if talkers:
            self.d.deliver(talkers[which % len(talkers)], count)

    def finish(self, rank: int, kind: str) -> None:
        for agent in self._live():
            if rank in agent.cells:
                agent.finish(rank, kind)

    def interrupt(self, ranks: tuple[int, ...]) -> None:
        self.d.say(Interrupt(self._request(), ranks))

    def kill(self, rank: int) -> None:
        for agent in self._live():
            if rank in agent.incarnations:
                agent.kill(rank)

    def group(self, ranks: tuple[int, ...]) -> None:
        self.d.say(MakeGroup(self._request(), "g", ranks))

    def restart(self, ranks: tuple[int, ...]) -> None:
        self.d.say(Restart(self._request(), ranks))

    def made(self, rank: int, index: int) -> None:
        for agent in self._live():
            if rank in agent.incarnations:
                agent.says.append(GroupMade(rank, self.d.state.model.generation, index, GroupSpec((rank,)), ()))

    def lose(self, which: int) -> None:
        live = [a for a in self._live() if a.liveness_name]
        if which < len(live):
            self.d.lose(live[which])

    def join(self) -> None:
        self.d.add_agent(f"a-more{len(self.d.agents)}")

    def stubborn(self, which: int) -> None:
        live = self._live()
        if which < len(live):
            live[which].frees = not live[which].frees

    def attach(self) -> None:
        self.lives.append(self.d.attach(f"c-{len(self.lives) + 2}"))
        self.d.run((0, 3), client=f"c-{len(self.lives) + 1}")

    def leave(self) -> None:
        if self.lives:
            self.d.step(PeerGone(self.lives.pop(0)))

    def _pass(self, seconds: float) -> None:
        self.d.now += seconds
        for agent in self._live():
            if agent.liveness_name:
                self.d.step(FromAgent(agent.name, Heartbeat()))
        for _ in range(3):
            wakeup = self.d.state.next_wakeup()
            if wakeup is None or wakeup > self.d.now:
                break
            self.d.step(Tick())
        else:
            raise AssertionError("a wake-up that was served is due again")

    def end(self) -> None:
        """From here on everybody does as told, and every node is here: nothing is left waiting."""
        d = self.d
        for agent in self._live():
            agent.frees = agent.forms = agent.starts_workers = True
        for _ in range(2 - sum(n.is_here for n in d.state.model.world.nodes.values())):
            self.join()
        d.settle()
        if d.state.model.phase == "failed":
            self.restart((0,))
        for _ in range(200):
            d.sleep(0.5)
            busy = [(a, r) for a in self._live() for r in list(a.cells)]
            if (
                not busy
                and d.state.model.phase == "ready"
                and not d.state.model.runs.running
                and not d.state.model.runs.queued
            ):
                break
            for agent, rank in busy:
                if rank in agent.cells:
                    agent.finish(rank)
        assert d.state.model.phase == "ready"
        assert not d.state.model.runs.running
        assert not d.state.model.runs.queued
        for number, log in d.runs.items():
            assert len(log.ended) == 1, f"run {number} has no end"
        answered = {m.request for m in d.told(RankReply) + d.told(RequestRefused)}
        assert {r for r in self.requests if r not in answered} == set()


setattr(Story, "pass", Story._pass)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_the_promises_hold_in_every_order_of_events(actions: list[tuple[object, ...]]) -> None:
    story = Story()
    for action in actions:
        story.act(action)
    story.end()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_a_world_is_formed_in_every_order_of_what_its_agents_say(choices: list[int]) -> None:
    d = Driver(nnodes=3, nproc=(2,))
    waiting = [Agent(f"a-{n}", facts(f"a-{n}")) for n in range(3)]
    for choice in choices:
        talkers = [a for a in d.agents.values() if a.says]
        if waiting and choice % 3 == 0:
            agent = waiting.pop(choice % len(waiting))
            d.agents[agent.name] = agent
            d.step(FromAgent(agent.name, AgentHello(PROTOCOL, VERSION, agent.facts)))
        elif talkers:
            d.deliver(talkers[choice % len(talkers)], 1 + choice // 3)
    for agent in waiting:
        d.agents[agent.name] = agent
        d.step(FromAgent(agent.name, AgentHello(PROTOCOL, VERSION, agent.facts)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 1)


# ---------------------------------------------------------------- ends


def test_a_client_stops_the_cluster_and_nothing_is_done_any_more() -> None:
    d = Driver().ready()
    d.attach("c-2")
    d.run()
    d.say(StopCluster())
    assert [a.heard[-1] for a in d.agents.values()] == [Shutdown(10.0), Shutdown(10.0)]
    assert d.told(Stopped) == d.told(Stopped, "c-2") == [Stopped("stopped by a client")]
    assert d.exits == ["stopped by a client"]
    for event in (
        FromClient("c-1", StopCluster()),
        PeerGone(d.agents["a-0"].liveness_name),
        FromAgent("a-new", AgentHello(PROTOCOL, VERSION, facts())),
        Tick(),
    ):
        assert d.step(event) == []
    assert d.state.next_wakeup() is None
    assert d.state.stop("again") == []


def stopping() -> Driver:
    """A cluster of two nodes that is being stopped; only the first has ended its ranks at once."""
    d = Driver().ready()
    d.run()
    d.agents["a-1"].ends = False
    d.say(StopCluster())
    return d


def test_clients_hear_of_the_end_when_all_agents_have_ended() -> None:
    d = stopping()
    assert d.told(ClusterFacts)[-1].phase == "stopping"
    assert not d.told(Stopped)
    d.step(PeerGone(d.agents["a-1"].liveness_name))
    assert (len(d.told(Stopped)), len(d.exits)) == (1, 1)


def test_what_ranks_write_and_who_is_late_is_passed_on_while_the_cluster_stops() -> None:
    d = stopping()
    last = Output(1, (Text((2,), "stdout", "bye\n"),))
    d.step(FromAgent("a-1", last))
    assert d.told(Output) == [last]
    d.step(FromAgent("a-1", EndOverdue(2, 2, 10.0, "it was in the exit function f")))
    assert "rank 2 did not end within 10 s" in d.told(Notice)[-1].text
    assert "exit function f" in d.told(Notice)[-1].text


def test_nothing_is_begun_or_replaced_while_the_cluster_stops() -> None:
    d = stopping()
    heard = len(d.agents["a-1"].heard)
    d.agents["a-1"].kill(2)
    d.settle()
    d.say(RunCell("late", CellSpec("1"), (2, 3)))
    assert d.told(RequestRefused)[-1].request == "late"
    assert len(d.agents["a-1"].heard) == heard
    d.say(StatusRequest("ask"))
    assert d.told(StatusReport)[-1].facts.phase == "stopping"


def test_an_agent_that_does_not_end_is_not_waited_for() -> None:
    d = stopping()
    d.sleep(14.0, beating=False)
    assert not d.exits
    d.sleep(2.0, beating=False)
    assert d.exits == ["stopped by a client"]


def test_who_is_in_a_hurry_has_the_ranks_killed() -> None:
    d = stopping()
    d.attach("c-hurry")
    d.say(StopCluster(now=True), "c-hurry")
    assert d.agents["a-1"].heard[-1] == Shutdown(0.0)
    assert d.exits == ["stopped by a client"]


def test_a_cluster_nobody_uses_ends() -> None:
    d = Driver(idle_timeout=100.0).ready()
    d.sleep(500.0)
    assert not d.exits, "a client is attached"
    life = next(name for name, peer in d.state.model.liveness_names.items() if peer == "c-1")
    run = d.run((0,))
    d.step(PeerGone(life))
    d.sleep(500.0)
    assert not d.exits, "a run goes on"
    assert run in d.state.model.runs.running
    d.finish(0)
    d.sleep(99.0)
    assert not d.exits
    d.sleep(1.0)
    assert d.exits == ["no client for 100 s"]
    assert d.agents["a-0"].heard[-1] == Shutdown(10.0)


def test_who_looks_on_keeps_no_cluster_and_hears_that_runs_move() -> None:
    d = Driver(idle_timeout=100.0).ready()
    d.step(FromClient("c-9", ClientHello(PROTOCOL, VERSION, OBSERVER, 1)))

    def moved() -> int:
        return len(d.told(RunsChanged, "c-9"))

    d.run((0,))
    assert moved() == 1
    d.run((0,))
    assert moved() == 2, "one waits"
    d.finish(0)
    assert moved() == 3
    d.finish(0)
    d.sleep(5.0)
    assert moved() == 4
    assert not d.told(RunsChanged), "who runs cells hears of them in other ways"
    d.step(PeerGone(next(name for name, peer in d.state.model.liveness_names.items() if peer == "c-1")))
    d.sleep(99.0)
    assert not d.exits
    d.sleep(1.0)
    assert d.exits == ["no client for 100 s"]


def test_a_client_that_comes_back_in_time_keeps_the_cluster() -> None:
    d = Driver(idle_timeout=100.0)
    life = d.attach()
    for node in range(2):
        d.add_agent(f"a-{node}")
    d.settle()
    for _ in range(3):
        d.step(PeerGone(life))
        d.sleep(99.0)
        life = d.attach()
    d.step(PeerGone(life))
    d.sleep(100.0)
    assert d.exits


@pytest.mark.parametrize("is_attached", [True, False])
def test_a_cluster_whose_nodes_never_come_ends_only_without_a_client(*, is_attached: bool) -> None:
    d = Driver(empty_timeout=60.0)
    life = d.attach()
    d.add_agent("a-0")
    if not is_attached:
        d.step(PeerGone(life))
    d.sleep(59.0)
    assert not d.exits
    d.sleep(1.0)
    assert bool(d.exits) is not is_attached


def test_a_lifeline_that_nobody_knows_is_no_event() -> None:
    d = Driver().ready()
    assert d.step(PeerGone("other")) == []


def test_a_request_while_a_mesh_is_made_twice_is_answered_twice() -> None:
    d = Driver().ready()
    for name in ("m1", "m2"):
        d.say(MakeMesh(name, ("dp", "tp"), (2, 2)))
    d.settle()
    assert [a.request for a in d.told(RankReply)] == ["m1", "m2"]


def test_an_agent_speaks_for_its_own_ranks_only() -> None:
    from jdist.core.messages.membership import WorkerDown

    d = Driver().ready()
    run = d.run((0, 3))
    for message in (RankDone(run, 3, "value"), WorkerDown(3, 0, "x"), WorkerDown(77, 0, "x")):
        d.step(FromAgent("a-0", message))
    assert d.kinds(run) == {}
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 1)


def test_what_came_together_is_one_step_with_its_messages_in_order() -> None:
    d = Driver().ready()
    run, waiting = d.run((0, 1)), d.run((0, 1))
    for worker in (0, 1):
        d.agents["a-0"].finish(worker)
    told = [type(message) for message in d.deliver(d.agents["a-0"], count=2)]
    assert told == [RankDone, RankDone, RunEnded, RunStarted, ExecuteCell]
    assert list(d.kinds(run)) == [0, 1]
    assert waiting in d.state.model.runs.running


def test_a_client_whose_connection_broke_is_kept_and_gets_what_it_missed() -> None:
    d = Driver(idle_timeout=100.0)
    life = d.attach()
    for node in range(2):
        d.add_agent(f"a-{node}")
    d.settle()
    d.run((0,))
    d.step(PeerGone(life, is_dead=False))
    d.finish(0)
    assert d.told(RunEnded)
    d.sleep(50.0)
    d.say(LivenessLost())
    d.step(PeerGone(life))
    d.sleep(500.0)
    assert not d.exits, "it is back, and its earlier connection tells nothing any more"
    d.step(PeerGone(d.told(LivenessRenewed)[-1].name))
    d.sleep(100.0)
    assert d.exits == ["no client for 100 s"]


def test_a_client_whose_connection_broke_keeps_no_cluster() -> None:
    d = Driver(idle_timeout=100.0)
    life = d.attach()
    for node in range(2):
        d.add_agent(f"a-{node}")
    d.settle()
    d.step(PeerGone(life, is_dead=False))
    d.sleep(100.0)
    assert d.exits == ["no client for 100 s"]


def test_a_client_that_does_not_come_back_is_dropped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_CLIENT_GRACE", 60.0)
    d = Driver()
    life = d.attach()
    d.step(PeerGone(life, is_dead=False))
    d.sleep(59.0)
    assert d.state.model.clients
    d.sleep(2.0)
    assert not d.state.model.clients
    assert not d.state.model.away
