"""A run's timeline and how far cells are, in a real JupyterLab with a real cluster of two nodes."""

from __future__ import annotations

import base64
import json
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

import jdist
from jdist.client.measure.columns import MIME as TRACE_MIME
from support.lab.accessibility import findings_in_all_themes
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

FAILED = "Failed to load resource"
ATTACH, STRAGGLES, TRACES, WAITS, DETACH = range(5)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    """%%dist
import time
t = torch.ones(1024)
for step in range(3):
    if rank == 2: time.sleep(0.2)
    dist.all_reduce(t)""",
    "%dist trace",
    """%%dist
import os, time
while rank > 1 and not os.path.exists('SIGNAL'):
    time.sleep(0.02)""",
    "%dist detach",
]


@pytest.fixture(scope="module")
def opened(lab: Lab, signal_file: Path) -> Iterator[LabNotebook]:
    cells = [cell.replace("SIGNAL", str(signal_file)) for cell in CELLS]
    with lab.open_notebook(cells, name="timeline.ipynb") as notebook:
        yield notebook
        assert not notebook.complaints


@pytest.fixture
def notebook(opened: LabNotebook, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    """It uses the shared cluster."""
    opened.run(ATTACH)
    yield opened
    opened.run(DETACH)


def hover(timeline: Locator, rank: int) -> str:
    """What is said of the call under the mouse, somewhere on the rank's row."""
    canvas, tip = timeline.locator("canvas"), timeline.locator(".jdist-TimelineTip")
    box = canvas.bounding_box()
    assert box is not None
    y = 22 + (box["height"] - 22) * (rank + 0.5) / 4
    for part in range(1, 40):
        canvas.hover(position={"x": 76 + (box["width"] - 76) * part / 40, "y": y})
        if tip.is_visible() and "all_reduce" in tip.inner_text():
            return tip.inner_text()
    raise AssertionError("no call is drawn there")


CLOSE = """() => {
  const tabs = [...window.jupyterapp.shell.widgets('main')];
  tabs.filter(tab => tab.node.querySelector(':scope > .jdist-Timeline')).forEach(tab => tab.close());
}"""


@pytest.fixture
def page(notebook: LabNotebook) -> Iterator[Page]:
    """Tabs of timelines are closed after the test."""
    yield notebook.page
    notebook.page.evaluate(CLOSE)
    expect(notebook.page.locator(".jp-MainAreaWidget > .jdist-Timeline")).to_have_count(0)


def test_a_runs_timeline_opens_from_its_output(notebook: LabNotebook, page: Page) -> None:
    notebook.run(STRAGGLES)
    notebook.output(STRAGGLES).get_by_role("button", name="Timeline").click()
    timeline = page.locator(".jp-MainAreaWidget > .jdist-Timeline")
    expect(timeline.locator(".jdist-TimelineHead")).to_contain_text("rank 2 made others wait")
    expect(timeline.locator("canvas")).to_have_attribute("data-calls", "12")
    said = hover(timeline, rank=0)
    assert re.search(r"^rank 0: all_reduce #\d+ of world$", said, re.MULTILINE)
    assert "[1024] float32" in said
    assert "4,096 bytes" in said
    assert "cell line 6" in said
    canvas, told = timeline.locator("canvas"), timeline.get_by_role("status")
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "+", "+"):
        page.keyboard.press(key)
    expect(told).to_contain_text(re.compile(r"rank 0: all_reduce #\d+ of world .* waited .* for rank 2"))
    page.keyboard.press("ArrowDown")
    expect(told).to_contain_text("rank 1: all_reduce")
    notebook.picture("timeline")
    page.keyboard.press("0")
    assert findings_in_all_themes(notebook.page, ".jdist-Timeline") == []
    timeline.get_by_role("button", name="Refresh").click()
    expect(told).to_be_empty()


@pytest.mark.parametrize("says", ["nothing", "that there is no such thing"])
def test_where_the_server_does_not_know_the_kernel_is_asked(notebook: LabNotebook, page: Page, says: str) -> None:
    """As where jdist is in the kernel's environment only, or the kernel runs elsewhere."""
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.abort() if says == "nothing" else route.fulfill(status=404, body="<h1>404</h1>")

    notebook.run(STRAGGLES)
    notebook.until_ready()  # a kernel that is busy is not asked
    page.route("**/trace?*", answer)
    with page.expect_console_message(lambda said: said.text.startswith(FAILED)):  # the browser's own words
        notebook.output(STRAGGLES).get_by_role("button", name="Timeline").click()
    assert notebook.complaints.pop().startswith(FAILED)
    timeline = page.locator(".jp-MainAreaWidget > .jdist-Timeline")
    expect(timeline.locator("canvas")).to_have_attribute("data-calls", "12")
    expect(timeline.locator(".jdist-TimelineHead")).to_contain_text("rank 2 made others wait")
    assert len(asked) == 1
    page.unroute("**/trace?*")


