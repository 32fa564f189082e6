"""Pictures: SVG, HTML and text of a trace: well-formed, escaped, bounded, and saying what they leave out."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from jdist.client.measure.svg import WIDTH
from jdist.client.measure.timeline import Bar, lanes
from jdist.client.measure.trace import Trace
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.observation import GroupProgress
from support.madeup import answer, call, noise, shifted, steps, trace

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "<b>tp</b>&\"'\x01]]>"


def picture(found: Trace) -> ET.Element:
    return ET.fromstring(found._repr_svg_())


def straggler() -> Trace:
    return trace(dict(steps(4, 3, lambda r, s: 3.0 if (r, s) == (2, 2) else 1.0)), (2, 2), ("box", "box"))


def test_waiting_and_working_are_told_apart_without_colour() -> None:
    root = picture(straggler())
    rects = list(root.iter(f"{SVG}rect"))
    waits = [r for r in rects if r.get("fill-opacity")]
    assert len(waits) == 3 + 1, "three that wait, and the legend"
    assert len(rects) - len(waits) >= 12
    words = [t.text or "" for t in root.iter(f"{SVG}text")]
    assert words.count("all_reduce #2") == 3
    assert {"rank 3", "works", "waits for another rank"} <= set(words)


def test_it_takes_its_colour_from_where_it_is() -> None:
    shown = straggler()._repr_html_()
    assert 'fill="currentColor"' in shown
    assert "background" not in shown
    root = picture(straggler())
    assert root.get("color"), "as a file it has no surroundings"


def test_everything_stands_inside_the_picture() -> None:
    answers = {r: shifted(t, -3.0) if r == 1 else t for r, t in steps(3, 40, noise(1, 0.2)).items()}
    root = picture(trace(dict(answers), (3,), ("box",)))
    for rect in root.iter(f"{SVG}rect"):
        x, width = float(rect.get("x", 0)), float(rect.get("width", 0))
        assert math.isfinite(x)
        assert x + width <= WIDTH
        assert width >= 0


def test_what_users_named_is_escaped() -> None:
    world = GroupProgress.of("0", (0, 1), 1, 1, NASTY)
    made = call(NASTY, 1, 9, detail=NASTY)
    found = trace({0: answer(made), 1: answer(made)}, (1, 1), (NASTY, "b"), (world,))
    assert any("<b>tp</b>&" in (t.text or "") for t in picture(found).iter(f"{SVG}text"))
    assert "<b>" not in found._repr_html_()
    assert "\x01" not in found._repr_svg_()


@pytest.mark.parametrize(("world", "number"), [(16, 1500), (2, 5000)])
def test_thousands_of_calls_make_no_large_picture(world: int, number: int) -> None:
    found = trace(dict(steps(world, number, noise(2, 0.001), cost=0.0005)), (world,), ("box",))
    assert len(found._repr_svg_()) < 600_000
    widths = [float(rect.get("width", 0)) for rect in picture(found).iter(f"{SVG}rect")]
    assert 100 < len(widths) < 3000
    assert min(widths) >= 2, "each can be seen"


def test_groups_have_a_legend() -> None:
    groups = (GroupProgress.of("0", (0, 1), 1, 1, "world"), GroupProgress.of("5", (0, 1), 1, 1, "tp"))
    both = answer(call("barrier", 1, 2), call("all_reduce", 3, 4, group="5"))
    words = [t.text for t in picture(trace({0: both, 1: both}, (2,), ("a",), groups)).iter(f"{SVG}text")]
    assert {"world", "tp"} <= set(words)


def test_text() -> None:
    said = repr(straggler())
    assert "run 3 · 4 ranks · 5.01 s · 12 calls" in said
    assert "rank 2 made others wait 6 s of 6 s in all, 6 s of it in all_reduce #2 of world at cell line 4" in said
    strips = dict(re.findall(r"^(\d) ([█░─ ]{64})$", said, re.MULTILINE))
    assert strips.keys() == {"0", "1", "2", "3"}
    assert strips["0"].count("░") == pytest.approx(64 * 2 / 5, abs=1)
    assert "░" not in strips["2"]


def test_waiting_that_is_spread_over_many_calls_is_said_so() -> None:
    said = repr(trace(dict(steps(2, 4, lambda r, s: 1.0 + r)), (2,), ("a",)))
    assert (
        "rank 1 made others wait 4 s of 4 s in all, 4 s of it in 4 calls of all_reduce in world at cell line 4" in said
    )


def test_what_is_left_out_is_said() -> None:
    found = trace({0: answer(left_out=1200), 1: answer()}, (2,), ("a",))
    assert "rank 0: the 1,200 oldest calls are not kept any more" in repr(found)
    assert "the 1,200 oldest calls" in found._repr_html_()


def test_a_rank_that_is_gone_is_named_and_the_others_are_drawn() -> None:
    found = trace(
        {0: answer(call("barrier", 1, 2)), 1: QueryFailed("rank 1 (node 0, a) has no process now")}, (2,), ("a",)
    )
    assert found.absent == {1: "rank 1 (node 0, a) has no process now"}
    assert "1 rank, rank 1 missing" in repr(found)
    assert "has no process now" in repr(found)
    assert "rank 0" in [t.text for t in picture(found).iter(f"{SVG}text")]


def test_a_rank_whose_last_run_was_another_had_no_part() -> None:
    found = trace({0: answer(call("barrier", 1, 2), run=8), 1: answer(run=5), 2: answer(run=0)}, (3,), ("a",))
    assert found.run == 8
    assert found.calls.keys() == {0}
    assert "ranks 1-2 took no part" in repr(found)


@pytest.mark.parametrize(
    ("answers", "run", "message"),
    [
        ({0: answer(run=0), 1: answer(run=0)}, 0, "no cell has run"),
        (
            {0: QueryFailed("it keeps runs 4 to 9"), 1: QueryFailed("it keeps runs 4 to 9")},
            2,
            "nothing is known of run 2: it keeps runs 4 to 9. ",
        ),
    ],
)
def test_nothing_to_draw(answers: dict[int, QueryFailed], run: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace(dict(answers), (2,), ("a",), run=run)


def test_a_run_without_calls() -> None:
    found = trace({0: answer(), 1: answer()}, (2,), ("a",))
    assert "no rank called torch.distributed" in repr(found)
    assert len(picture(found)) > 0


def test_a_run_of_no_time() -> None:
    found = trace({0: answer(call("barrier", 0, 0), ended=0)}, (1,), ("a",))
    assert len(picture(found)) > 0
    assert "run 3" in repr(found)


def bars(*spans: tuple[float, float]) -> list[Bar]:
    made = call("x", 0, 0)
    return [Bar(0, made, i, a, a, b, is_open=False, waited=0.0) for i, (a, b) in enumerate(spans)]


def test_lanes() -> None:
    blocking = bars((0, 1), (1, 2), (2, 3))
    assert lanes(blocking) == [blocking]
    first, second, third = overlapping = bars((0, 5), (1, 2), (3, 6))
    assert lanes(overlapping) == [[first], [second, third]]
