"""Cells: which run starts when, how each rank's part ends, and how a run that must not go on is stopped."""

from __future__ import annotations

import pytest

from jdist.controller.model.model import FromAgent, PeerGone
from jdist.core.messages.base import Ack
from jdist.core.messages.code import ModuleReply, ModuleRequest
from jdist.core.messages.membership import CarriedNames, FormWorld, Restart, StartWorker
from jdist.core.messages.nodes import ListRuns, RunInterval, RunIntervals
from jdist.core.messages.observation import Verdict, VerdictChanged
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import (
    AbortRun,
    CellSpec,
    ExecuteCell,
    HandlerRun,
    InputReply,
    InputRequest,
    Interrupt,
    Output,
    RankDone,
    RunAccepted,
    RunCell,
    RunEnded,
    RunStarted,
    Tail,
    Text,
)
from jdist.core.messages.status import Notice, RequestRefused, StatusReport, StatusRequest
from jdist.core.outcome import ErrorInfo
from jdist.core.profile import ProfileOptions
from support.driver import Driver


def test_a_cell_goes_to_each_node_once_and_its_ends_come_back() -> None:
    d = Driver().ready()
    run = d.run((0, 1, 3))
    assert [(c.run, c.workers) for c in d.heard(ExecuteCell)] == [(run, (0, 1)), (run, (3,))]
    d.now += 2.0
    for rank in (3, 0, 1):
        assert not d.told(RunEnded)
        d.finish(rank)
    assert d.kinds(run) == {0: "value", 1: "value", 3: "value"}
    assert d.told(RunEnded) == [RunEnded(run, "", 2.0, -1)]
    assert [m for m in d.inbox["c-1"] if isinstance(m, RunAccepted | RunStarted | RunEnded | RankDone)][:2] == [
        RunAccepted("r3", run, ()),
        RunStarted(run),
    ]


def test_a_profiled_cell_is_profiled_on_every_node() -> None:
    d = Driver().ready()
    options = ProfileOptions(active=3)
    d.run((0, 3), profile=options)
    assert [c.spec.profile for c in d.heard(ExecuteCell)] == [options, options]


def test_runs_on_the_same_rank_queue_and_others_run_side_by_side() -> None:
    d = Driver().ready()
    a, b, c, e = d.run((0, 1)), d.run((1, 2)), d.run((3,)), d.run((2,))
    assert set(d.state.model.runs.running) == {a, c}
    assert [m.behind for m in d.told(RunAccepted)] == [(), (a,), (), (b,)]
    d.finish(0)
    assert b not in d.state.model.runs.running, "rank 1 is still busy"
    d.finish(1)
    assert set(d.state.model.runs.running) == {b, c}, "an earlier run is never overtaken on a rank it wants"
    d.finish(2)
    assert set(d.state.model.runs.running) == {b, c, e}, "rank 2 is done with its part"


def test_a_run_sent_while_the_world_is_formed_starts_when_it_stands() -> None:
    d = Driver(nnodes=1, nproc=(2,))
    d.attach()
    agent = d.add_agent("a-0", forms=False)
    d.settle()
    run = d.run((0, 1))
    assert not d.heard(ExecuteCell)
    agent.forms = True
    agent.hear(agent.heard[-1])
    d.settle()
    assert set(d.state.model.runs.running) == {run}


@pytest.mark.parametrize(
    ("ranks", "reason"), [((0, 4, 5), "no rank 4, 5; there are ranks 0-3"), ((), "at least one rank")]
)
def test_a_cell_for_ranks_that_are_not_there_is_refused(ranks: tuple[int, ...], reason: str) -> None:
    d = Driver().ready()
    assert d.run(ranks) == 0
    assert reason in d.told(RequestRefused)[-1].reason


def test_a_cell_before_the_ranks_are_numbered_is_refused() -> None:
    d = Driver(nnodes=2)
    d.attach()
    d.add_agent("a-0")
    assert d.run((0, 9)) == 0
    assert "1 of 2 nodes" in d.told(RequestRefused)[-1].reason
    d.add_agent("a-1")
    d.settle()
    assert d.state.model.phase == "ready"


