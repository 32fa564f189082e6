"""Matching: calls that belong together, and ranks that never came."""

from __future__ import annotations

from typing import Any

import pytest

from jdist.client.measure.timeline import Meeting, awaited, match
from jdist.core.messages.observation import ANY, Call, RankTrace
from support.madeup import answer, call

WORLD = {"0": (0, 1, 2)}


def parts(found: list[Meeting]) -> list[dict[int, int]]:
    return [m.calls for m in found]


def test_a_collective_is_its_group_and_number() -> None:
    one, two, other = call("barrier", 1, 2), call("barrier", 3, 4, number=2), call("barrier", 2, 3, group="7")
    found = match({0: answer(one, other, two), 1: answer(one, two)}, {})
    assert parts(found) == [{0: 0, 1: 0}, {0: 1}, {0: 2, 1: 1}]


def test_a_group_that_is_made_again_counts_again() -> None:
    calls = (call("barrier", 1, 2), call("barrier", 3, 4))
    assert parts(match({0: answer(*calls), 1: answer(*calls)}, {})) == [{0: 0, 1: 0}, {0: 1, 1: 1}]


def test_a_group_that_is_made_again_may_be_met_by_fewer() -> None:
    first, again = call("barrier", 1, 2), call("barrier", 3, None, is_done=False)
    found = match({0: answer(first, again), 1: answer(first)}, {})
    assert parts(found) == [{0: 0, 1: 0}, {0: 1}]


def test_a_collective_without_a_number_meets_nobody() -> None:
    lost = call("barrier", 1, 2, number=0)
    found = match({0: answer(lost, lost), 1: answer(lost)}, WORLD)
    assert parts(found) == [{0: 0}, {0: 1}, {1: 0}]
    assert not any(m.missing for m in found)


@pytest.mark.parametrize(
    ("third", "missing"),
    [
        (answer(), {2}),
        (answer(call("barrier", 1, 2)), {2}),
        (answer(call("barrier", 9, 9, number=5)), set()),  # whoever is further has been there
        (answer(left_out=4), set()),  # it may be among those that are not kept
        (answer(call("barrier", 3.5, 4, group="7"), left_out=4), set()),
        (answer(call("barrier", 1, 2, group="7"), left_out=4), {2}),  # what it has kept reaches further back
        (None, set()),  # nothing is known of a rank that does not answer
    ],
)
def test_who_is_missing(third: RankTrace | None, missing: set[int]) -> None:
    second = call("barrier", 3, None, number=2, is_done=False)
    traced = {0: answer(second), 1: answer(second)} | ({} if third is None else {2: third})
    found = next(m for m in match(traced, WORLD) if m.calls.keys() == {0, 1})
    assert found.missing == missing


def test_a_rank_without_a_part_in_the_run_is_missing() -> None:
    found = match({0: answer(call("barrier", 1)), 1: answer(call("barrier", 1))}, WORLD, elsewhere=[2])
    assert found[0].missing == {2}


def test_members_are_also_who_called_something_there() -> None:
    found = match(
        {0: answer(call("barrier", 1, 2), call("barrier", 3, number=2)), 1: answer(call("barrier", 1, 2))}, {}
    )
    assert [m.missing for m in found] == [set(), {1}]


def send(at: float, to: int, **more: Any) -> Call:
    return call("send", at, at + 1, peer=to, **more)


def recv(at: float, source: int, **more: Any) -> Call:
    return call("recv", at, at + 1, peer=source, **more)


def test_messages_meet_in_order_by_tag() -> None:
    sender = answer(send(1, 1, tag=5), send(2, 1, tag=6), send(3, 1, tag=5))
    receiver = answer(recv(1, 0, tag=6), recv(2, 0, tag=5), recv(3, 0, tag=5))
    found = sorted(parts(match({0: sender, 1: receiver}, {})), key=lambda p: p[0])
    assert found == [{0: 0, 1: 1}, {0: 1, 1: 0}, {0: 2, 1: 2}]


def test_messages_are_counted_from_the_newest_where_older_ones_are_gone() -> None:
    sender = answer(send(2, 1), send(3, 1), left_out=1)
    receiver = answer(recv(1, 0), recv(2, 0), recv(3, 0))
    assert parts(match({0: sender, 1: receiver}, {})) == [{1: 0}, {0: 0, 1: 1}, {0: 1, 1: 2}]


def test_a_recv_from_any_rank_takes_the_oldest_send_that_is_left() -> None:
    traced = {
        0: answer(recv(1, ANY), recv(2, 1), recv(3, ANY)),
        1: answer(send(5, 0), send(6, 0)),
        2: answer(send(4, 0)),
    }
    assert sorted(map(sorted, (m.calls.items() for m in match(traced, {})))) == [
        [(0, 0), (2, 0)],
        [(0, 1), (1, 0)],
        [(0, 2), (1, 1)],
    ]


def test_a_recv_without_a_send_misses_its_sender() -> None:
    found = match({0: answer(), 1: answer(recv(1, 0))}, {})
    assert [(m.calls, m.missing) for m in found] == [({1: 0}, {0})]


def test_every_call_is_in_one_meeting() -> None:
    traced = {
        0: answer(send(1, 1), recv(2, ANY), call("barrier", 3), recv(4, 1, tag=2)),
        1: answer(recv(1, 0), recv(2, 0), call("barrier", 3), send(4, 0, tag=9), send(5, 2)),
    }
    held = [(r, i) for m in match(traced, WORLD) for r, i in m.calls.items()]
    assert sorted(held) == [(r, i) for r, t in traced.items() for i in range(len(t.calls))]


@pytest.mark.parametrize(
    ("detail", "needed"),
    [
        ("op=SUM", {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}),
        ("src=1", {0: {1}, 1: set(), 2: {1}}),
        ("dst=2, op=MAX", {0: set(), 1: set(), 2: {0, 1}}),
    ],
)
def test_whom_an_operation_needs(detail: str, needed: dict[int, set[int]]) -> None:
    made = call("x", 1, 2, detail=detail)
    meeting = Meeting(dict.fromkeys(range(3), 0))
    assert {r: awaited(made, r, meeting) for r in range(3)} == needed
