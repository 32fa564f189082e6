"""Silent mismatch: a run whose ranks have all ended, but made different calls."""

from __future__ import annotations

import pytest

from jdist.controller.model.model import FromAgent, PeerGone
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.observation import Call, CallDigest, GetTrace, RankTrace, Verdict, VerdictChanged
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.messages.runs import RankDone, RunEnded
from support.driver import Driver

ONE, OTHER = b"one", b"other"


def driver() -> Driver:
    d = Driver().ready()
    for agent in d.agents.values():
        agent.answers = False
    return d


def tally(digest: bytes, count: int = 2, size: int = 4, group: str = "0", label: str = "world") -> CallDigest:
    return CallDigest(group, label, size, count, digest)


def finish(d: Driver, run: int, *digests: CallDigest | None) -> None:
    """The ranks end in their order, having called that."""
    for rank, own in enumerate(digests):
        agent = d.agent_of(rank)
        agent.cells.pop(rank, None)
        d.step(FromAgent(agent.name, RankDone(run, rank, "value", 0.1, digests=() if own is None else (own,))))


def traced(run: int, *details: str, dtype: str = "float32") -> RankTrace:
    calls = [Call("all_reduce", "0", 5 + n, ((4,),), (dtype,), detail, line=n + 1) for n, detail in enumerate(details)]
    return RankTrace(run, tuple(calls), 1.0, 2.0, 3.0)


def asked(d: Driver) -> dict[int, str]:
    """The request by rank."""
    return {rank: a.request for a in d.heard(RankQuery) if isinstance(a.op, GetTrace) for rank in a.ranks}


def tell(d: Driver, rank: int, body: RankTrace | QueryFailed) -> None:
    d.step(FromAgent(d.agent_of(rank).name, RankReply(asked(d)[rank], rank, body)))


def verdicts(d: Driver) -> list[Verdict | None]:
    return [judged.verdict for judged in d.told(VerdictChanged)]


def ended(d: Driver) -> list[int]:
    return [e.run for e in d.told(RunEnded)]


def test_ranks_that_called_the_same_are_not_asked() -> None:
    d = driver()
    run = d.run()
    finish(d, run, *[tally(ONE)] * 4)
    assert ended(d) == [run]
    assert not asked(d)
    assert not verdicts(d)


def test_one_of_each_kind_is_asked_and_the_first_difference_is_told_before_the_end() -> None:
    d = driver()
    run = d.run()
    finish(d, run, tally(ONE), tally(ONE), tally(OTHER), tally(ONE))
    assert sorted(asked(d)) == [0, 2]
    assert not ended(d)
    tell(d, 0, traced(run, "op=SUM", "op=SUM", "op=SUM"))
    tell(d, 2, traced(run, "op=SUM", "op=MAX", "op=MIN"))
    (found,) = verdicts(d)
    assert found is not None
    what = "all_reduce #6 of group world differed between ranks in reduction: the result is wrong"
    assert str(found).splitlines() == [
        f"● run {run} finished, but {what}",
        "  ranks 0-1, 3 call all_reduce [4] float32 op=SUM (cell line 2)",
        "  rank 2 calls all_reduce [4] float32 op=MAX (cell line 2)",
    ]
    assert (found.kind, found.responsible, found.op, found.number) == ("mismatch", (2,), "all_reduce", 6)
    assert (found.is_certain, found.has_passed, found.remedies) == (False, True, ())
    assert found.final_text == str(found)
    assert ended(d) == [run]
    kinds = [type(m) for m in d.inbox["c-1"] if isinstance(m, VerdictChanged | RunEnded)]
    assert kinds == [VerdictChanged, RunEnded]


def test_the_dtype_is_named_where_it_differs() -> None:
    d = driver()
    run = d.run()
    finish(d, run, tally(ONE), tally(OTHER), tally(ONE), tally(OTHER))
    tell(d, 0, traced(run, "op=SUM"))
    tell(d, 1, traced(run, "op=SUM", dtype="int32"))
    (found,) = verdicts(d)
    assert found is not None
    assert "differed between ranks in dtype" in found.reason
    assert found.responsible == (), "two against two: nobody is in the minority"


def test_ranks_that_do_not_answer_delay_the_end_for_a_second() -> None:
    d = driver()
    run = d.run()
    finish(d, run, tally(ONE), tally(ONE), tally(ONE), tally(OTHER))
    tell(d, 0, traced(run, "op=SUM"))
    d.sleep(0.9)
    assert not ended(d)
    d.sleep(0.2)
    assert ended(d) == [run]
    (found,) = verdicts(d)
    assert found is not None
    assert found.responsible == (3,)
    assert "rank 3 has called other collectives in group world than ranks 0-2" in str(found)


def test_a_fault_is_an_answer_and_a_lost_node_none() -> None:
    d = driver()
    run = d.run()
    finish(d, run, tally(ONE), tally(OTHER), tally(ONE), tally(ONE))
    tell(d, 0, QueryFailed("no run is remembered"))
    assert not ended(d)
    lost = d.agent_of(1)
    lost.is_gone = True
    d.step(PeerGone(lost.liveness_name))
    d.sleep(1.1)
    assert ended(d) == [run]
    assert len(verdicts(d)) == 1


@pytest.mark.parametrize(
    "digests",
    [
        pytest.param((tally(ONE), tally(OTHER, 3), tally(ONE), tally(ONE)), id="a rank called once more"),
        pytest.param((tally(ONE), tally(OTHER), tally(ONE), None), id="a rank called nothing"),
        pytest.param((tally(ONE), tally(OTHER, group="1"), tally(ONE), tally(ONE)), id="in groups of their own"),
    ],
)
def test_what_cannot_be_compared_is_not_taken_for_a_mismatch(digests: tuple[CallDigest | None, ...]) -> None:
    d = driver()
    run = d.run()
    finish(d, run, *digests)
    assert ended(d) == [run]
    assert not asked(d)


def test_a_group_of_some_ranks_is_compared_by_itself() -> None:
    d = driver()
    run = d.run()
    finish(d, run, tally(ONE, 2, 2, "1", ""), tally(OTHER, 2, 2, "1", ""), tally(ONE, 9), None)
    assert sorted(asked(d)) == [0, 1]
    d.sleep(1.1)
    (found,) = verdicts(d)
    assert found is not None
    assert "group of ranks 0-1" in found.reason


def test_a_run_that_failed_or_was_interrupted_is_not_taken_for_a_mismatch() -> None:
    d = driver()
    run = d.run()
    finish(d, run, tally(ONE), tally(OTHER), tally(ONE))
    d.finish(3, "error")
    assert ended(d) == [run]
    assert not asked(d)


def test_a_delayed_run_frees_its_ranks_and_has_no_deadline() -> None:
    d = driver()
    run = d.run(timeout=0.5)
    finish(d, run, tally(ONE), tally(OTHER), tally(ONE), tally(ONE))
    again = d.run()
    assert d.state.model.runs.running[again].started_at is not None
    d.sleep(1.1)
    assert ended(d) == [run]
    assert not d.runs[run].ended[0].reason
