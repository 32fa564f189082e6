"""Mismatch: where the calls of a group's members begin to differ, who is responsible, and how it is worded."""

from __future__ import annotations

import pytest

from jdist.controller.verdict.decide import decide_on_mismatch
from jdist.controller.verdict.mismatch import Mismatch, compare, find
from jdist.core.messages.observation import Call
from support.rank_snapshots import ALL, call, coll, world


@pytest.mark.parametrize(
    ("calls", "what", "responsible"),
    [
        ((call(), call(), call("broadcast"), call()), "operation", (2,)),
        ((call(), call(), call(size=4), call()), "size", (2,)),
        ((call(), call(dtypes=("float64",)), call(), call()), "dtype", (1,)),
        ((call(detail="src=0"), call(detail="src=1"), call(detail="src=0"), call(detail="src=1")), "root", ()),
        (
            (call(detail="op=MAX"), call(detail="op=SUM"), call(detail="op=SUM"), call(detail="op=SUM")),
            "reduction",
            (0,),
        ),
        (
            (call("all_to_all", detail="splits=[1, 3]→[1, 1]"), call("all_to_all", detail="splits=[1, 1]→[2, 1]")),
            "split sizes",
            (),
        ),
    ],
    ids=["operation", "size", "dtype", "root", "reduction", "splits"],
)
def test_what_differs_and_who_is_responsible(calls: tuple[Call, ...], what: str, responsible: tuple[int, ...]) -> None:
    found = compare(17, dict(enumerate(calls)), ALL)
    assert found is not None
    assert (found.what, found.responsible) == (what, responsible)


def test_equal_calls_and_a_single_call_do_not_differ() -> None:
    assert compare(17, dict.fromkeys(ALL, call()), ALL) is None
    assert compare(17, {0: call()}, ALL) is None


def test_the_first_of_several_differences_is_found() -> None:
    earlier = {r: (call("broadcast" if r == 2 else "all_reduce", 16, is_done=True),) for r in ALL}
    ranks = world(*(coll(r, "barrier" if r == 2 else "all_reduce", recent=earlier[r]) for r in ALL))
    found = find("0", 17, ranks)
    assert found is not None
    assert (found.number, found.responsible) == (16, (2,))


PARTIES = (((0, 1, 3), call(size=4, detail="op=SUM")), ((2,), call(size=4, detail="op=MAX")))


def test_the_words_say_whether_it_blocks_or_has_passed() -> None:
    found = Mismatch(12, "reduction", PARTIES)
    blocking = decide_on_mismatch(7, found, "all_reduce", "world", (0, 1))
    assert blocking.reason == "all_reduce #12 of group world differs between ranks in reduction"
    assert blocking.is_certain
    passed = decide_on_mismatch(7, found, "all_reduce", "world", has_passed=True)
    assert passed.reason == "all_reduce #12 of group world differed between ranks in reduction: the result is wrong"
    assert (passed.is_certain, passed.remedies, passed.details) == (False, (), blocking.details)
    assert passed.details[1] == "rank 2 calls all_reduce [4] float32 op=MAX"
    other = Mismatch(12, "operation", PARTIES)
    assert (
        decide_on_mismatch(7, other, "x", "world").reason
        == "the ranks of group world are in different collectives at #12"
    )
    text = "the ranks of group world were in different collectives at #12: the result is wrong"
    assert decide_on_mismatch(7, other, "x", "world", has_passed=True).reason == text
