"""Limits: what one peer may make the controller remember, and for whom a node may speak."""

from __future__ import annotations

from jdist.controller import queries
from jdist.controller.model.model import FromAgent
from jdist.controller.runs import lifecycle
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import AgentHello, Rejected, StoreUp
from jdist.core.messages.protocol import RankQuery
from jdist.core.messages.runs import CellSpec, Output, RunCell, Tail, Text
from jdist.core.messages.status import ClientHello, RequestRefused
from jdist.core.messages.values import Complete
from support.driver import VERSION, Driver, facts


def test_so_many_cells_wait_and_no_more() -> None:
    d = Driver().ready()
    d.run((0,))
    for n in range(lifecycle._MOST_QUEUED):
        d._requests[f"q{n}"] = (0,)
        assert not any(isinstance(m, RequestRefused) for m in d.say(RunCell(f"q{n}", CellSpec(""), (0,))))
    (refused,) = [m for m in d.say(RunCell("more", CellSpec(""), (0,))) if isinstance(m, RequestRefused)]
    assert refused.reason == f"{lifecycle._MOST_QUEUED} cells wait already; the cell was not run"


def test_so_many_questions_wait_and_no_more() -> None:
    d = Driver().ready()
    d.agents["a-0"].answers = False
    for n in range(queries._MOST):
        d.say(RankQuery(f"q{n}", (0,), Complete("", 0)))
    assert any(isinstance(m, RequestRefused) for m in d.say(RankQuery("more", (0,), Complete("", 0))))


def test_a_node_that_asks_for_too_much_is_turned_away() -> None:
    d = Driver(1, ())
    sent = d.step(FromAgent("a-9", AgentHello(PROTOCOL, VERSION, facts(), 1 << 40)))
    assert any(isinstance(m, Rejected) and "at most" in m.reason for m in sent)


def test_a_client_has_one_lifeline_however_often_it_says_hello() -> None:
    d = Driver().ready()
    before = len(d.state.model.liveness_names)
    for _ in range(5):
        d.say(ClientHello(PROTOCOL, VERSION, "test", 1))
    assert len(d.state.model.liveness_names) == before


def test_a_node_speaks_for_its_own_ranks_only() -> None:
    d = Driver().ready()
    said = (Text((1, 2), "stdout", "both\n"), Text((0,), "stdout", "not its own\n"), Tail(1, "stdout", 1, 1, "no\n"))
    (output,) = [m for m in d.step(FromAgent("a-1", Output(0, said))) if isinstance(m, Output)]
    assert output.items == (Text((2,), "stdout", "both\n"),)


def test_a_store_is_named_by_the_node_that_has_it_only() -> None:
    d = Driver().ready()
    before = d.state._formation._store
    d.step(FromAgent("a-1", StoreUp("evil", 1)))
    assert d.state._formation._store == before
