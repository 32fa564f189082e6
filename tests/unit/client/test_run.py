"""CellRun: what a client is told about a run becomes its outcomes, its end and its error."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from jdist.client.run import CellRun, Remote
from jdist.core.errors import CellError, CellInterrupted, CellTimeout, ConnectionLost, RankLost
from jdist.core.messages.base import Message, PayloadWire
from jdist.core.messages.debug import RankPaused, RanksResumed, RunFollowed
from jdist.core.messages.observation import StackFrame
from jdist.core.messages.runs import Output, OutputNumber, RankDone, RunEnded, RunStarted, Text
from jdist.core.messages.status import Notice, Stopped
from jdist.core.outcome import ErrorInfo
from jdist.core.topology import Topology
from jdist.wire.values.objects import encode, inline


def payload(value: object) -> PayloadWire:
    p, buffers = encode(value)
    return PayloadWire(p.head, p.sizes, p.nbytes, p.summary, tuple(bytes(b) for b in buffers))


def error(name: str = "ValueError", *, echo: bool = False) -> ErrorInfo:
    return ErrorInfo(name, "bad", cell_line=3, is_echo=echo)


def run(*messages: Message, ranks: tuple[int, ...] = (0, 1)) -> CellRun:
    r = CellRun(7, ranks, Topology((1, 1), ("alpha", "beta")), lambda _: None)
    for message in messages:
        r.feed(message)
    return r


def test_a_run_from_its_start_to_its_end() -> None:
    r = run()
    assert (r.state, r.is_done) == ("queued", False)
    r.feed(RunStarted(7))
    assert (r.state, r.wait(0.0)) == ("running", False)
    r.feed(Output(7, (Text((0, 1), "stdout", "both\n"), Text((1,), "stderr", "one\n"))))
    r.feed(RankDone(7, 1, "value", 0.5, payload([1, 2])))
    assert r.values == {1: [1, 2]}
    assert not r.is_done
    r.feed(RankDone(7, 0, "value", 0.6, payload(None)))
    r.feed(RunEnded(7, "", 1.5))
    assert r.wait(0.0)
    assert (r.state, r.seconds, r.first_failure, r.values) == ("done", 1.5, None, {0: None, 1: [1, 2]})
    assert (r.outcomes[1].stdout, r.outcomes[1].stderr, r.outcomes[1].duration) == ("both\n", "one\n", 0.5)
    r.check()


def numbered(number: int, previous: int, *, agent: int = 1) -> Output:
    return Output(7, (Text((agent,), "stdout", f"{number} "),), OutputNumber(agent, number, previous))


def test_output_that_comes_again_counts_once_and_what_is_missing_is_said() -> None:
    r, told = run(), list[Any]()
    r.watch(told.append)
    for each in (numbered(1, 0), numbered(5, 1), numbered(1, 0, agent=0)):
        r.feed(each)
    for each in (numbered(1, 0), numbered(5, 1), numbered(6, 5), numbered(9, 8), numbered(1, 0, agent=0)):
        r.feed(each)
    assert [m.items[0].text if isinstance(m, Output) else m.text[:50] for m in told] == [
        *("1 ", "5 ", "1 ", "6 ", "some of what rank 1 wrote before this is missing: ", "9 ")
    ]
    assert told[4].remedies[0].ranks == "1"


def test_a_gap_before_a_message_of_which_nothing_is_left_is_that_of_any_rank() -> None:
    r, told = run(), list[Any]()
    r.watch(told.append)
    r.feed(Output(7, (), OutputNumber(1, 9, 8)))
    assert (told[0].text[:26], told[0].remedies[0].ranks) == ("some of what ranks 0-1 wro", "0-1")


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_run_that_is_followed_late_misses_nothing_that_it_did_not_expect(is_whole: bool) -> None:
    r, told = run(), list[Any]()
    r.is_whole = is_whole
    r.watch(told.append)
    r.feed(numbered(9, 8))
    assert [type(m) for m in told] == ([Notice, Output] if is_whole else [Output])


def test_a_run_can_be_awaited() -> None:
    r = run(RankDone(7, 0, "value"), RankDone(7, 1, "value"), RunEnded(7, "", 0.1))

    async def wait() -> CellRun:
        return await r

    assert asyncio.run(wait()) is r


def test_cancel_asks_for_the_runs_interrupt() -> None:
    asked: list[int] = []
    CellRun(7, (0,), Topology((1,)), asked.append).cancel()
    assert asked == [7]


@pytest.mark.parametrize(
    ("ends", "kind", "says"),
    [
        ({0: "value", 1: "error"}, CellError, "rank 1 (node 1, beta) failed at cell line 3: ValueError: bad"),
        ({0: "lost", 1: "interrupted"}, RankLost, "lost: bad; rank 1 did not finish because of it"),
        ({0: "lost", 1: "error"}, RankLost, "lost: bad; rank 1 failed otherwise: ValueError: bad"),
        ({0: "timeout", 1: "timeout"}, CellTimeout, "ranks 0-1 were interrupted at the deadline"),
        ({0: "value", 1: "timeout"}, CellTimeout, "rank 1 (node 1, beta) was interrupted at the deadline"),
        ({0: "error", 1: "timeout"}, CellError, "rank 0 (node 0, alpha) failed"),
    ],
)
def test_the_error_names_the_cause(ends: dict[int, str], kind: type[CellError], says: str) -> None:
    r = run(*(RankDone(7, rank, k, error=error() if k in ("error", "lost") else None) for rank, k in ends.items()))
    r.feed(RunEnded(7, "", 1.0, next((n for n, k in ends.items() if k in ("error", "lost")), -1)))
    with pytest.raises(kind) as e:
        r.check()
    assert type(e.value) is kind
    assert says in str(e.value)
    assert e.value.run is r
    assert e.value.outcomes == r.outcomes


def test_an_interrupt_says_that_the_names_are_kept() -> None:
    r = run(RankDone(7, 0, "interrupted", error=error("KeyboardInterrupt")), RankDone(7, 1, "interrupted"))
    r.feed(RunEnded(7, "interrupted", 1.0))
    with pytest.raises(CellInterrupted, match="ranks 0-1 were interrupted; every namespace is kept"):
        r.check()


def test_a_cell_that_was_never_run_says_why() -> None:
    why = ErrorInfo("NotRun", "the cell was not run: node 1 (beta) is gone")
    r = run(*(RankDone(7, rank, "interrupted", error=why) for rank in (0, 1)), RunEnded(7, "interrupted", 0.0))
    with pytest.raises(CellInterrupted, match=r"^the cell was not run: node 1 \(beta\) is gone$"):
        r.check()


def test_an_echo_is_not_named_as_the_cause() -> None:
    r = run(RankDone(7, 0, "error", error=error("RuntimeError", echo=True)), RankDone(7, 1, "error", error=error()))
    r.feed(RunEnded(7, "", 1.0))
    with pytest.raises(CellError, match=r"rank 1 .* failed"):
        r.check()


def test_a_value_that_stayed_there_stands_as_a_remote() -> None:
    p, _ = encode(list(range(10)))
    r = run(RankDone(7, 0, "value", payload=PayloadWire(p.head, p.sizes, 999, p.summary), held="_3"))
    value = r.values[0]
    assert isinstance(value, Remote)
    assert (value.rank, value.expr, value.nbytes) == (0, "_3", 999)
    assert "cluster.pull('_3', ranks=[0])" in repr(value)


def test_a_value_that_cannot_be_read_here_is_no_error_of_the_run() -> None:
    broken = PayloadWire(b"nonsense", (), 8, "Thing", ())
    r = run(RankDone(7, 0, "value", payload=broken))
    assert "Thing, not readable here" in repr(r.values[0])


class Noted:
    """Says when it is made again."""

    made: ClassVar[bool] = False

    def __reduce__(self) -> Any:
        return setattr, (Noted, "made", True)


def test_a_value_is_made_when_it_is_asked_for() -> None:
    """Its class's code may take any time, and torch is imported for it: neither is to hold up the client's loop."""
    payload, buffers = encode(Noted())
    r = run(RankDone(7, 0, "value", payload=inline(payload, buffers)))
    assert not Noted.made
    assert r.values == {0: None} == r.values
    assert Noted.made
    assert "value=None" in repr(r.outcomes[0])
    assert "read_value" not in repr(r.outcomes[0])


def test_when_the_controller_is_gone_the_run_is_over_and_says_so() -> None:
    r = run(RunStarted(7), RankDone(7, 0, "value"), Stopped("its controller is gone"))
    assert (r.state, r.outcomes[0].kind, r.outcomes[1].kind) == ("done", "value", "lost")
    assert r.wait(1.0)
    with pytest.raises(ConnectionLost, match=r"run 7.*its controller is gone"):
        r.check()


def test_a_late_watcher_hears_the_past_and_the_end() -> None:
    messages: list[Message] = [
        RunStarted(7),
        Notice("n", 7),
        RankDone(7, 0, "value"),
        RankDone(7, 1, "value"),
        RunEnded(7, "", 1.0),
    ]
    r = run(*messages[:2])
    early: list[Message | None] = []
    r.watch(early.append)
    for message in messages[2:]:
        r.feed(message)
    late: list[Message | None] = []
    r.watch(late.append)
    assert early == late == [*messages, None]


AT = StackFrame("train_step", "", 8, "loss.backward()", 7)


def test_a_run_is_paused_while_a_rank_is() -> None:
    r = run(RunStarted(7), RankPaused(7, 0, "request", AT, 0), RankPaused(7, 1, "breakpoint", AT, 0))
    assert (r.state, sorted(r.paused), r.paused[0].at.place) == ("paused", [0, 1], "train_step, line 8")
    assert r.wait_paused(0.0)
    r.feed(RanksResumed(7, (0,), "step"))
    assert (r.state, sorted(r.paused)) == ("paused", [1])
    r.feed(RanksResumed(7, (1,)))
    assert (r.state, r.paused, r.wait_paused(0.0)) == ("running", {}, False)
    r.feed(RankPaused(7, 1, "step", AT, 1))
    r.feed(RankDone(7, 1, "error", error=error()))
    r.feed(RankPaused(7, 1, "step", AT, 1))
    assert r.paused == {}, "its part is over"
    r.feed(RankPaused(7, 0, "step", AT, 1))
    r.feed(RunEnded(7, "", 1.0))
    assert (r.state, r.paused, r.wait_paused()) == ("done", {}, False)


def test_a_run_that_others_have_begun_is_taken_over_as_it_is() -> None:
    paused = RankPaused(7, 2, "request", AT, 0)
    found = RunFollowed("r", 7, "x", (0, 1, 2), (2,), 3.0, (paused,), None, {0: "error"})
    r = CellRun.followed(found, Topology((3,), ("alpha",)), lambda _: None)
    assert (r.state, r.seconds, r.paused) == ("paused", 3.0, {2: paused})
    assert {rank: outcome.kind for rank, outcome in r.outcomes.items()} == {0: "error", 1: "value"}
    seen: list[Message | None] = []
    r.watch(seen.append)
    assert seen == [paused]


def test_a_watcher_that_raises_keeps_neither_the_run_from_ending_nor_the_others_from_watching() -> None:
    r = run()
    seen: list[object] = []

    def fail(message: object) -> None:
        raise OSError("the page is full")

    r.watch(fail)
    r.watch(seen.append)
    for message in (Output(7, (Text((0,), "stdout", "on\n"),)), RankDone(7, 0, "value"), RankDone(7, 1, "value")):
        r.feed(message)
    r.feed(RunEnded(7, "", 1.0))
    assert r.wait(0)
    assert (len(seen), seen[-1]) == (5, None)