def test_a_trace_in_a_notebook_is_drawn_and_stays_small(notebook: LabNotebook) -> None:
    notebook.run(STRAGGLES)
    notebook.run(TRACES)
    timeline = notebook.output(TRACES).locator(".jdist-Timeline")
    expect(timeline.locator("canvas")).to_have_attribute("data-calls", "12")
    expect(timeline.locator(".jdist-TimelineHead")).to_contain_text("rank 2 made others wait")
    canvas = timeline.locator("canvas")
    canvas.focus()
    before = notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex")
    notebook.page.keyboard.press("ArrowRight")
    notebook.page.keyboard.press("ArrowDown")
    expect(timeline.get_by_role("status")).to_contain_text("rank 1: all_reduce")
    assert notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activeCellIndex") == before
    data = notebook.page.evaluate(
        "i => window.jupyterapp.shell.currentWidget.content.model.cells.get(i).toJSON().outputs[0].data", TRACES
    )
    drawn = data[TRACE_MIME]
    assert len(json.dumps(drawn)) < len("".join(data["text/html"]))
    assert findings_in_all_themes(notebook.page, ".jp-OutputArea .jdist-Timeline") == []


def made_up(ranks: int, calls: int) -> dict[str, Any]:
    """A trace in which every rank calls the same, one call after another, and waits for half of each."""
    every = range(ranks * calls)
    held = {
        "began": ("I", [i % calls * 1000 for i in every]),
        "work": ("I", [i % calls * 1000 + 400 for i in every]),
        "ended": ("I", [i % calls * 1000 + 800 for i in every]),
        "waited": ("I", [400 for _ in every]),
        "kind": ("H", [0 for _ in every]),
        "number": ("I", [i % calls + 1 for i in every]),
        "whom": ("H", [1 for _ in every]),
        "last": ("i", [3 for _ in every]),
        "meeting": ("I", [i % calls for i in every]),
        "flags": ("B", [0 for _ in every]),
    }
    row = {"node": "0 a", "calls": calls, "began": 0, "ended": calls / 1000, "is_running": False, "left_out": 0}
    return {
        "version": 1,
        "cluster": "nobody's",
        "run": 5,
        "headline": f"run 5 · {ranks} ranks",
        "finding": "",
        "notes": [],
        "absent": {},
        "span": calls / 1000,
        "tick": 1e-6,
        "groups": ["world"],
        "kinds": [{"op": "all_reduce", "group": 0, "detail": "", "bytes": 64, "line": 4}],
        "whom": ["", "for rank 3"],
        "rows": [{**row, "rank": rank, "suffered": 0, "caused": 0} for rank in range(ranks)],
        "columns": {
            name: base64.b64encode(zlib.compress(array(code, values).tobytes())).decode()
            for name, (code, values) in held.items()
        },
    }


def test_hundreds_of_ranks_scroll_in_a_notebook(lab: Lab) -> None:
    lab.server.write_notebook(["%dist trace"], "many.ipynb")
    path = lab.server.notebooks / "many.ipynb"
    content = json.loads(path.read_text())
    data = {TRACE_MIME: made_up(256, 400), "text/plain": "a trace"}
    content["cells"][0]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    path.write_text(json.dumps(content))
    with lab.open_page("lab/tree/many.ipynb") as page:
        notebook = LabNotebook(page, lab.pictures)
        notebook.until_ready()
        timeline = notebook.output(0).locator(".jdist-Timeline")
        canvas = timeline.locator("canvas")
        expect(canvas).to_have_attribute("data-calls", "102400")
        box = canvas.bounding_box()
        assert box is not None
        assert box["height"] <= 320
        canvas.focus()
        page.keyboard.press("ArrowRight")
        for _ in range(30):
            page.keyboard.press("ArrowDown")
        expect(timeline.get_by_role("status")).to_contain_text("rank 30: all_reduce #1 of world · 64 bytes")
        assert timeline.locator(".jdist-TimelineScroll").evaluate("e => e.scrollTop") > 100, "it is in sight"
        for _ in range(5):
            page.keyboard.press("+")
        notebook.picture("timeline-many", timeline)
        notebook.end_kernel()


def test_a_cell_shows_how_far_it_is(notebook: LabNotebook, signal_file: Path) -> None:
    signal_file.unlink(missing_ok=True)
    notebook.start(WAITS)
    try:
        mark = notebook.cell(WAITS).get_by_role("img", name="2 of 4 ranks done")
        expect(mark).to_have_text("2/4 done")
        notebook.picture("cell-progress", notebook.cell(WAITS))
    finally:
        signal_file.touch()
        notebook.until_over(WAITS)
    expect(notebook.cell(WAITS).get_by_role("img", name="4 of 4 ranks done")).to_have_text("4/4 ✓")
    assert findings_in_all_themes(notebook.page, ".jdist-CellProgress") == []
    assert notebook.cell(ATTACH).locator(".jdist-CellProgress").count() == 0


def test_cells_for_ranks_are_highlighted_as_python(notebook: LabNotebook) -> None:
    """JupyterLab does it by itself: the cell's own line is taken for an expression, and the rest is Python."""
    spans = notebook.cell(STRAGGLES).locator(".cm-line span[class]")
    classes = dict(zip(spans.all_inner_texts(), spans.evaluate_all("all => all.map(e => e.className)"), strict=True))
    plain = "() => window.jupyterapp.shell.currentWidget.content.widgets[1].model.mimeType"
    assert notebook.page.evaluate(plain) in ("text/x-ipython", "text/x-python")
    assert classes["for"] == classes["import"] == classes["if"]
    assert classes["for"] != classes.get("0.2")
    assert "0.2" in classes
