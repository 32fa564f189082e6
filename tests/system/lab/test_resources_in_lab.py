"""The section of resources in a real JupyterLab: what it requests and when, its charts, and its use without a mouse.

The server's answers are made up in the browser (``support.lab.resources``), but for the last test.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

import jdist
from support.lab.browsing import LONG, Lab
from support.lab.panelled import panelled
from support.lab.resources import Served, run_span

THEMES = ["JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast"]
ZOOMED = {"width": 853, "height": 600}  # What a window of 1280 by 900 pixels has at 150 %.
SIDEBAR = 33  # Pixels of the bar of tabs beside the panel.
# How many pixels of a chart have been painted.
PAINTED = """chart => {
    const canvas = chart.querySelector('canvas');
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let painted = 0;
    for (let i = 3; i < data.length; i += 4) painted += data[i] > 0;
    return painted;
}"""
CURSORS = """section => [...section.querySelectorAll('.jdist-Chart .u-cursor-x')].map(each => {
    const [x] = each.style.transform.match(/-?[0-9.]+/) ?? ['none'];
    return each.classList.contains('u-off') ? 'none' : x;
})"""
IS_CUT_OFF = "section => section.querySelector('.jdist-scroller').scrollWidth > section.clientWidth"


@contextlib.contextmanager
def serving(lab: Lab, width: int = 620, page: dict[str, Any] | None = None, **options: int) -> Iterator[Served]:
    """A page with the panel and the section expanded; ``options`` are those of ``Served``."""
    made: list[Served] = []
    with panelled(lab, before=lambda page: made.append(Served(page, lab, **options)), **(page or {})) as panel:
        panel.widen(SIDEBAR + width)
        made[0].toggle()
        expect(made[0].chart("CPU")).to_be_visible()
        yield made[0]
        assert not made[0].panel.complaints


@pytest.fixture
def served(lab: Lab) -> Iterator[Served]:
    """Four ranks on two nodes with GPUs."""
    with serving(lab, nodes=2, gpus=2) as served:
        yield served


def test_nothing_is_requested_unless_the_section_is_seen(lab: Lab) -> None:
    made: list[Served] = []

    def prepare(page: Page) -> None:
        page.clock.install()
        made.append(Served(page, lab))

    with panelled(lab, before=prepare) as panel:
        [served] = made
        expect(panel.row(3)).to_contain_text("idle")
        panel.page.clock.fast_forward("01:00")
        assert served.asked == [], "it is collapsed"
        served.toggle()
        expect(served.charts).to_have_count(4)
        assert served.asked[0] == {"seconds": "300", "points": "120", "no_track_activity": "1"}
        served.until_asked()
        for hide in (served.toggle, lambda: panel.do("application:toggle-left-area")):
            hide()
            expect(served.charts.first).not_to_be_visible()
            count = len(served.asked)
            panel.page.clock.fast_forward("01:00")
            expect(panel.status).to_be_visible()
            assert len(served.asked) == count
            hide()
            expect(served.charts.first).to_be_visible()
            served.until_asked()


def test_charts_say_what_they_show(served: Served) -> None:
    for title in ("CPU", "Memory", "GPU load", "GPU memory", "Network, received", "Network, sent"):
        expect(served.chart(title)).to_be_visible()
    name = r"CPU of 4 ranks in the last 5 min\. Newest: rank 0 [\d.]+ cores, .*rank 3 [\d.]+ cores\. run 9 is active\."
    expect(served.chart("CPU")).to_have_accessible_name(re.compile(name))
    expect(served.title("CPU")).to_have_text(re.compile(r"CPU[\d.]+\S[\d.]+ of 64 cores"))
    expect(served.title("GPU memory")).to_contain_text("of 80 GiB")
    expect(served.section).to_contain_text("Linux does not account network traffic by process")
    expect(served.chart("Network, received")).to_have_accessible_name(
        re.compile(r"2 nodes .*node 1 \(host-1\) \d+ MB/s")
    )
    before = served.chart("CPU").get_attribute("aria-label")
    expect(served.chart("CPU")).not_to_have_attribute("aria-label", before or "")
    served.select("Lines of", "by node")
    expect(served.chart("CPU")).to_have_accessible_name(re.compile(r"CPU of 2 nodes .*node 1 \(host-1\) [\d.]+ cores"))
    expect(served.title("GPU memory")).to_contain_text("of 160 GiB")
    expect(served.section).not_to_contain_text("by process")
    served.select("Time shown", "last 1 min")
    expect(served.chart("CPU")).to_have_accessible_name(re.compile("in the last 1 min"))
    assert served.asked[-1]["seconds"] == "60"


def test_the_mouse_reads_all_charts_at_one_time(served: Served) -> None:
    plot = served.chart("CPU").locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] * (1 - 170 / 300), "y": 20})
    expect(served.values).to_have_count(1)
    expect(served.values).to_contain_text(re.compile(r"2 min (49|50|51) s ago · run 7 on 0-3"))
    for rank in range(4):
        expect(served.values).to_contain_text(re.compile(rf"rank {rank}: [\d.]+ cores"))
    expect(served.values.locator("svg")).to_have_count(4)
    cursors = served.section.evaluate(CURSORS)
    assert len(cursors) == 6
    assert float(cursors[0]) > 0
    assert max(map(float, cursors)) - min(map(float, cursors)) <= 2, "those of all charts are at the same time"
    served.picture("hover")
    served.section.get_by_role("combobox").first.hover()
    expect(served.values).to_have_count(0)
    assert set(served.section.evaluate(CURSORS)) <= {"none", "-10"}


def test_the_keyboard_reaches_and_reads_everything(served: Served) -> None:
    page = served.panel.page
    served.section.get_by_role("combobox", name="Lines of").focus()
    page.keyboard.press("Tab")
    expect(served.section.get_by_role("combobox", name="Time shown")).to_be_focused()
    for rank in range(4):
        page.keyboard.press("Tab")
        expect(served.legend.get_by_role("button", name=f"rank {rank}")).to_be_focused()
    page.keyboard.press("Enter")
    expect(served.panel.row(3)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Tab")
    expect(served.chart("CPU")).to_be_focused()
    page.keyboard.press("Home")
    expect(served.values).to_contain_text(re.compile("^(5 min 0|4 min 59) s ago"))
    page.keyboard.press("End")
    expect(served.values).to_contain_text("now · run 9 on 0-1")
    page.keyboard.press("ArrowLeft")
    expect(served.values).to_contain_text(re.compile(r"^2 s ago"))
    page.keyboard.press("Escape")
    expect(served.values).to_have_count(0)
    page.keyboard.press("Tab")
    expect(served.chart("Memory")).to_be_focused()
    page.keyboard.press("PageUp")
    expect(served.values).to_contain_text("GiB")
    label = served.chart("Memory").get_attribute("aria-label")
    served.until_asked()
    expect(served.values).to_have_attribute("aria-live", "off")  # it has changed by itself
    assert served.chart("Memory").get_attribute("aria-label") == label, "what has the focus is not read again and again"
    page.keyboard.press("Tab")
    expect(served.values).to_have_count(0)


def test_selected_ranks_are_in_front(served: Served) -> None:
    def names(pressed: bool) -> list[str]:
        return [each.inner_text().strip() for each in served.legend.get_by_role("button", pressed=pressed).all()]

    expect(served.legend.get_by_role("button")).to_have_count(4)
    assert names(True) == []
    served.panel.row(2).click()
    expect(served.legend.get_by_role("button", pressed=True)).to_have_count(1)
    assert names(True) == ["2"]
    assert names(False) == ["0", "1", "3"]
    nodes = served.section.get_by_role("group", name="Nodes in the charts")
    expect(nodes.get_by_role("button", pressed=True)).to_have_text("1 host-1")
    nodes.get_by_role("button", name="node 0").click()
    for rank in (0, 1, 2):
        expect(served.panel.row(rank)).to_have_attribute("aria-selected", "true")
    served.legend.get_by_role("button", name="rank 2").click()
    expect(served.panel.row(2)).to_have_attribute("aria-selected", "false")


def test_many_ranks_are_a_range_drawn_in_no_time(lab: Lab) -> None:
    with serving(lab, ranks=64, nodes=8, gpus=8) as served:
        expect(served.legend).to_contain_text("mean of 64 ranks")
        expect(served.legend).to_contain_text("Select ranks in the table to see their lines.")
        name = r"CPU of 64 ranks .* mean [\d.]+ cores, lowest [\d.]+ cores \(rank \d+\), highest "
        expect(served.chart("CPU")).to_have_accessible_name(re.compile(name))
        assert served.chart("CPU").evaluate(PAINTED) > 2000
        served.panel.row(1).click()
        served.panel.row(3).click(modifiers=["Control"])
        expect(served.legend.get_by_role("button", pressed=True)).to_have_count(2)
        served.chart("CPU").hover()
        expect(served.values.locator("div > div")).to_have_count(67)
        expect(served.values.locator("div > div").nth(3)).to_have_text(re.compile("^ *rank 1: "))
        served.picture("many")
        spent, floor = script_time(served), served.panel.page.evaluate(FLOOR)
        print(f"64 ranks: {spent:.1f} ms of script for each update, {floor:.1f} ms for the floor")
        assert spent < 3 * floor
        served.panel.row(0).click()
        served.panel.row(8).scroll_into_view_if_needed()
        served.panel.row(8).click(modifiers=["Shift"])
        expect(served.legend).to_contain_text("mean of the 9 selected ranks")
        expect(served.chart("CPU")).to_have_accessible_name(re.compile("CPU of 9 ranks"))


# Milliseconds of script, the median of five times, for what depends on the machine and its load alone.
FLOOR = """() => {
  const times = Array.from({ length: 5 }, () => {
    const began = performance.now();
    Float64Array.from({ length: 200000 }, Math.random).sort((a, b) => a - b);
    return performance.now() - began;
  });
  return times.sort((a, b) => a - b)[2];
}"""


def script_time(served: Served) -> float:
    """The milliseconds of script that an update takes, of all that the page does meanwhile."""
    devtools = served.panel.page.context.new_cdp_session(served.panel.page)
    devtools.send("Performance.enable")

    def spent() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return 1000 * next(float(each["value"]) for each in metrics if each["name"] == "ScriptDuration")

    served.until_asked()
    before = spent()
    for _ in range(5):
        served.until_asked()
    found = (spent() - before) / 5
    devtools.detach()
    return found


def test_what_fails_is_named_with_the_age_of_what_is_shown(served: Served) -> None:
    served.failure = "node 1 (host-1) does not answer"
    expect(served.section.get_by_role("alert")).to_have_text("node 1 (host-1) does not answer")
    expect(served.section).to_contain_text(re.compile(r"\(as of \d+ s ago\)"))
    expect(served.chart("CPU")).to_be_visible()
    served.picture("failure")
    assert served.panel.serious_findings(".jdist-resources") == []
    served.failure = ""
    expect(served.section.get_by_role("alert")).to_have_count(0)
    served.more["missing"] = [f"node {n} (host-{n}) did not answer within 2 s" for n in range(2, 8)]
    notes = served.section.get_by_role("list", name="What is missing")
    expect(notes.get_by_role("listitem")).to_have_count(5)
    expect(notes).to_contain_text("node 2 (host-2) did not answer within 2 s")
    expect(notes).to_contain_text("… and 2 more")
    served.gap = (180, 120)
    served.more["runs"] = [run_span(n, 290 - 9 * n, 288 - 9 * n) for n in range(30)]
    served.until_asked()
    served.until_asked()
    served.picture("gap")
    assert all("504" in each for each in served.panel.complaints)
    served.panel.complaints.clear()


def test_the_reason_is_shown_as_long_as_there_is_nothing_else(lab: Lab) -> None:
    made: list[Served] = []
    with panelled(lab, before=lambda page: made.append(Served(page, lab))) as panel:
        [served] = made
        served.failure = "made-up does not answer"
        served.toggle()
        expect(served.section.get_by_role("alert")).to_have_text("made-up does not answer")
        expect(served.section).not_to_contain_text("as of")
        served.failure = ""
        served.more["nodes"] = []
        expect(served.section).to_contain_text("Nothing has been measured yet.")
        assert panel.serious_findings(".jdist-resources") == []


def is_saved(request: Request) -> bool:
    """Whether it writes down the choice of an hour."""
    return "/api/workspaces/" in request.url and request.method == "PUT" and "3600" in (request.post_data or "")


def test_the_choices_are_there_after_a_reload(lab: Lab) -> None:
    with serving(lab, nodes=2) as served:
        page = served.panel.page
        served.select("Lines of", "by node")
        with page.expect_request(is_saved):  # a moment after the change
            served.select("Time shown", "last 1 h")
        page.goto(lab.address("lab"))
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        served.panel.open()
        served.panel.do("jdist:show-resources")
        expect(served.section.get_by_role("combobox", name="Lines of")).to_have_value("node")
        expect(served.section.get_by_role("combobox", name="Time shown")).to_have_value("3600")
        expect(served.chart("CPU")).to_have_accessible_name(re.compile("CPU of 2 nodes in the last 1 h"))


def test_a_command_opens_the_section(lab: Lab) -> None:
    made: list[Served] = []
    with lab.open_page(before=lambda page: made.append(Served(page, lab))) as page:
        [served] = made
        served.panel.open()
        served.panel.do("application:toggle-left-area")
        expect(served.panel.panel).not_to_be_visible()
        page.get_by_role("menuitem", name="Kernel", exact=True).click()
        page.locator(".lm-Menu-item").get_by_text("Distributed PyTorch (jdist)").click()
        page.get_by_role("menuitem", name="Show resources").click()
        expect(served.chart("CPU")).to_be_visible()
        expect(served.section.get_by_role("combobox", name="Lines of")).to_be_focused()
        served.panel.do("apputils:activate-command-palette")
        page.locator(".lm-CommandPalette-input").fill("torch resources")
        expect(page.locator(".lm-CommandPalette-content")).to_contain_text("Show resources")


@pytest.mark.parametrize("width", [245, 320])
def test_little_room_and_every_theme(lab: Lab, width: int) -> None:
    with serving(lab, width, {"viewport": ZOOMED, "device_scale_factor": 1.5}, ranks=8, nodes=2, gpus=4) as served:
        for heading in ("Ranks", "Groups"):
            served.panel.panel.get_by_role("heading", name=heading).click()
        for theme in THEMES:
            served.theme(theme)
            assert not served.section.evaluate(IS_CUT_OFF)
            assert served.panel.serious_findings(".jdist-resources") == []
            served.until_asked()
            served.picture(f"{width}-{theme.removeprefix('JupyterLab ').replace(' ', '-')}")
        served.theme(THEMES[0])


@pytest.mark.usefixtures("traces")
def test_the_resources_of_a_real_cluster(lab: Lab, cluster: jdist.Cluster) -> None:
    with panelled(lab) as panel:
        panel.widen(SIDEBAR + 620)
        panel.choose("shared")
        expect(panel.row(3)).to_contain_text("idle")
        panel.panel.get_by_role("heading", name="Resources").click()
        section = panel.panel.locator(".jdist-resources")
        cpu = section.get_by_role("img", name=re.compile("^CPU of 4 ranks"))
        expect(cpu).to_have_accessible_name(re.compile(r"rank 0 [\d.]+ cores?.* rank 3 [\d.]+ cores?"))
        expect(section.get_by_role("img", name=re.compile("^Memory of 4 ranks"))).to_have_accessible_name(
            re.compile(r"rank 0 [\d.]+ [MG]iB")
        )
        expect(section.get_by_role("img", name=re.compile("^Network, received of 2 nodes"))).to_be_visible()
        run = cluster.run(
            "import time\nuntil = time.monotonic() + 600\nwhile time.monotonic() < until: pass", background=True
        )
        try:
            expect(cpu).to_have_accessible_name(re.compile(rf"run {run.number} is active"))
            expect(cpu).to_have_accessible_name(re.compile(r"rank 0 (0\.[1-9]|1)"))  # four ranks, and few cores
        finally:
            run.cancel()
            assert run.wait(LONG)
        expect(cpu).not_to_have_accessible_name(re.compile("is active"))
        (lab.pictures / "resources-real.png").write_bytes(panel.page.screenshot())
        assert not panel.complaints
