"""The panel in little room: what matters most is seen without scrolling, in every theme; and what its filter takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

import jdist
from support.lab.browsing import LONG, Lab
from support.lab.panelled import HANG, Panelled, panelled
from support.waits import eventually

pytestmark = pytest.mark.usefixtures("traces")

ZOOMED = {"width": 853, "height": 600}  # What a window of 1280 by 900 pixels has at 150 %.
SIDEBAR = 33  # Pixels of the bar of tabs beside the panel.
THEMES = ["JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"]
HAS_THEME = "name => document.body.dataset.jpThemeName === name"


@pytest.fixture(scope="module")
def shown(lab: Lab) -> Iterator[Panelled]:
    with panelled(lab, viewport=ZOOMED) as shown:
        yield shown
        assert not shown.complaints


@pytest.fixture
def hanging(shown: Panelled, cluster: jdist.Cluster) -> Iterator[Panelled]:
    """The panel of a cluster with a mesh, and a run that cannot finish."""
    cluster.new_mesh("dp=2,tp=2")
    shown.choose("shared")
    run = cluster.run(HANG, background=True)
    expect(shown.verdict).to_contain_text("rank 3")
    yield shown
    run.cancel()
    assert run.wait(LONG)
    expect(shown.verdict).to_have_count(0)


def is_whole(part: Locator, within: Locator) -> bool:
    """Whether no edge of the part is cut off by the other's."""
    inner, outer = part.bounding_box(), within.bounding_box()
    assert inner is not None
    assert outer is not None
    return (
        inner["x"] >= outer["x"] - 1
        and inner["y"] >= outer["y"] - 1
        and inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 1
        and inner["y"] + inner["height"] <= outer["y"] + outer["height"] + 1
    )


def test_suggested_actions_are_seen_at_once(hanging: Panelled, lab: Lab) -> None:
    actions = hanging.verdict.locator(".jdist-remedies button")
    assert actions.count() >= 2
    assert eventually(lambda: all(is_whole(action, hanging.verdict) for action in actions.all()), LONG)
    (lab.pictures / "panel-zoomed.png").write_bytes(hanging.page.screenshot())
    assert is_whole(hanging.row(0), hanging.table), "the table keeps its place"


@pytest.mark.parametrize("width", [245, 320])
def test_rank_state_and_menu_are_always_seen(hanging: Panelled, lab: Lab, width: int) -> None:
    hanging.widen(SIDEBAR + width)
    for rank in range(4):
        row = hanging.row(rank)
        expect(row).to_contain_text("idle" if rank == 3 else "running · barrier")
        scroller = hanging.table
        row.scroll_into_view_if_needed()
        assert is_whole(row.get_by_role("gridcell").first, scroller)
        assert is_whole(row.get_by_role("button", name=f"Actions for rank {rank}"), scroller)
    assert hanging.table.evaluate("each => each.scrollWidth <= each.clientWidth"), "nothing is out of sight"
    for theme in THEMES:
        hanging.do("apputils:change-theme", theme=theme)
        hanging.page.wait_for_function(HAS_THEME, arg=theme)
        assert hanging.serious_findings() == []
        name = f"panel-{width}-{theme.removeprefix('JupyterLab ').replace(' ', '-')}.png"
        (lab.pictures / name).write_bytes(hanging.page.screenshot())
    hanging.do("apputils:change-theme", theme=THEMES[0])
    hanging.page.wait_for_function(HAS_THEME, arg=THEMES[0])


@pytest.mark.parametrize("width", [245, 320])
def test_nothing_of_the_actions_is_cut_off(hanging: Panelled, lab: Lab, width: int) -> None:
    hanging.widen(SIDEBAR + width)
    page, panel, window = hanging.page, hanging.panel, hanging.page.locator("#main")
    for theme in THEMES:
        hanging.do("apputils:change-theme", theme=theme)
        page.wait_for_function(HAS_THEME, arg=theme)
        name = f"{width}-{theme.removeprefix('JupyterLab ').replace(' ', '-')}"
        for act in hanging.cluster("shared").locator(".jdist-acts button").all():
            assert is_whole(act, panel)
        for action in ("Go to the cell of run", "Copy the verdict"):
            assert is_whole(panel.get_by_role("button", name=action), panel)
        hanging.cluster("shared").get_by_role("button", name="Actions for cluster shared").click()
        menu = page.locator(".lm-Menu")
        expect(menu.get_by_role("menuitem", name="Run doctor")).to_be_visible()
        (lab.pictures / f"cluster-menu-{name}.png").write_bytes(page.screenshot())
        assert is_whole(menu, window)
        page.keyboard.press("Escape")
        expect(hanging.cluster("shared").get_by_role("button", name="Actions for cluster shared")).to_be_focused()
        hanging.row(0).get_by_role("button", name="Actions for rank 0").click()
        expect(menu.get_by_role("menuitem", name="Go to the cell of run")).to_be_visible()
        assert is_whole(menu, window)
        (lab.pictures / f"rank-menu-{name}.png").write_bytes(page.screenshot())
        page.keyboard.press("Escape")
        expect(menu).to_have_count(0)
    hanging.do("apputils:change-theme", theme=THEMES[0])
    page.wait_for_function(HAS_THEME, arg=THEMES[0])


def test_the_filter_takes_what_cells_take(shown: Panelled, cluster: jdist.Cluster) -> None:
    cluster.new_group("odd", "1,3")
    cluster.new_mesh("dp=2,tp=2")
    shown.choose("shared")
    expect(shown.panel.get_by_role("button", name="odd")).to_have_count(1)
    field = shown.panel.get_by_role("searchbox", name="Filter ranks")
    for text, ranks in {"!2": [0, 1, 3], "odd": [1, 3], "node=1": [2, 3], "dp=0": [0, 1], "tp=1, 0": [0, 1, 3]}.items():
        field.fill(text)
        expect(shown.rows).to_have_count(len(ranks))
        for rank in ranks:
            expect(shown.row(rank)).to_have_count(1)
    field.fill("dp=7")
    expect(shown.panel.get_by_role("alert")).to_have_text("The mesh dimension dp has the size 2.")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert shown.serious_findings() == []
    field.fill("")
    expect(shown.panel.get_by_role("alert")).to_have_count(0)
