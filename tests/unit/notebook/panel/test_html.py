"""The panel's drawing: what is known of a cluster, in HTML that says all of it in words."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from msgspec import structs

from jdist.core.errors import Remedy
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.membership import GroupSpec
from jdist.core.messages.nodes import GpuUse
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, StackFrame, Verdict
from jdist.core.messages.status import ClusterFacts, RankFacts, StatusReport
from jdist.core.topology import Mesh
from jdist.notebook import panel
from jdist.notebook.panel import Sight
from jdist.notebook.text.cluster_text import group_rows


def facts(ranks: int = 4, **options: Any) -> ClusterFacts:
    usual: dict[str, Any] = {
        "name": "lab",
        "phase": "ready",
        "generation": 3,
        "backend": "gloo",
        "nnodes": 2,
        "nproc_per_node": (ranks // 2, ranks // 2),
        "hostnames": ("a", "b"),
        "ready": ranks,
    }
    return ClusterFacts(**{**usual, **options})


def row(rank: int, state: str = "idle", run: int = 0, **options: Any) -> RankFacts:
    return RankFacts(
        rank, rank // 2, "ab"[rank // 2 % 2], 100 + rank, state, run, options.pop("line", ""), False, **options
    )


def surveyed(rows: list[RankFacts], runs: tuple[Any, ...] = (), **options: Any) -> StatusReport:
    groups, verdicts = options.pop("made", ()), options.pop("verdicts", ())
    return StatusReport("q", facts(max(2, len(rows)), **options), tuple(rows), runs, groups, verdicts)


def words(markup: str) -> str:
    """What a person reads, without any style; every tag is closed."""
    found: list[str] = []
    still_open: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            still_open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert still_open.pop() == tag

        def handle_data(self, data: str) -> None:
            found.append(data)

    Reader().feed(markup)
    assert not still_open
    return " ".join(" ".join(found).split())


def test_the_header_names_everything() -> None:
    rows = [row(0, "running", 7), row(1, "running", 7), row(2), row(3)]
    said = words(panel.draw_header(Sight("live", "", surveyed(rows, ((7, "running", (0, 1, 2, 3), 12.4),)))))
    for part in ("cluster lab", "4 ranks", "2 nodes", "gloo", "generation 3", "a cell runs", "run 7 on ranks 0-3"):
        assert part in said
    assert "2 of 4 done, 12 s" in said


@pytest.mark.parametrize(
    ("state", "says"), [("live", "idle"), ("silent", "does not answer"), ("gone", "gone"), ("watching", "idle")]
)
def test_the_header_says_how_it_is(state: str, says: str) -> None:
    assert words(panel.draw_header(Sight(state, "", surveyed([row(0), row(1)])))).endswith(says)


def test_a_world_that_is_formed_says_so() -> None:
    found = surveyed([row(0), row(1)], phase="forming", reason="waiting for node 1")
    said = words(panel.draw_header(Sight("live", "", found)))
    assert "forming" in said
    assert "waiting for node 1" in said


@pytest.mark.parametrize(
    ("state", "says"), [("watching", "nothing is asked"), ("live", "up to date"), ("gone", "any more: nobody")]
)
def test_the_footer_says_whether_it_is_kept_up_to_date(state: str, says: str) -> None:
    note = "nobody" if state == "gone" else ""
    assert says in words(panel.draw_footer(Sight(state, note, surveyed([row(0), row(1)]))))


def test_a_rank_in_a_collective() -> None:
    call = Call("all_reduce", "0", 17)
    doing = Activity("collective", "all_reduce", 5, "dist.all_reduce(t)", 3.24, 0.87, (call,))
    looked = {1: Observation("cuda:1", doing, 224_000_000, (GroupProgress.of("0", (0, 1), 17, 16, "world"),), (), 7)}
    said = words(panel.draw_ranks(Sight("live", "", surveyed([row(0), row(1, "running", 7)]), looked)))
    assert "1 0 a cuda:1 ▶ running (run 7) all_reduce #17 of world at line 5, 3.2 s 87% 224 MB" in said
    assert "Ranks 0-1: 1 idle, 1 running" in said


def test_a_paused_rank() -> None:
    at = RankPaused(7, 1, "breakpoint", StackFrame("train_step", "", 8, "loss.backward()", 7), 0)
    rows = [row(0, "running", 7), structs.replace(row(1, "running", 7), paused=at)]
    sight = Sight("live", "", surveyed(rows, ((7, "running", (0, 1), 12.4),)))
    assert "⏸ run 7 on ranks 0-1: rank 1 is paused" in words(panel.draw_header(sight))
    said = words(panel.draw_ranks(sight))
    assert "⏸ paused (run 7) train_step, line 8: loss.backward()" in said
    assert "Ranks 0-1: 1 running, 1 paused" in said
    assert "⏸ paused (run 7)" in panel.draw_snapshot(sight)["text/plain"]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (GpuUse("GPU 0", 141 << 30, 31 << 30, 5 << 28, 0.97), "97% 1.2 of 141 GiB"),
        (GpuUse("GPU 0", 141 << 30, 31 << 30, None, None), "31.0 of 141 GiB by all"),
        (GpuUse("GPU 0", 141 << 30, 31 << 30, 0, 0.0), "0% 0.0 of 141 GiB"),
        (GpuUse("a slice of GPU 0", own=5 << 28), "1.2 GiB"),
        (GpuUse("GPU 0", busy=0.5), "50%"),
        (None, ""),
    ],
)
def test_what_a_rank_has_of_its_gpu(use: GpuUse | None, says: str) -> None:
    looked = {0: Observation("cuda:0", Activity("idle"), 224_000_000, gpu=use)}
    said = words(panel.draw_ranks(Sight("live", "", surveyed([row(0), row(1)], ()), looked)))
    assert f"224 MB {says}".strip() in said
    assert ("GPU" in said) is bool(says)
    assert ("GPU memory" in said) is ("GiB" in says)


def test_a_column_of_which_nobody_says_anything_is_left_out() -> None:
    said = words(panel.draw_ranks(Sight("live", "", surveyed([row(0), row(1)]))))
    assert "rank node state 0" in said
    dead = row(1, "gone", death="killed by SIGKILL")
    said = words(panel.draw_ranks(Sight("live", "", surveyed([row(0, line="epoch 3"), dead]))))
    assert "rank node state last line lost" in said
    assert "✕ gone killed by SIGKILL" in said


@pytest.mark.parametrize("state", ["idle", "running", "gone", "unreachable", "starting"])
def test_a_state_is_a_sign_and_a_word(state: str) -> None:
    markup = panel.draw_ranks(Sight("live", "", surveyed([row(0, state), row(1)])))
    assert re.search(rf"[^\x00-\x7f] {state}<", markup)


def test_groups_and_the_mesh() -> None:
    made = (GroupSpec((0, 2), None, "evens"), GroupSpec((1, 3), None, ""), GroupSpec((0, 1), None, "old", (), True))
    found = surveyed(
        [row(r) for r in range(4)],
        made=made,
        groups={"tail": (2, 3), "dp=0": (0, 1), "dp=1": (2, 3)},
        mesh=(("dp", "tp"), (2, 2)),
    )
    assert group_rows(found) == [
        ("world", "0-3", "the default group"),
        ("tail", "2-3", "named"),
        ("evens", "0,2", "made in a cell"),
        ("(no name)", "1,3", "made in a cell"),
    ]
    assert "tp=0 tp=1 dp=0 0 1 dp=1 2 3" in words(panel.draw_groups(found))


def test_a_mesh_of_three_dimensions_has_a_row_for_each_of_the_outer_ones() -> None:
    said = words(panel.draw_mesh(Mesh(("pp", "dp", "tp"), (2, 2, 3))))
    assert said == ("tp=0 tp=1 tp=2 pp=0 dp=0 0 1 2 pp=0 dp=1 3 4 5 pp=1 dp=0 6 7 8 pp=1 dp=1 9 10 11")


def test_a_verdict_has_its_actions_while_they_have_an_effect() -> None:
    verdict = Verdict(
        3, "missing", (1,), (0,), "rank 1 has not entered it", ("rank 0 waits",), (Remedy("interrupt", "y"),)
    )
    found = surveyed([row(0), row(1)], verdicts=(verdict,))
    markup = panel.draw_verdicts(Sight("live", "", found))
    assert 'role="alert"' in markup
    assert words(markup) == "● run 3 cannot finish: rank 1 has not entered it rank 0 waits → %dist interrupt y"
    assert words(panel.draw_verdicts(Sight("gone", "", found))).endswith("rank 0 waits")


EVIL = "<script>alert('&')</script>"


def test_what_others_wrote_is_never_markup() -> None:
    looked = {0: Observation(EVIL, Activity("python", EVIL), 1)}
    made = (GroupSpec((0, 1), None, EVIL),)
    verdict = Verdict(1, "slow", (0,), (1,), EVIL, (EVIL,))
    rows = [row(0, EVIL, 1, line=EVIL, death=EVIL), row(1)]
    found = surveyed(rows, ((1, EVIL, (0,), 1.0),), made=made, verdicts=(verdict,), reason=EVIL, hostnames=(EVIL, "b"))
    found = StatusReport("q", found.facts, found.ranks, found.runs, found.groups, found.verdicts, (EVIL,))
    sight = Sight("watching", EVIL, found, looked)
    parts = [
        panel.draw_header(sight),
        panel.draw_footer(sight),
        panel.draw_ranks(sight),
        panel.draw_groups(found),
        panel.draw_verdicts(sight),
        panel.draw_message(EVIL, is_error=True),
        panel.draw_warning(EVIL),
        panel.draw_snapshot(sight)["text/html"],
    ]
    assert all("<script" not in part for part in parts)
    assert all("&lt;script" in part for part in parts)


def test_where_no_widget_can_be_shown_there_is_a_table() -> None:
    shown = panel.draw_snapshot(Sight("live", "", surveyed([row(0), row(1)])))
    assert shown["text/plain"].startswith("cluster lab · ready · gloo · generation 3\n")
    assert re.search(r"^ +1 +0 a .* idle$", shown["text/plain"], re.MULTILINE)
    assert "shows no widgets" in shown["text/plain"]
