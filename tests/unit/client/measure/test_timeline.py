"""Timeline: who waits how long, and who is charged with it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.client.measure.timeline import Bar, Timeline
from jdist.core.messages.observation import RankTrace
from support.madeup import answer, call, drawn, steps

WORLD = {"0": (0, 1, 2, 3)}


def bar(t: Timeline, rank: int, number: int = 0) -> Bar:
    return next(row for row in t.rows if row.rank == rank).bars[number]


def test_one_straggler_is_charged_with_all_of_it() -> None:
    t = drawn({r: answer(call("all_reduce", 5 if r == 2 else 1, 5.5)) for r in range(4)})
    assert t.suffered == {0: 4, 1: 4, 2: 0, 3: 4}
    assert t.caused == {0: 0, 1: 0, 2: 12, 3: 0}
    assert (bar(t, 0).work, bar(t, 0).ended, bar(t, 0).charged) == (5, 5.5, ((2, 4.0),))


def test_two_stragglers_share_while_both_are_late() -> None:
    t = drawn({r: answer(call("all_reduce", at, 6)) for r, at in enumerate([1, 1, 3, 4])})
    assert t.suffered == {0: 3, 1: 3, 2: 1, 3: 0}
    assert t.caused == pytest.approx({0: 0, 1: 0, 2: 2, 3: 5})


@given(st.lists(st.lists(st.floats(0, 2), min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=60)
def test_what_is_suffered_is_caused(times: list[list[float]]) -> None:
    t = drawn(steps(3, len(times), lambda r, s: times[s - 1][r]))
    assert sum(t.caused.values()) == pytest.approx(sum(t.suffered.values()))
    for row in t.rows:
        assert 0 <= row.suffered <= row.inside + 1e-9
        late = sum(max(step) - step[row.rank] for step in times)
        assert row.suffered == pytest.approx(late, abs=1e-6)


def test_a_broadcast_needs_its_source_only() -> None:
    t = drawn({r: answer(call("broadcast", at, 6, detail="src=1")) for r, at in enumerate([1, 3, 5])})
    assert t.suffered == {0: 2, 1: 0, 2: 0}
    assert t.caused == {0: 0, 1: 2, 2: 0}


def test_a_reduce_needs_all_at_its_destination_only() -> None:
    t = drawn({r: answer(call("reduce", at, 6, detail="dst=0")) for r, at in enumerate([1, 3, 5])})
    assert t.suffered == {0: 4, 1: 0, 2: 0}


def test_a_rank_waits_no_longer_than_its_own_call() -> None:
    t = drawn({0: answer(call("all_reduce", 1, 2)), 1: answer(call("all_reduce", 5, 6))})
    assert t.suffered == {0: 1, 1: 0}


def test_a_recv_waits_for_its_send() -> None:
    t = drawn({0: answer(call("send", 4, 5, peer=1)), 1: answer(call("recv", 1, 5, peer=0))})
    assert t.suffered == {0: 0, 1: 3}
    assert t.caused == {0: 3, 1: 0}


@pytest.mark.parametrize(("ended", "waited"), [(1.1, 0), (4.2, 3)])
def test_a_send_waits_for_its_recv_if_it_lasted_so_long(ended: float, waited: float) -> None:
    t = drawn({0: answer(call("send", 1, ended, peer=1)), 1: answer(call("recv", 4, 5, peer=0))})
    assert t.suffered[0] == pytest.approx(waited)


def test_waiting_in_two_calls_at_once_counts_once() -> None:
    first = [call("all_reduce", at, 5) for at in (1, 4)]
    second = [call("all_reduce", at, 6, number=2) for at in (2, 4.5)]
    t = drawn({r: answer(first[r], second[r]) for r in range(2)})
    assert t.suffered == {0: 3.5, 1: 0}
    assert t.caused == {0: 0, 1: 3.5}


def test_an_end_that_was_not_seen() -> None:
    """DDP's two buckets: the rank waits in them until the other one's came, and it is drawn so."""
    early = answer(call("ddp backward", 1), call("ddp backward", 1.5, number=2), call("barrier", 7, 7, number=3))
    late = answer(call("ddp backward", 5), call("ddp backward", 5.25, number=2), call("barrier", 7, 7, number=3))
    t = drawn({0: early, 1: late})
    assert (bar(t, 0).ended, bar(t, 0, 1).ended) == (5, 5.25)
    assert t.suffered == {0: 4.25, 1: 0}
    assert t.rows[0].estimated == 4.25
    assert t.rows[1].inside == 0


def test_an_unseen_end_is_no_wait_once_the_rank_went_on() -> None:
    early = answer(call("all_reduce", 1), call("barrier", 2, 6, number=2))
    t = drawn({0: early, 1: answer(call("all_reduce", 5), call("barrier", 5, 6, number=2))})
    assert [b.waited for b in t.rows[0].bars] == [1, 3]


def test_a_rank_that_never_comes_is_charged_until_now() -> None:
    stuck = answer(call("barrier", 2, None, is_done=False), ended=None, now=9)
    t = drawn({0: stuck, 1: stuck, 2: stuck, 3: answer(ended=1)}, WORLD)
    assert t.suffered == {0: 7, 1: 7, 2: 7, 3: 0}
    assert t.caused[3] == 21
    assert (bar(t, 0).missing, bar(t, 0).came, bar(t, 0).ended) == ((3,), math.inf, 9)
    assert t.rows[0].estimated == 0
    assert t.rows[0].is_running


def test_a_rank_of_which_nothing_is_known_is_charged_with_nothing() -> None:
    stuck = answer(call("barrier", 2, None, is_done=False), ended=None, now=9)
    t = drawn({0: stuck, 1: stuck, 2: stuck}, WORLD)
    assert sum(t.caused.values()) == sum(t.suffered.values()) == 0


def test_a_run_without_calls() -> None:
    t = drawn({0: answer(ended=2), 1: answer(ended=3)})
    assert (t.span, t.suffered, t.caused) == (3, {0: 0, 1: 0}, {0: 0, 1: 0})


def test_nobody() -> None:
    none: dict[int, RankTrace] = {}
    assert drawn(none).rows == ()