def test_a_rank_named_twice_runs_the_cell_once() -> None:
    d = Driver().ready()
    d._requests["x"] = (1,)
    d.say(RunCell("x", CellSpec("code"), (1, 1)))
    assert d.heard(ExecuteCell)[-1].workers == (1,)


def test_input_is_for_one_rank() -> None:
    d = Driver().ready()
    d.run((0, 1), allow_stdin=True)
    one = d.run((2,), allow_stdin=True)
    assert [c.spec.allow_stdin for c in d.heard(ExecuteCell)] == [False, True]
    d.step(FromAgent(d.agent_of(2).name, InputRequest(one, 2, "name? ", False)))
    assert d.told(InputRequest)[-1].prompt == "name? "
    d.say(InputReply(one, 2, "ada"))
    assert d.agent_of(2).heard[-1] == InputReply(one, 2, "ada")


def test_a_rank_that_lacks_a_module_is_told_by_the_runs_client() -> None:
    d = Driver().ready()
    run = d.run((2,))
    request = ModuleRequest(run, 2, "helper")
    d.step(FromAgent(d.agent_of(2).name, request))
    assert d.told(ModuleRequest) == [request]
    d.say(ModuleReply(2, "helper", "synced"))
    assert d.agent_of(2).heard[-1] == ModuleReply(2, "helper", "synced")
    life = next(name for name, peer in d.state.model.liveness_names.items() if peer == "c-1")
    d.step(PeerGone(life))
    d.step(FromAgent(d.agent_of(2).name, request))
    reply = d.agent_of(2).heard[-1]
    assert isinstance(reply, ModuleReply)
    assert "`sync`" in reply.text


# ---------------------------------------------------------------- deadlines


def test_at_its_deadline_a_run_is_halted_once_everywhere_and_counts_as_timed_out() -> None:
    d = Driver().ready()
    run = d.run(timeout=20.0)
    d.finish(2)
    d.sleep(19.5)
    assert not d.heard(AbortRun)
    d.sleep(0.5)
    halts = d.heard(AbortRun)
    assert [(h.run, h.workers) for h in halts] == [(run, (0, 1)), (run, (3,))]
    assert {h.grace for h in halts} == {5.0}
    assert ("10.0.0.1", 5002) in halts[0].listeners, "the listeners are the world's, not the run's"
    assert d.kinds(run) == {2: "value", 0: "timeout", 1: "timeout", 3: "timeout"}
    assert d.told(RunEnded) == [RunEnded(run, "timeout", 20.0, -1)]
    d.sleep(30.0)
    assert len(d.heard(AbortRun)) == 2
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)


def test_the_deadline_counts_from_the_start_not_from_the_queue() -> None:
    d = Driver().ready()
    d.run()
    second = d.run(timeout=5.0)
    d.sleep(60.0)
    assert not d.heard(AbortRun)
    for rank in range(4):
        d.finish(rank)
    d.sleep(4.9)
    assert not d.heard(AbortRun)
    d.sleep(0.2)
    assert {h.run for h in d.heard(AbortRun)} == {second}


def test_a_rank_that_is_not_freed_within_the_grace_is_replaced() -> None:
    d = Driver(interrupt_grace=3.0).ready()
    d.agents["a-1"].frees = False
    run = d.run(timeout=1.0)
    d.finish(2)
    d.sleep(3.9)
    assert not d.heard(StartWorker)
    assert d.state.model.generation == 1
    d.sleep(0.2)
    assert d.heard(StartWorker) == [StartWorker(3, 3, 1, keeps_names=True)]
    assert d.kinds(run) == {0: "timeout", 1: "timeout", 2: "value", 3: "lost"}
    assert (d.told(RunEnded)[-1].reason, d.told(RunEnded)[-1].first_failure) == ("timeout", 3)
    assert (d.state.model.phase, d.state.model.generation) == ("ready", 2)
    error = next(e.error for e in d.told(RankDone) if e.rank == 3)
    assert error is not None
    assert "did not stop within 3 s" in error.evalue
    assert d.state.model.world.ranks[3].is_fresh
    assert d.told(Notice)[-1].text == "rank 3 is fresh: its namespace is lost"


