"""Rank polling: when ranks are polled, which answers count, what is reported, and which runs are aborted."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.core.messages.membership import FormWorld, Restart
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, Observe, Verdict, VerdictChanged
from jdist.core.messages.protocol import RankQuery
from jdist.core.messages.runs import AbortRun, Interrupt, RunEnded
from jdist.core.messages.status import Notice, StatusReport, StatusRequest
from support.driver import Driver
from support.rank_polls import answer, stall

ALL = (0, 1, 2, 3)


def driver(**settings: float) -> Driver:
    d = Driver(**settings).ready()
    for agent in d.agents.values():
        agent.answers = False
    return d


def asked(d: Driver) -> int:
    """How many polls have begun."""
    return len({a.request for a in d.heard(RankQuery) if isinstance(a.op, Observe)})


def observed(begun: int, ended: int, kind: str = "collective", seconds: float = 0.4) -> Observation:
    call = Call("all_reduce", "0", begun) if kind == "collective" else Call("recv", "0", peer=1, started=100.0, nth=1)
    blocked = Activity(kind, call.op, 3, seconds=seconds, calls=(call,))  # type: ignore[arg-type]
    doing = blocked if begun > ended or kind == "transfer" else Activity("python", "f", 2, "f()")
    return Observation("cpu", doing, 1, (GroupProgress.of("0", ALL, begun, ended, "world"),))


WAITS, HERE, BUSY = observed(5, 4), observed(5, 5), observed(4, 4)


def test_nobody_is_asked_while_nobody_is_blocked() -> None:
    d = driver()
    d.run()
    d.finish(0, "error")
    d.sleep(60)
    assert asked(d) == 0


def test_a_blocked_rank_has_everybody_asked_and_the_verdict_is_told() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    assert sorted(r for a in d.heard(RankQuery) for r in a.ranks) == [0, 1, 2, 3]
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    (told,) = d.told(VerdictChanged)
    assert told.verdict is not None
    assert (told.run, told.verdict.kind, told.verdict.responsible) == (run, "missing", (1,))
    d.say(StatusRequest("s"))
    assert d.told(StatusReport)[-1].verdicts == (told.verdict,)
    assert not d.heard(AbortRun), "the user may let rank 1 join"


def test_the_same_verdict_is_told_once_and_taken_back_when_the_run_moves() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    d.sleep(1.0)
    assert asked(d) == 2
    answer(d, r0=observed(5, 4, seconds=1.4), r1=BUSY, r2=WAITS, r3=WAITS)
    assert len(d.told(VerdictChanged)) == 1
    d.say(StatusRequest("s"))
    assert "(1.4 s)" in d.told(StatusReport)[-1].verdicts[0].details[0], (
        "whoever asks is told the times of the last poll"
    )
    d.sleep(1.0)
    answer(d, r0=HERE, r1=HERE, r2=HERE, r3=HERE)
    assert d.told(VerdictChanged)[-1] == VerdictChanged(run, None)
    d.sleep(60)
    assert asked(d) == 3, "nobody is blocked any more"


SILENT = Observation("", Activity("silent", state="does not answer"), 0)


def next_look(d: Driver) -> None:
    before = asked(d)
    for _ in range(50):
        if asked(d) == before:
            d.sleep(0.1)
    assert asked(d) == before + 1, "nobody is asked any more"


@pytest.mark.parametrize("given", [{}, {"r0": SILENT, "r2": SILENT, "r3": SILENT}])
def test_a_poll_that_ranks_did_not_answer_withdraws_nothing_and_is_not_the_last(given: dict[str, Observation]) -> None:
    """A rank says only once that it is blocked; on an overloaded machine its answer comes too late now and then."""
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    (told,) = d.told(VerdictChanged)
    for _ in range(5):
        next_look(d)
        answer(d, r1=BUSY, **given)
    next_look(d)
    assert d.told(VerdictChanged) == [told]
    answer(d, r0=HERE, r1=HERE, r2=HERE, r3=HERE)
    assert d.told(VerdictChanged) == [told, VerdictChanged(run, None)]


def test_a_finished_rank_that_does_not_answer_is_not_accused_and_is_asked_again() -> None:
    """Its agent answers for it, and does not know what it has entered."""
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=SILENT, r2=WAITS, r3=WAITS)
    assert not d.told(VerdictChanged)
    next_look(d)
    answer(d, r0=WAITS, r1=HERE, r2=WAITS, r3=WAITS)
    assert not d.told(VerdictChanged), "it had left the collective"
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=SILENT, r2=WAITS, r3=WAITS)
    next_look(d)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    (told,) = d.told(VerdictChanged)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.responsible) == ("missing", (1,))
    next_look(d)
    late = observed(5, 4, seconds=9.0)
    answer(d, r0=late, r1=SILENT, r2=late, r3=late)
    assert d.told(VerdictChanged) == [told], "nothing new is known of it"


def test_a_first_poll_without_answers_is_repeated() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    next_look(d)
    assert not d.told(VerdictChanged)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    (told,) = d.told(VerdictChanged)
    assert told.verdict is not None
    assert told.verdict.responsible == (1,)


def test_a_run_that_comes_to_a_good_end_keeps_no_verdict() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    for rank in (0, 2, 3):
        d.finish(rank)
    assert [j.verdict is None for j in d.told(VerdictChanged)] == [False, True]
    assert d.told(RunEnded)[-1].run == run


def test_ranks_that_can_only_wait_for_a_failed_one_are_freed() -> None:
    d = driver()
    run = d.run()
    d.finish(1, "error")
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=BUSY, r3=WAITS)
    assert {h.run for h in d.heard(AbortRun)} == {run}
    d.settle()
    assert d.kinds(run) == {1: "error", 0: "interrupted", 2: "interrupted", 3: "interrupted"}
    assert d.told(RunEnded)[-1].first_failure == 1
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_ranks_that_can_only_wait_for_one_that_died_after_its_part_are_freed() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    assert not d.heard(AbortRun), "a cell on rank 1 may still join"
    d.agent_of(1).kill(1)
    d.settle()
    d.sleep(0.0)
    answer(d, r0=WAITS, r2=WAITS, r3=WAITS)
    d.settle()
    assert d.kinds(run) == {1: "value", 0: "interrupted", 2: "interrupted", 3: "interrupted"}
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    assert d.heard(FormWorld)[-1].is_after_abort


def test_a_rank_that_is_restarted_by_hand_frees_those_that_are_blocked_in_its_run() -> None:
    d = driver()
    run, other = d.run((0, 1, 2)), d.run((3,))
    d.finish(1)
    stall(d, 0, run)
    d.say(Restart("r", (1,)))
    assert {h.run for h in d.heard(AbortRun)} == {run}
    d.settle()
    assert d.kinds(run) == {1: "value", 0: "interrupted", 2: "interrupted"}
    assert set(d.state.model.runs.running) == {other}


def test_ranks_that_wait_in_a_mismatch_in_which_one_has_failed_are_freed_though_no_rank_is_accused() -> None:
    d = driver()
    run = d.run()
    d.finish(0, "error")
    stall(d, 1, run)
    failed = calling("float64", is_done=True, has_failed=True)
    answer(d, r0=failed, r1=calling("float64"), r2=calling(), r3=calling())
    assert (told(d).kind, told(d).responsible) == ("mismatch", ())
    assert {h.run for h in d.heard(AbortRun)} == {run}


def test_the_end_of_a_part_is_followed_by_a_poll() -> None:
    d = driver()
    run = d.run()
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    assert (asked(d), d.told(VerdictChanged)) == (1, [])
    d.finish(1)
    d.sleep(0.0)
    assert asked(d) == 2
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    assert len(d.told(VerdictChanged)) == 1


def test_a_part_that_ended_after_the_question_proves_nothing() -> None:
    """Its answer may be older than the collective that it entered before its end."""
    d = driver()
    run = d.run()
    stall(d, 0, run)
    answer(d, r1=BUSY, r0=WAITS)
    d.finish(1)
    answer(d, r2=WAITS, r3=WAITS)
    assert d.told(VerdictChanged) == []
    d.sleep(0.0)
    assert asked(d) == 2, "it is looked at again"


def test_a_cell_that_began_and_ended_after_the_question_proves_nothing() -> None:
    d = driver()
    run = d.run((0, 1, 2))
    d.finish(1)
    stall(d, 0, run)
    answer(d, r1=BUSY, r3=BUSY, r0=WAITS)
    d.run((1,))
    d.finish(1)
    answer(d, r2=WAITS)
    assert d.told(VerdictChanged)[-1].verdict.responsible == (3,)  # type: ignore[union-attr]


def test_a_rank_that_runs_another_cell_may_still_come() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    d.run((1,))
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    assert d.told(VerdictChanged) == []


def test_a_poll_ends_without_the_ranks_that_do_not_answer() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY)
    assert d.told(VerdictChanged) == []
    d.sleep(1.1)
    assert d.told(VerdictChanged)[-1].verdict.responsible == (1,)  # type: ignore[union-attr]


def test_what_is_not_numbered_must_be_seen_twice() -> None:
    d = driver()
    run = d.run()
    for rank in (1, 2, 3):
        d.finish(rank)
    stall(d, 0, run)
    waits = observed(4, 4, "transfer")
    answer(d, r0=waits, r1=BUSY, r2=BUSY, r3=BUSY)
    assert d.told(VerdictChanged) == []
    d.sleep(0.25)
    assert asked(d) == 2
    answer(d, r0=waits, r1=BUSY, r2=BUSY, r3=BUSY)
    assert d.told(VerdictChanged)[-1].verdict.kind == "transfer"  # type: ignore[union-attr]


def test_a_slow_rank_is_named_after_a_while_and_the_text_follows_the_clock() -> None:
    d = driver()
    run = d.run()
    stall(d, 0, run)
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    d.sleep(4.6)
    assert asked(d) == 2
    for seconds in (5.0, 6.0):
        waits = observed(5, 4, seconds=seconds)
        answer(d, r0=waits, r1=BUSY, r2=waits, r3=waits)
        d.sleep(1.0)
    assert [j.verdict.kind for j in d.told(VerdictChanged) if j.verdict] == ["slow", "slow"]
    assert not d.heard(AbortRun)


def test_before_its_deadline_a_run_is_polled_whatever_its_ranks_do() -> None:
    d = driver()
    run = d.run(timeout=10.0)
    d.sleep(9.2)
    assert asked(d) == 1
    answer(d, r0=BUSY, r1=BUSY, r2=BUSY, r3=BUSY)
    assert d.told(VerdictChanged)[-1].verdict.responsible == ALL  # type: ignore[union-attr]
    d.sleep(0.8)
    assert {h.run for h in d.heard(AbortRun)} == {run}


def test_an_aborted_run_gets_no_verdict() -> None:
    d = driver()
    run = d.run()
    d.finish(1)
    stall(d, 0, run)
    d.say(Interrupt("i"))
    answer(d, r0=WAITS, r1=BUSY, r2=WAITS, r3=WAITS)
    assert d.told(VerdictChanged) == []


def test_a_setup_cell_that_waits_for_the_others_is_stopped() -> None:
    d = driver()
    d.run(is_setup=True)
    for rank in ALL:
        d.finish(rank)
    d.agent_of(3).kill(3)
    d.settle()
    (replay,) = d.state.model.runs.running.values()
    assert replay.ranks == (3,)
    stall(d, 3, replay.number)
    answer(d, r0=observed(0, 0), r1=observed(0, 0), r2=observed(0, 0), r3=observed(1, 0))
    assert "the setup cell could not be run again on fresh rank 3 alone: ranks 0-2" in d.told(Notice)[-1].text
    assert {h.run for h in d.heard(AbortRun)} == {replay.number}


SIGABRT = "killed by signal 6 (SIGABRT)"


def calling(dtype: str = "float32", **more: Any) -> Observation:
    """A rank in all_reduce #5 of the world."""
    call = Call("all_reduce", "0", 5, ((4,),), (dtype,), **more)
    doing = Activity("collective", "all_reduce", 3, seconds=0.4, calls=(call,))
    return Observation("cpu", doing, 1, (GroupProgress.of("0", ALL, 5, 4, "world"),))


