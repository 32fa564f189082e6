"""On death: what follows a rank's or a node's end under each policy, and what is remembered of it."""

from __future__ import annotations

import pytest

from jdist.core.errors import Remedy
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.membership import MakeGroup, Restart, Shutdown, StartWorker
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.messages.runs import Interrupt, RankDone, RunEnded
from jdist.core.messages.status import (
    ClusterFacts,
    Notice,
    RankFacts,
    RequestRefused,
    StatusReport,
    StatusRequest,
    Stopped,
)
from jdist.core.messages.values import Evaluate
from support.driver import Driver

WHY = "killed by signal 9 (SIGKILL)"
GONE = f"rank 2 (node 1, a-1) is gone: {WHY}"
RESTART = (Remedy("restart", "start a fresh one", "2"),)


def rows(d: Driver) -> dict[int, RankFacts]:
    d.say(StatusRequest("s"))
    return {r.rank: r for r in d.told(StatusReport)[-1].ranks}


def kill(d: Driver, *ranks: int) -> None:
    for rank in ranks:
        d.agent_of(rank).kill(rank, WHY)
    d.settle()


# ---------------------------------------------------------------- replace


def test_a_replaced_rank_remembers_why_and_when_the_last_one_died() -> None:
    d = Driver().ready()
    kill(d, 2)
    d.sleep(5.0)
    found = rows(d)
    assert (found[2].fresh, found[2].death, found[2].death_age) == (True, WHY, 5.0)
    assert (found[1].fresh, found[1].death, found[1].death_age) == (False, "", 0.0)
    before = len(d.told(Notice))
    d.say(Restart("r", (2,)))
    d.settle()
    assert rows(d)[2].death == "restarted by the user"
    assert [n.text for n in d.told(Notice)[before:]] == ["rank 2 is fresh: its namespace is lost"]


# ---------------------------------------------------------------- wait


def test_wait_leaves_the_place_empty_and_says_how_to_fill_it() -> None:
    d = Driver(on_death="wait").ready()
    kill(d, 2)
    d.sleep(100.0)
    assert d.heard(StartWorker) == []
    assert (d.state.model.phase, d.state.model.generation) == ("gathering", 1)
    facts = d.told(ClusterFacts)[-1]
    assert (facts.ready, facts.reason, facts.remedies) == (3, GONE, RESTART)
    assert [(n.text, n.remedies) for n in d.told(Notice)] == [
        (f"rank 2 (node 1, a-1) is lost: {WHY}", ()),
        ("the place of rank 2 stays empty; the other ranks keep their names", RESTART),
    ]
    assert (rows(d)[2].state, rows(d)[2].death, rows(d)[2].fresh) == ("gone", WHY, False)


def test_wait_frees_the_survivors_and_refuses_what_needs_the_rank() -> None:
    d = Driver(on_death="wait").ready()
    run, queued = d.run((0, 2)), d.run((0,))
    d.say(MakeGroup("g", "pair", (0, 2)))
    kill(d, 2)
    assert d.kinds(run) == {0: "interrupted", 2: "lost"}
    assert d.told(RunEnded)[-1].reason == "lost"
    assert d.kinds(queued) == {0: "interrupted"}
    error = next(e.error for e in d.told(RankDone) if e.run == queued)
    assert error is not None
    assert (GONE in error.evalue, error.remedies) == (True, RESTART)
    assert {r.request: r.reason for r in d.told(RequestRefused)} == {"g": GONE}
    assert d.run((0,)) == 0
    assert GONE in d.told(RequestRefused)[-1].reason
    d.say(MakeGroup("g2", "other", (0, 1)))
    assert (d.told(RequestRefused)[-1].reason, d.told(RequestRefused)[-1].remedies) == (GONE, RESTART)