def test_a_rank_that_is_not_freed_but_hands_its_names_over_is_not_fresh() -> None:
    d = Driver(interrupt_grace=3.0).ready()
    d.run((0, 1, 2, 3), is_setup=True)
    for rank in range(4):
        d.finish(rank)
    d.agents["a-1"].frees = False
    d.agents["a-1"].saved[3] = CarriedNames(2, (("gen", "generator"),))
    run, before = d.run((0, 1, 3)), len(d.told(Notice))
    d.say(Interrupt())
    waiting = d.run((3,))
    d.sleep(3.1)
    reason = "it did not stop within 3 s of the interrupt and was started again"
    assert d.kinds(run) == {0: "interrupted", 1: "interrupted", 3: "lost"}
    assert d.told(VerdictChanged)[-1].verdict == Verdict(
        run, "lost", (3,), (), f"rank 3 (node 1, a-1) is lost: {reason}"
    )
    assert [n.text for n in d.told(Notice)[before:]] == [
        f"rank 3 (node 1, a-1) is lost: {reason}",
        "rank 3 was started again and has its names from before, except: gen (generator)",
    ]
    assert not d.state.model.world.ranks[3].is_fresh
    assert [c.run for c in d.heard(ExecuteCell)][-1] == waiting, (
        "it has waited for the rank; no setup cell is run again"
    )
    d.say(Restart("r", (3,)))
    assert d.heard(StartWorker)[-1] == StartWorker(3, 3, 2), "a restart that the user asks for keeps no names"


def test_a_value_that_comes_after_the_halt_counts() -> None:
    d = Driver().ready()
    d.agents["a-0"].frees = False
    run = d.run((0,), timeout=1.0)
    d.sleep(1.0)
    assert d.heard(AbortRun)
    d.finish(0)
    assert d.kinds(run) == {0: "value"}
    assert d.told(RunEnded)[-1].reason == "", "nothing went wrong"


# ---------------------------------------------------------------- interrupts


def test_interrupt_stops_what_runs_and_what_waits() -> None:
    d = Driver().ready()
    first, second = d.run(), d.run((0,))
    d.say(Interrupt("i"))
    d.settle()
    assert d.kinds(first) == dict.fromkeys(range(4), "interrupted")
    assert d.kinds(second) == {0: "interrupted"}
    assert [e.reason for e in d.told(RunEnded)] == ["interrupted", "interrupted"]
    assert RankReply("i", -1, Ack()) in d.told(RankReply)


def test_interrupt_of_a_run_leaves_the_one_beside_it() -> None:
    d = Driver().ready()
    hanging, beside = d.run((0, 1)), d.run((2, 3))
    d.say(Interrupt("i", run=hanging))
    d.settle()
    assert [end.run for end in d.told(RunEnded)] == [hanging]
    d.finish(2)
    d.finish(3)
    assert d.kinds(beside) == {2: "value", 3: "value"}


def test_interrupt_of_a_run_that_is_over_is_refused_and_stops_nothing() -> None:
    d = Driver().ready()
    over = d.run((0,))
    d.finish(0)
    later = d.run()
    d.say(Interrupt("i", run=over))
    assert d.told(RequestRefused)[-1].reason == f"run {over} is over: there is nothing to interrupt"
    assert later in d.state.model.runs.running
    d.say(Interrupt("i", run=later + 1))
    assert d.told(RequestRefused)[-1].reason == f"there is no run {later + 1}; the newest is run {later}"