def told(d: Driver) -> Verdict:
    verdict = d.told(VerdictChanged)[-1].verdict
    assert verdict is not None
    return verdict


def test_a_rank_that_its_c_code_ended_is_explained_by_calls_that_do_not_fit() -> None:
    d = driver()
    run = d.run()
    d.agent_of(3).kill(3, SIGABRT, calling())
    d.settle()
    assert not d.heard(AbortRun), "first the others are looked at"
    assert not d.told(VerdictChanged)
    d.sleep(0.0)
    answer(d, r0=calling(), r1=calling(), r2=calling("float64"))
    assert {h.run for h in d.heard(AbortRun)} == {run}
    assert (told(d).kind, told(d).responsible) == ("mismatch", (2,))
    assert told(d).details == (
        "ranks 0-1, 3 call all_reduce [4] float32",
        "rank 2 calls all_reduce [4] float64",
        "rank 3 (node 1, a-1) is lost: killed by signal 6 (SIGABRT)",
    )
    d.settle()
    assert d.told(RunEnded)[-1].first_failure == 2, "the rank that is accused, not the one that died"


@pytest.mark.parametrize("late", [BUSY, observed(4, 3)], ids=["in Python", "in the collective before"])
def test_a_rank_that_has_not_come_to_the_call_yet_is_looked_at_again(late: Observation) -> None:
    """Without it there may be no majority."""
    d = driver()
    run = d.run()
    d.agent_of(3).kill(3, SIGABRT, calling())
    d.settle()
    d.sleep(0.0)
    answer(d, r0=late, r1=calling(), r2=calling("float64"))
    assert not d.heard(AbortRun)
    d.sleep(0.05)
    answer(d, r0=calling(), r1=calling(), r2=calling("float64"))
    assert {h.run for h in d.heard(AbortRun)} == {run}
    assert told(d).responsible == (2,)
    d = driver()
    run = d.run()
    d.agent_of(3).kill(3, SIGABRT, calling())
    d.settle()
    for _ in range(30):
        d.sleep(0.05)
        answer(d, r0=late, r1=calling(), r2=calling("float64"))
    assert {h.run for h in d.heard(AbortRun)} == {run}
    assert told(d).responsible == (), "two against one, and rank 0 might have joined either side"


