"""Questions: each goes to its ranks' nodes, and each rank is answered for once, whatever becomes of it."""

from __future__ import annotations

from jdist.controller.model.model import FromAgent, PeerGone
from jdist.core.messages.base import Ack, Progress, QueryFailed
from jdist.core.messages.membership import RemoveRanks, Restart
from jdist.core.messages.nodes import ClockReading, ReadClock
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.status import ClientHello, ClusterFacts, RequestRefused, StatusRequest
from jdist.core.messages.values import Logs
from support.driver import Driver


def quiet(d: Driver) -> Driver:
    for agent in d.agents.values():
        agent.answers = False
    return d


def test_a_question_goes_to_each_node_once_and_every_rank_answers() -> None:
    d = Driver().ready()
    d.say(RankQuery("q", (0, 1, 3), Logs(5)))
    assert [a.ranks for a in d.heard(RankQuery)] == [(0, 1), (3,)]
    d.settle()
    assert sorted((a.rank, a.body) for a in d.told(RankReply)) == [(0, Ack()), (1, Ack()), (3, Ack())]


def test_progress_is_passed_on_and_is_no_answer() -> None:
    d = quiet(Driver().ready())
    d.say(RankQuery("q", (0,), Logs(5)))
    for body in (Progress(1, 9), Progress(9, 9), Ack(), Ack(), Progress(9, 9)):
        d.step(FromAgent("a-0", RankReply("q", 0, body)))
    assert [a.body for a in d.told(RankReply)] == [Progress(1, 9), Progress(9, 9), Ack()]


def test_an_answer_that_comes_twice_is_passed_on_once() -> None:
    d = quiet(Driver().ready())
    d.say(RankQuery("q", (0, 1), Logs(5)))
    for rank in (0, 0, 1):
        d.step(FromAgent("a-0", RankReply("q", rank, Ack())))
    assert [a.rank for a in d.told(RankReply)] == [0, 1]


def test_a_rank_that_is_not_there_or_has_no_process_is_answered_for_at_once() -> None:
    d = Driver().ready()
    d.agents["a-1"].starts_workers = False
    d.agents["a-1"].kill(3)
    d.settle()
    d.say(RankQuery("q", (0, 3, 9), Logs(5)))
    faults = {a.rank: a.body.reason for a in d.told(RankReply) if isinstance(a.body, QueryFailed)}
    assert faults == {3: "rank 3 (node 1, a-1) has no process now: killed by signal 9", 9: "there is no such rank"}


def test_when_a_rank_dies_its_questions_are_answered() -> None:
    d = quiet(Driver().ready())
    d.say(RankQuery("q", (2, 3), Logs(5)))
    d.agent_of(3).kill(3)
    d.settle()
    (answer,) = d.told(RankReply)
    assert (answer.request, answer.rank) == ("q", 3)
    assert "rank 3 (node 1, a-1) is gone: killed by signal 9" in str(answer.body)


def test_when_a_node_goes_the_questions_to_all_its_ranks_are_answered() -> None:
    d = quiet(Driver().ready())
    d.say(RankQuery("q", (0, 2, 3), Logs(5)))
    d.lose(d.agents["a-1"])
    assert sorted(a.rank for a in d.told(RankReply)) == [2, 3]


def test_nobody_answers_a_client_that_left() -> None:
    d = quiet(Driver().ready())
    life = d.attach("c-2")
    d.say(RankQuery("q", (0,), Logs(5)), client="c-2")
    d.step(PeerGone(life))
    assert d.step(FromAgent("a-0", RankReply("q", 0, Ack()))) == []


def test_a_client_that_names_its_question_as_the_controller_does_gets_its_answer() -> None:
    d = Driver().ready()
    run = d.run((0,))
    for request in (f"poll-{run}", "poll-", "poll-x"):
        d.say(RankQuery(request, (1,), Logs(1)))
        d.settle()
        assert d.told(RankReply)[-1].request == request


def test_a_question_to_nodes_goes_to_each_ones_agent_and_each_answers() -> None:
    d = Driver().ready()
    d.say(NodeQuery("q", (0, 1, 5), ReadClock()))
    assert [a.nodes for a in d.heard(NodeQuery)] == [(0,), (1,)]
    d.settle()
    found = {a.node: a.body for a in d.told(NodeReply)}
    assert found == {0: ClockReading(1.0), 1: ClockReading(1.0), 5: QueryFailed("node 5 is not here")}


def test_a_node_is_asked_before_the_world_stands() -> None:
    d = Driver()
    d.attach()
    d.add_agent("a-0")
    d.settle()
    d.say(NodeQuery("q", (0, 1), ReadClock()))
    d.settle()
    assert {a.node: type(a.body) for a in d.told(NodeReply)} == {0: ClockReading, 1: QueryFailed}


def test_when_a_node_goes_it_is_answered_for() -> None:
    d = quiet(Driver().ready())
    d.say(NodeQuery("q", (0, 1), ReadClock()))
    d.lose(d.agents["a-1"])
    (answer,) = d.told(NodeReply)
    assert (answer.request, answer.node) == ("q", 1)
    assert "node 1 is gone" in str(answer.body)


def test_a_node_answers_once_and_for_itself_only() -> None:
    d = quiet(Driver().ready())
    d.say(NodeQuery("q", (0,), ReadClock()))
    for agent in ("a-1", "a-0", "a-0"):
        d.step(FromAgent(agent, NodeReply("q", 0, ClockReading(float(agent[-1])))))
    assert [a.body for a in d.told(NodeReply)] == [ClockReading(0.0)]


def test_a_node_that_is_released_is_answered_for_and_the_others_keep_the_number_that_was_asked() -> None:
    d = Driver().ready()
    for agent in d.agents.values():
        agent.answers = False
    d.say(NodeQuery("q", (0, 1), ReadClock()))
    d.say(RemoveRanks("r", (0, 1)))
    d.settle()
    assert {a.node: str(a.body) for a in d.told(NodeReply)} == {0: str(QueryFailed("node 0 (a-0) has been released"))}
    d.step(FromAgent("a-1", NodeReply("q", 1, ClockReading(2.0))))
    assert d.told(NodeReply)[-1] == NodeReply("q", 1, ClockReading(2.0))


def test_who_has_not_said_hello_is_refused() -> None:
    d = Driver().ready()
    d.say(StatusRequest("s"), client="c-9")
    assert d.told(RequestRefused, "c-9") == [RequestRefused("s", "say hello first")]


def test_a_client_of_another_protocol_is_refused_with_both_numbers() -> None:
    d = Driver().ready()
    d.say(ClientHello(99, "7.0", "test", 1), client="c-9")
    (refused,) = d.told(RequestRefused, "c-9")
    assert "protocol 99 (jdist 7.0)" in refused.reason
    assert "1.2.3" in refused.reason
    assert "c-9" not in d.state.model.clients


def test_every_client_hears_what_changes_and_one_that_left_does_not() -> None:
    d = Driver().ready()
    life = d.attach("c-2")
    assert d.told(ClusterFacts, "c-2")[-1].phase == "ready"
    d.say(Restart("r", (0,)))
    d.settle()
    assert d.told(ClusterFacts, "c-2")[-1] == d.told(ClusterFacts)[-1]
    d.step(PeerGone(life))
    heard = len(d.inbox["c-2"])
    d.say(Restart("r", (0,)))
    d.settle()
    assert len(d.inbox["c-2"]) == heard