def test_interrupt_of_ranks_stops_the_runs_on_them_only() -> None:
    d = Driver().ready()
    a, b = d.run((0, 1)), d.run((2, 3))
    d.say(Interrupt("i", ranks=(1,)))
    d.settle()
    assert d.kinds(a) == {0: "interrupted", 1: "interrupted"}
    assert d.kinds(b) == {}
    waiting = d.run((0,))
    assert set(d.state.model.runs.running) == {b}, "nothing starts before the next generation"
    d.finish(2)
    d.finish(3)
    assert set(d.state.model.runs.running) == {waiting}
    assert d.state.model.generation == 2


def test_interrupt_of_one_run_leaves_the_others() -> None:
    d = Driver().ready()
    a, b, c = d.run((0,)), d.run((1,)), d.run((0,))
    d.say(Interrupt(run=c))
    d.say(Interrupt(run=a))
    d.settle()
    assert (d.kinds(a), d.kinds(b), d.kinds(c)) == ({0: "interrupted"}, {}, {0: "interrupted"})


def test_a_second_interrupt_sends_no_second_halt() -> None:
    d = Driver().ready()
    d.agents["a-0"].frees = False
    d.run((0,))
    d.say(Interrupt("i"))
    d.say(Interrupt("j"))
    assert len(d.heard(AbortRun)) == 1
    assert [a.request for a in d.told(RankReply)] == ["i", "j"]


# ---------------------------------------------------------------- failures


def test_a_rank_whose_cell_handles_the_interrupt_is_left_alone_until_the_user_insists_or_its_time_is_up() -> None:
    d = Driver(interrupt_grace=3.0, handler_grace=20.0).ready()
    for agent in d.agents.values():
        agent.frees = False
    run = d.run((0, 2))
    d.say(Interrupt())
    assert {(a.grace, a.patience, a.insists) for a in d.heard(AbortRun)} == {(3.0, 20.0, False)}
    for rank in (0, 2):
        d.step(FromAgent(d.agent_of(rank).name, HandlerRun(rank, run, True, 7, "save()", 20.0)))
    d.sleep(4.0)
    what = "ranks 0, 2 are handling the interrupt at cell line 7: save()"
    said = f"{what} (for 20 s at most; interrupt again to cut it off)"
    assert [n.text for n in d.told(Notice)] == [said]
    d.finish(0)
    assert d.kinds(run) == {0: "value"}
    d.say(Interrupt())
    d.say(Interrupt())
    assert [a.workers for a in d.heard(AbortRun) if a.insists] == [(2,)]
    d.sleep(4.0)
    assert d.kinds(run) == {0: "value", 2: "lost"}


def test_a_rank_whose_handler_outlasts_its_time_and_the_interrupts_is_replaced() -> None:
    d = Driver(nnodes=1, interrupt_grace=3.0, handler_grace=6.0).ready()
    d.agents["a-0"].frees = False
    run = d.run((0, 1))
    d.say(Interrupt())
    d.step(FromAgent("a-0", HandlerRun(1, run, False, None, "", 6.0)))
    d.sleep(4.0)
    assert d.kinds(run) == {0: "lost"}, "rank 0 said nothing"
    d.sleep(4.0)
    assert d.kinds(run) == {0: "lost"}
    d.sleep(2.0)
    assert d.kinds(run) == {0: "lost", 1: "lost"}


def test_the_first_failure_is_the_cause_and_an_echo_is_not() -> None:
    d = Driver().ready()
    run = d.run()
    d.finish(2, "error", echo=True)
    d.finish(1, "error")
    d.finish(0, "error")
    d.finish(3, "error", echo=True)
    assert d.told(RunEnded) == [RunEnded(run, "", 0.0, 1)]
    assert set(d.kinds(run).values()) == {"error"}


def test_a_death_is_the_cause_of_the_errors_it_made_on_others() -> None:
    d = Driver().ready()
    run = d.run()
    d.finish(1, "error")
    d.agent_of(3).kill(3)
    d.settle()
    assert d.kinds(run) == {1: "error", 3: "lost", 0: "interrupted", 2: "interrupted"}
    assert d.told(RunEnded)[-1].first_failure == 3