def test_of_two_ranks_that_its_c_code_ended_each_tells_what_it_called() -> None:
    d = driver()
    run = d.run()
    d.agent_of(3).kill(3, SIGABRT, calling())
    d.settle()
    d.sleep(0.0)
    answer(d, r0=calling(), r1=calling())
    d.agent_of(2).kill(2, "killed by signal 11 (SIGSEGV)", calling("float64"))  # while it is polled
    d.settle()
    d.sleep(1.1)
    assert {h.run for h in d.heard(AbortRun)} == {run}
    assert (told(d).kind, told(d).responsible) == ("mismatch", (2,))
    assert told(d).details[-2].endswith(f"is lost: {SIGABRT}")
    assert told(d).details[-1].endswith("is lost: killed by signal 11 (SIGSEGV)")
    d = driver()
    run = d.run()
    for agent in d.agents.values():
        agent.frees = False
    d.agent_of(3).kill(3, SIGABRT, calling())
    d.settle()
    d.sleep(0.0)
    answer(d, r0=calling(), r1=calling(), r2=calling())
    assert (told(d).kind, told(d).responsible) == ("lost", (3,))
    assert {h.run for h in d.heard(AbortRun)} == {run}
    d.agent_of(2).kill(2, SIGABRT, calling("float64"))  # when the others are freed already
    d.settle()
    assert (told(d).kind, told(d).responsible) == ("mismatch", (2,))


