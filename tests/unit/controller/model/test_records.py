"""What is kept of runs for clients that were not there: all of it in order, and of too much the newest."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from jdist.client.run import CellRun
from jdist.controller.model.records import RunRecords
from jdist.core.messages.base import Message, PayloadWire
from jdist.core.messages.debug import Pause, RankPaused, RanksResumed
from jdist.core.messages.runs import (
    Display,
    InputRequest,
    Interrupt,
    MetricsLogged,
    Output,
    RankDone,
    ReadRun,
    RunAccepted,
    RunEnded,
    RunRecord,
    RunStarted,
    Tail,
    Text,
)
from jdist.core.messages.status import Notice, RequestRefused
from jdist.core.outcome import ErrorInfo
from jdist.core.topology import Topology
from jdist.worker.metrics import MetricBuffer
from support.driver import Driver


def text(run: int, content: str, *ranks: int) -> Output:
    return Output(run, (Text(ranks or (0, 1), "stdout", content),))


def told(records: RunRecords, run: int) -> tuple[Message, ...]:
    found = records.find(run)
    assert found is not None
    return found[2]


def test_messages_are_kept_in_order_and_without_values() -> None:
    records = RunRecords()
    records.begin(3, (0, 1), 2.5)
    value = PayloadWire(b"head", (), 0, "an int", ())
    messages: list[Any] = [
        RunStarted(3),
        text(3, "a\n"),
        RankDone(3, 0, "value", 0.1, payload=value, held="_3"),
        Output(3, (Display((1,), {"text/plain": "x"}),)),
        RankDone(3, 1, "error", 0.2, error=ErrorInfo("ValueError", "bad", ["Traceback", "ValueError: bad"])),
        RunEnded(3, "", 0.2, 1),
        text(3, "late\n"),
    ]
    for message in (*messages, InputRequest(3, 0, "?", False), RunAccepted("r", 3)):
        records.add(3, message)
    messages[2] = msgspec.structs.replace(messages[2], payload=None, held="")
    assert records.find(3) == ((0, 1), 2.5, tuple(messages))
    assert records.find(4) is None
    assert records.newest == 3


def test_of_a_capped_stream_the_newest_end_is_kept_where_it_came() -> None:
    records = RunRecords()
    records.begin(1, (0,), None)
    for lines in range(1, 5):
        records.add(1, Output(1, (Tail(0, "stdout", lines, lines * 10, f"line {lines}"),)))
    records.add(1, text(1, "after", 0))
    assert told(records, 1) == (Output(1, (Tail(0, "stdout", 4, 40, "line 4"),)), text(1, "after", 0))


def test_of_a_run_that_writes_much_the_newest_output_and_every_end_are_kept() -> None:
    records = RunRecords(most_in_run=10_000)
    records.begin(1, (0, 1), None)
    records.add(1, RunStarted(1))
    for number in range(100):
        records.add(1, text(1, f"{number:03}" * 100))
    records.add(1, RunEnded(1, "", 1.0))
    first, *rest = told(records, 1)
    assert first == Notice("the beginning of this run's output is not kept any more", 1)
    assert rest[0] == RunStarted(1)
    assert rest[-1] == RunEnded(1, "", 1.0)
    assert rest[1:-1] == [text(1, f"{number:03}" * 100) for number in range(80, 100)]


def test_what_is_logged_does_not_take_the_place_of_what_is_written() -> None:
    records = RunRecords(most_in_run=10_000)
    records.begin(1, (0,), None)
    records.add(1, text(1, "the first line\n", 0))
    buffer = MetricBuffer(0)
    buffer.begin(1)
    for step in range(200_000):
        buffer.add(step, {"loss": float(step)})
        if step % 1000 == 999:
            records.add(1, MetricsLogged(*buffer.take()))
    first, logged = told(records, 1)
    assert first == text(1, "the first line\n", 0)
    (points,) = logged.points
    steps = array("q", points.steps)
    assert (points.count, points.newest[0]) == (200_000, 199_999)
    assert steps[0] == 0
    assert steps[-1] > 190_000, "points of the whole run are kept"
    assert 1000 < len(steps) <= 10_000


def test_of_many_failures_the_later_ones_lose_their_tracebacks_only() -> None:
    records = RunRecords(most_in_run=10_000)
    records.begin(1, tuple(range(50)), None)
    lines = ["x" * 1000, "ValueError: bad"]
    for rank in range(50):
        records.add(1, RankDone(1, rank, "error", error=ErrorInfo("ValueError", "bad", lines)))
    ends = [message for message in told(records, 1) if isinstance(message, RankDone)]
    assert [end.rank for end in ends] == list(range(50))
    assert ends[0].error is not None
    assert ends[0].error.traceback == lines
    assert ends[-1].error is not None
    assert ends[-1].error.traceback == lines[-1:]


def test_the_oldest_runs_that_are_over_are_forgotten_first() -> None:
    records = RunRecords(most=10_000)
    for run in (1, 2, 3, 4):
        records.begin(run, (0,), None)
        records.add(run, text(run, "x" * 3000, 0))
        if run != 1:  # it goes on
            records.add(run, RunEnded(run, "", 1.0))
    assert [run for run in (1, 2, 3, 4) if records.find(run) is not None] == [1, 3, 4]


def test_a_client_that_was_not_there_reads_a_run() -> None:
    d = Driver().ready()
    run = d.run((0, 1), timeout=60.0)
    d.finish(0)
    d.attach("c-2")
    d.say(ReadRun("q", run), "c-2")
    (found,) = d.told(RunRecord, "c-2")
    assert (found.run, found.ranks, found.timeout) == (run, (0, 1), 60.0)
    assert [type(message) for message in found.messages] == [RunStarted, RankDone]
    d.now += 3.0
    d.say(Interrupt("i", run=run))
    d.settle()
    d.say(ReadRun("q", 0), "c-2")
    newest = d.told(RunRecord, "c-2")[-1]
    seen = CellRun(newest.run, newest.ranks, Topology((2, 2), ("a", "b")), lambda _: None)
    for message in newest.messages:
        seen.feed(message)
    assert (seen.is_done, {rank: each.kind for rank, each in seen.outcomes.items()}) == (
        True,
        {0: "value", 1: "interrupted"},
    )
    d.say(ReadRun("q", run + 1), "c-2")
    assert d.told(RequestRefused, "c-2")[-1].reason == f"there is no run {run + 1}; the newest is run {run}"


def test_pauses_are_recorded() -> None:
    d = Driver().ready()
    run = d.run((0, 1))
    d.say(Pause("p", (0,)))
    d.settle()
    d.say(ReadRun("q", run))
    assert {type(message) for message in d.told(RunRecord)[-1].messages} >= {RankPaused}
    assert RanksResumed not in {type(message) for message in d.told(RunRecord)[-1].messages}