def test_a_rank_that_had_to_be_replaced_after_a_failure_is_not_the_cause() -> None:
    d = Driver(interrupt_grace=1.0).ready()
    d.agents["a-1"].frees = False
    run = d.run((0, 3))
    d.finish(0, "error")
    d.say(Interrupt("i"))
    d.sleep(1.0)
    assert d.kinds(run) == {0: "error", 3: "lost"}
    assert d.told(RunEnded)[-1].first_failure == 0


def test_a_run_whose_only_rank_dies_ends_as_lost() -> None:
    d = Driver().ready()
    run = d.run((3,))
    d.agent_of(3).kill(3)
    d.settle()
    assert d.told(RunEnded) == [RunEnded(run, "lost", 0.0, 3)]
    error = d.told(RankDone)[-1].error
    assert error == ErrorInfo("RankLost", "killed by signal 9")


def test_a_late_or_foreign_done_changes_nothing() -> None:
    d = Driver().ready()
    run = d.run((0, 1))
    d.finish(0)
    for done in (RankDone(run, 0, "error"), RankDone(run, 3, "value"), RankDone(99, 1, "value")):
        d.step(FromAgent("a-0", done))
    assert d.kinds(run) == {0: "value"}
    assert set(d.state.model.runs.running) == {run}


# ---------------------------------------------------------------- output


def test_output_goes_to_the_runs_own_client_and_a_late_word_to_all() -> None:
    d = Driver().ready()
    d.attach("c-2")
    run = d.run((0,))
    during = Output(run, (Text((0,), "stdout", "one\ntwo\n"),))
    d.step(FromAgent("a-0", during))
    assert (d.told(Output), d.told(Output, "c-2")) == ([during], [])
    d.finish(0)
    late = Output(run, (Tail(0, "stdout", 3, 40, "the end"),))
    d.step(FromAgent("a-0", late))
    assert (d.told(Output)[-1], d.told(Output, "c-2")) == (late, [late])
    d.say(StatusRequest("s"))
    assert d.told(StatusReport)[-1].ranks[0].last_line == "the end"


def test_the_last_line_of_each_rank_is_remembered() -> None:
    d = Driver().ready()
    run = d.run()
    d.step(
        FromAgent("a-0", Output(run, (Text((0, 1), "stdout", "one\ntwo\n"), Text((1,), "stderr", "first" + "x" * 500))))
    )
    d.say(StatusRequest("s"))
    rows = d.told(StatusReport)[-1].ranks
    assert [r.last_line for r in rows] == ["two", "first" + "x" * 195, "", ""]
    assert [(r.state, r.run) for r in rows] == [("running", run)] * 4


def test_a_client_that_left_gets_its_run_ended_all_the_same() -> None:
    d = Driver().ready()
    life = d.attach("c-2")
    run = d.run((0,), client="c-2", timeout=5.0)
    d.step(PeerGone(life))
    d.sleep(5.0)
    assert not d.state.model.runs.running
    assert d.state.model.generation == 2
    assert {h.run for h in d.heard(AbortRun)} == {run}
    assert {f.generation for f in d.heard(FormWorld)} == {1, 2}


def test_when_runs_were_active() -> None:
    d = Driver().ready()
    started = d.now
    first = d.run((0, 1))
    own = d.run((3,), is_internal=True)
    d.now = started + 2.0
    second = d.run((2,))
    for rank in (0, 1, 3):
        d.finish(rank)
    d.now = started + 10.0
    d.say(ListRuns("spans", 60.0))
    (spans,) = d.told(RunIntervals)
    assert spans.runs == (RunInterval(first, (0, 1), 10.0, 8.0), RunInterval(second, (2,), 8.0, None)), own
    d.say(ListRuns("later", 5.0))
    assert [span.run for span in d.told(RunIntervals)[-1].runs] == [second]
