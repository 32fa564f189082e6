"""Runs: the queue, and what becomes of each rank's part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdist.controller.model.phases import transition
from jdist.controller.model.runs import AbortReason, RankEnd, Run, RunBook
from jdist.core.messages.observation import Verdict
from jdist.core.messages.runs import CellSpec, RankDone
from jdist.core.outcome import ErrorInfo


def queued(*rank_sets: tuple[int, ...]) -> RunBook:
    book = RunBook()
    for ranks in rank_sets:
        book.queued.append(Run(book.new_number(), "c", CellSpec(""), ranks))
    return book


def start(book: RunBook) -> list[int]:
    ready = book.startable()
    for run in ready:
        book.start(run, 10.0)
    return [r.number for r in ready]


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        ([(0, 1), (2, 3)], [1, 2]),
        ([(0, 1), (1, 2), (3,)], [1, 3]),
        ([(0,), (0, 1), (1,)], [1]),
        ([(0, 1, 2, 3), (0,), (1,)], [1]),
    ],
)
def test_what_may_start_at_once(wanted: list[tuple[int, ...]], first: list[int]) -> None:
    assert start(queued(*wanted)) == first


def test_runs_start_in_the_order_of_the_queue() -> None:
    book = queued((0,))
    book.queued.insert(0, Run(book.new_number(), "c", CellSpec(""), (0,)))
    assert start(book) == [2]


def test_a_run_waits_for_those_in_the_way() -> None:
    book = RunBook()
    assert [book.add(Run(n, "c", CellSpec(""), ranks)) for n, ranks in enumerate([(0, 1), (1, 2), (0,)])] == [
        (),
        (0,),
        (0,),
    ]
    start(book)
    book.running[0].record(RankDone(0, 0, "value"), 0.0)
    assert [book.add(Run(n, "c", CellSpec(""), ranks)) for n, ranks in ((3, (1,)), (4, (0,)))] == [(0, 1), (2,)]


@given(st.lists(st.sets(st.integers(0, 4), min_size=1).map(lambda s: tuple(sorted(s))), max_size=12), st.randoms())
def test_each_rank_runs_its_cells_one_at_a_time_and_in_order(wanted: list[tuple[int, ...]], random: object) -> None:
    book = queued(*wanted)
    order: dict[int, list[int]] = {}
    while book.queued or book.running:
        for number in start(book):
            for rank in book.running[number].ranks:
                order.setdefault(rank, []).append(number)
        busy = [r for run in book.running.values() for r in run.pending]
        assert len(busy) == len(set(busy))
        assert busy, "a queue in which nothing moves"
        run = random.choice(list(book.running.values()))  # type: ignore[attr-defined]
        run.record(RankDone(run.number, random.choice(sorted(run.pending)), "value"), 0.0)  # type: ignore[attr-defined]
        if run.is_over:
            del book.running[run.number]
    for rank, numbers in order.items():
        assert numbers == [n for n, ranks in enumerate(wanted, 1) if rank in ranks]


def running(*ranks: int) -> Run:
    book = queued(ranks)
    start(book)
    return book.running[1]


@pytest.mark.parametrize(
    ("halted", "said", "counted"),
    [
        ("", "error", "error"),
        ("", "value", "value"),
        ("timeout", "error", "timeout"),
        ("timeout", "value", "value"),
        ("interrupted", "error", "interrupted"),
        ("lost", "error", "interrupted"),
        ("failed", "error", "interrupted"),
        ("interrupted", "lost", "lost"),
    ],
)
def test_what_a_halted_runs_ranks_say_counts_under_its_reason(halted: AbortReason, said: str, counted: str) -> None:
    run = running(0)
    run.abort_reason = halted
    settled = run.record(RankDone(1, 0, said), 0.0)
    assert settled is not None
    assert settled.kind == run.ends[0].kind == counted
    assert run.is_over


@pytest.mark.parametrize(
    ("ends", "halted", "first"),
    [
        ([(0, "value", False)], "", -1),
        ([(1, "error", False), (0, "error", False)], "", 1),
        ([(1, "error", True), (0, "error", False)], "", 0),
        ([(1, "error", True)], "", -1),
        ([(1, "error", False), (0, "lost", False)], "", 0),
        ([(1, "error", False), (0, "lost", False)], "interrupted", 0),
    ],
)
def test_the_first_failure(ends: list[tuple[int, str, bool]], halted: AbortReason, first: int) -> None:
    run = running(0, 1)
    run.abort_reason = halted
    for rank, kind, is_echo in ends:
        run.record(RankDone(1, rank, kind, error=ErrorInfo("E", "", is_echo=is_echo)), 0.0)
    assert run.first_failure == first


@pytest.mark.parametrize(
    ("kinds", "halted", "reason"),
    [
        ({0: "value", 1: "error"}, "", ""),
        ({0: "value", 1: "value"}, "interrupted", ""),
        ({0: "value", 1: "interrupted"}, "interrupted", "interrupted"),
        ({0: "error", 1: "interrupted"}, "failed", "failed"),
        ({0: "timeout", 1: "lost"}, "timeout", "timeout"),
        ({0: "lost"}, "", "lost"),
    ],
)
def test_why_a_run_ended(kinds: dict[int, str], halted: AbortReason, reason: str) -> None:
    run = running(*kinds)
    run.abort_reason = halted
    run.ends = {rank: RankEnd(kind) for rank, kind in kinds.items()}
    assert run.reason == reason


def test_wakeups() -> None:
    book = queued((0,), (1,))
    book.queued[0].spec = CellSpec("", timeout=5.0)
    assert book.next_deadline() is None
    start(book)
    assert book.next_deadline() == 15.0
    transition(book.running[1], "aborting", "interrupted")
    assert book.next_deadline() is None
    book.running[1].give_up_at = 11.0
    assert book.next_deadline() == 11.0


def test_what_cannot_end_by_itself_is_no_activity() -> None:
    book = queued((0,))
    assert not book.is_active
    start(book)
    (run,) = book.running.values()
    assert book.is_active
    run.asking.add(0)
    assert not book.is_active
    run.asking = {1}
    assert book.is_active, "the part that asked is over"
    run.verdict = Verdict(1, "missing", (0,), (1,), "rank 0 has not entered all_reduce")
    assert not book.is_active
    run.verdict = None
    assert book.is_active