def test_wait_lets_a_run_on_other_ranks_go_on_and_answers_questions() -> None:
    d = Driver(on_death="wait").ready()
    other = d.run((3,))
    kill(d, 2)
    d.finish(3)
    assert d.kinds(other) == {3: "value"}
    d.say(RankQuery("q", (2, 3), Evaluate(("x",))))
    d.settle()
    found = {a.rank: a.body for a in d.told(RankReply)}
    assert found[2] == QueryFailed(f"rank 2 (node 1, a-1) has no process now: {WHY}")
    assert not isinstance(found[3], QueryFailed)


def test_wait_ends_with_a_restart_which_runs_the_setup_cells() -> None:
    d = Driver(on_death="wait").ready()
    run = d.run((2,), is_setup=True)
    code = d.agent_of(2).cells[2].spec.code
    d.finish(2)
    kill(d, 2)
    d.say(Restart("r", (2,)))
    d.settle()
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1)]
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert [a.request for a in d.told(RankReply)] == ["r"]
    assert d.agent_of(2).cells[2].spec.code == code
    d.finish(2)
    assert rows(d)[2].fresh
    assert d.run() > run


def test_a_restart_that_leaves_places_empty_is_refused_and_changes_nothing() -> None:
    d = Driver(on_death="wait").ready()
    kill(d, 1, 2)
    d.say(Restart("r", (2,)))
    assert "rank 1 (node 0, a-0) is gone" in d.told(RequestRefused)[-1].reason
    assert d.told(RequestRefused)[-1].remedies == (Remedy("restart", "start fresh ones", "1-2"),)
    assert d.heard(StartWorker) == []
    d.say(Restart("r2", (1, 2)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_wait_while_the_world_is_formed() -> None:
    d = Driver(on_death="wait").ready()
    d.agents["a-0"].forms = False
    d.say(Restart("r", (3,)))
    d.settle()
    assert d.state.model.phase == "forming"
    kill(d, 0)
    d.sleep(200.0)
    assert d.state.model.phase == "gathering", "an empty place has no deadline"
    assert d.told(RequestRefused)[-1].request == "r"
    d.agents["a-0"].forms = True
    d.say(Restart("r2", (0,)))
    d.settle()
    assert d.state.model.phase == "ready"


@pytest.mark.parametrize("on_death", ["wait", "stop"])
def test_a_rank_that_is_given_up_is_replaced_under_other_policies_too(on_death: str) -> None:
    d = Driver(on_death=on_death).ready()
    for agent in d.agents.values():
        agent.frees = False
    d.run((2,))
    d.say(Interrupt("i"))
    d.sleep(20.0)
    assert d.heard(StartWorker) == [StartWorker(2, 2, 1, keeps_names=True)]
    assert d.state.model.phase == "ready"


def test_a_node_that_comes_back_fills_an_empty_place_too() -> None:
    d = Driver(on_death="wait").ready()
    kill(d, 2)
    d.lose(d.agents["a-1"])
    assert "node 1 (a-1) is gone" in rows(d)[3].death
    d.add_agent("a-back")
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


# ---------------------------------------------------------------- stop


@pytest.mark.parametrize("how", ["rank", "node"])
def test_stop_ends_the_cluster_and_tells_every_client_why(how: str) -> None:
    d = Driver(on_death="stop").ready()
    d.attach("c-2")
    run = d.run((0, 2))
    if how == "rank":
        kill(d, 2)
        words = ["rank 2 (node 1, a-1)", WHY, "started to stop"]
    else:
        d.lose(d.agents["a-1"])
        words = ["node 1 (a-1)", "started to stop"]
    assert d.kinds(run)[2] == "lost"
    for client in ("c-1", "c-2"):
        (stopped,) = d.told(Stopped, client)
        assert all(w in stopped.reason for w in words)
    assert d.exits == [stopped.reason]
    assert any(isinstance(m, Shutdown) for m in d.agents["a-0"].heard)
    assert d.state.model.phase == "stopping"


def test_stop_lets_ranks_be_restarted_by_hand() -> None:
    d = Driver(on_death="stop").ready()
    d.say(Restart("r", (1,)))
    d.settle()
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert d.exits == []