def test_a_run_whose_ranks_have_all_failed_is_explained_before_it_ends() -> None:
    call = Call("all_reduce", "1", 5, ((7,),), ("float32",), started=2.0, is_done=True, has_failed=True)
    last = Observation("cpu", Activity("idle"), 1, (GroupProgress.of("1", (0, 1), 5, 5, "low"),), (call,))
    for is_first in (True, False):
        d = driver()
        run = d.run((0, 1))
        if not is_first:
            d.finish(1, "error")
        d.agent_of(0).kill(0, SIGABRT)
        d.settle()
        if is_first:
            d.finish(1, "error")
        assert d.told(RunEnded) == []
        d.sleep(0.0)
        answer(d, r1=last, r2=BUSY, r3=BUSY)
        assert (told(d).kind, told(d).responsible) == ("mismatch", ()), "one against one"
        assert d.told(RunEnded)[-1].run == run
        assert d.told(RunEnded)[-1].first_failure == -1, "nobody is accused"


@pytest.mark.parametrize("reason", [SIGABRT, "killed by signal 9"])
def test_ranks_that_fail_because_of_a_death_that_is_still_to_be_reported_are_not_accused_of_it(reason: str) -> None:
    """Its neighbours may be known to have failed before its agent is heard, which an overloaded node holds up."""
    d = driver()
    run = d.run()
    for rank in (0, 2):
        d.finish(rank, "error", echo=True)
    stall(d, 1, run)
    echoed = {"is_done": True, "has_failed": True}
    answer(d, r0=calling(**echoed), r1=calling(), r2=calling("float64", **echoed))
    for _ in range(2):
        d.sleep(1.0)
        assert (d.told(VerdictChanged), d.heard(AbortRun)) == ([], [])
        d.sleep(1.0)
        answer(d, r0=calling(**echoed), r1=calling(), r2=calling("float64", **echoed))
    d.agent_of(3).kill(3, reason, calling() if reason == SIGABRT else None)
    d.settle()
    d.sleep(1.0)
    answer(d, r0=calling(**echoed), r1=calling(), r2=calling("float64", **echoed))
    expected = ("mismatch", (2,)) if reason == SIGABRT else ("lost", (3,))
    assert (told(d).kind, told(d).responsible) == expected
    assert {h.run for h in d.heard(AbortRun)} == {run}


def test_an_interrupt_does_not_wait_for_an_explanation() -> None:
    d = driver()
    run = d.run((0, 1))
    d.agent_of(0).kill(0, "killed by signal 6 (SIGABRT)")
    d.say(Interrupt("i"))
    d.settle()
    assert d.told(RunEnded)[-1].run == run


def test_a_lost_rank_is_the_verdict() -> None:
    d = driver()
    run = d.run()
    d.agent_of(3).kill(3)
    d.settle()
    told = d.told(VerdictChanged)[0]
    assert told.verdict is not None
    assert (told.run, told.verdict.kind, told.verdict.responsible) == (run, "lost", (3,))
    assert "killed by signal 9" in told.verdict.headline
