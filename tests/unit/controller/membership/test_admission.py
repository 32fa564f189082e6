"""Joining: nodes in any order get their places; those that do not fit are turned away with the reason."""

from __future__ import annotations

import msgspec
import pytest

from jdist.controller.model.model import FromAgent
from jdist.core.import_path import ImportPath
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.code import UseImportPath
from jdist.core.messages.membership import AgentHello, Heartbeat, NodeFacts, Rejected, StartStore, Welcome
from jdist.core.messages.status import ClusterFacts, Notice
from support.driver import VERSION, Driver, facts


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_nodes_that_want_a_place_get_it_in_any_order(order: tuple[int, ...]) -> None:
    d = Driver(nnodes=3, nproc=(1, 2, 3))
    for place in order:
        assert d.state.model.phase == "gathering"
        d.add_agent(f"a-{place}", wanted=place)
    welcomes = {a.name: w for a in d.agents.values() for w in a.heard if isinstance(w, Welcome)}
    assert {n: (w.node_rank, w.first_rank, w.nproc) for n, w in welcomes.items()} == {
        "a-0": (0, 0, 1),
        "a-1": (1, 1, 2),
        "a-2": (2, 3, 3),
    }
    assert [type(m) for m in d.agents["a-0"].heard] == [Welcome, StartStore]
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.state.model.generation == 1


def test_every_node_learns_where_clients_find_modules_also_one_that_comes_later() -> None:
    d = Driver(nnodes=2)
    d.attach()
    paths = [UseImportPath(ImportPath(directory)) for directory in ("/a", "/b")]
    d.add_agent("a-0")
    for path in paths:
        d.say(path)
    d.add_agent("a-1")
    for agent in d.agents.values():
        assert [m for m in dict.fromkeys(agent.heard) if isinstance(m, UseImportPath)] == paths


def test_nodes_without_a_wish_are_numbered_as_they_come() -> None:
    d = Driver(nnodes=3, nproc=())
    d.attach()
    d.add_agent("a-x", nproc=1)
    assert not d.agents["a-x"].heard, "ranks are numbered when every node is here"
    assert d.told(ClusterFacts)[-1].nproc_per_node == (1, 0, 0)
    d.add_agent("a-y", facts=facts("gpus", gpus=4))
    d.add_agent("a-z")
    d.settle()
    last = d.told(ClusterFacts)[-1]
    assert (last.nproc_per_node, last.hostnames, last.ready) == ((1, 4, 2), ("a-x", "gpus", "a-z"), 7)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (AgentHello(PROTOCOL + 1, VERSION, facts()), f"protocol {PROTOCOL + 1}"),
        (AgentHello(PROTOCOL, "9.9", facts()), "jdist 9.9"),
        (AgentHello(PROTOCOL, VERSION, facts(python="3.12.1")), "Python 3.12.1, node 1 has 3.11.7"),
        (AgentHello(PROTOCOL, VERSION, facts(torch="2.12.0")), "torch 2.12.0, node 1 has 2.13.0"),
        (AgentHello(PROTOCOL, VERSION, facts(torch="")), "torch"),
        (AgentHello(PROTOCOL, VERSION, facts(), node_rank=1), "node rank 1 is taken"),
        (AgentHello(PROTOCOL, VERSION, facts(), node_rank=7), "no node rank 7"),
    ],
)
def test_an_agent_that_does_not_fit_is_turned_away(hello: AgentHello, reason: str) -> None:
    d = Driver(nnodes=2)
    d.attach()
    d.add_agent("a-good", wanted=1)
    bad = d.add_agent("a-bad", hello=False)
    d.step(FromAgent("a-bad", hello))
    (turned,) = bad.heard
    assert isinstance(turned, Rejected)
    assert reason in turned.reason
    assert reason in d.told(Notice)[-1].text
    d.add_agent("a-other")
    d.settle()
    assert d.state.model.phase == "ready", "the place is still free for one that fits"


def test_a_patch_release_of_python_is_no_reason_to_refuse() -> None:
    d = Driver(nnodes=2)
    d.add_agent("a-0")
    d.add_agent("a-1", facts=facts(python="3.11.2"))
    d.settle()
    assert d.state.model.phase == "ready"


def test_one_agent_too_many_is_told_so() -> None:
    d = Driver().ready()
    extra = d.add_agent("a-extra")
    (turned,) = extra.heard
    assert isinstance(turned, Rejected)
    assert "all 2 nodes of cluster c1 are here" in turned.reason


def test_an_agent_that_says_hello_twice_takes_one_place() -> None:
    d = Driver(nnodes=2)
    agent = d.add_agent("a-0")
    d.step(FromAgent("a-0", AgentHello(PROTOCOL, VERSION, agent.facts)))
    assert not d.state.model.world.is_complete
    d.add_agent("a-1")
    d.settle()
    assert d.state.model.phase == "ready"


def test_a_stranger_has_to_say_hello() -> None:
    d = Driver().ready()
    stranger = d.add_agent("a-old", hello=False)
    d.step(FromAgent("a-old", Heartbeat()))
    assert d.forgotten == ["a-old"]
    assert not stranger.heard


def test_a_node_that_leaves_before_the_world_is_complete_gives_its_place_back() -> None:
    d = Driver(nnodes=2, nproc=(), node_grace=5.0)
    d.add_agent("a-0", nproc=3)
    d.now += 6.0
    d.sleep(0.1, beating=False)
    d.add_agent("a-new", nproc=1)
    d.add_agent("a-1", nproc=2)
    d.settle()
    assert d.state.model.phase == "ready"
    assert d.state.model.world.topology.nproc_per_node == (1, 2)


@pytest.mark.parametrize(
    ("init_method", "place"),
    [("env://", ("", 0)), ("tcp://node0:29500", ("node0", 29500)), ("tcp://[::1]:4?rank=0", ("::1", 4))],
)
def test_the_store_is_started_where_the_init_method_says(init_method: str, place: tuple[str, int]) -> None:
    d = Driver(nnodes=1, init_method=init_method).ready()
    (store,) = d.heard(StartStore)
    assert (store.host, store.port) == place


def at(address: str, reached: str) -> NodeFacts:
    return msgspec.structs.replace(facts(), address=address, reached=reached)


def test_a_node_on_the_controllers_host_is_met_where_the_others_reach_the_controller() -> None:
    d = Driver(nnodes=3)
    d.add_agent("a-here", facts=at("192.0.2.1", "192.0.2.1"))
    d.add_agent("a-1", facts=at("10.0.0.2", "10.0.0.1"))
    d.add_agent("a-2", facts=at("10.0.0.3", "10.0.0.1"))
    assert [w.address for w in d.heard(Welcome)] == ["10.0.0.1", "", ""]


def test_nodes_that_are_all_on_the_controllers_host_meet_where_they_like() -> None:
    d = Driver(nnodes=2)
    for n in range(2):
        d.add_agent(f"a-{n}", facts=at("127.0.0.1", "127.0.0.1"))
    assert [w.address for w in d.heard(Welcome)] == ["", ""]


def test_an_agent_is_sent_the_level_of_logging_that_the_cluster_was_started_with() -> None:
    for env, level in (((), ""), ((("JDIST_LOG", "debug"),), "debug")):
        d = Driver(nnodes=1, nproc=(1,), env=env)
        d.ready()
        assert [m.log_level for m in d.agents["a-0"].heard if isinstance(m, Welcome)] == [level]
