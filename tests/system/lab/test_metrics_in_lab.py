"""Metrics in a real JupyterLab: charts grow while the cell runs, tell each rank's numbers, and are saved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Response, Route, expect

import jdist
from jdist.client.metrics.chart import MetricChart
from jdist.core.messages.runs import MetricsLogged
from jdist.core.metrics import RunMetrics
from jdist.worker.metrics import MetricBuffer
from support.lab.accessibility import ANY, DARK, findings_in_all_themes, use_theme
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

ATTACH, TRAINS, DETACH = range(3)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    """%%dist
import jdist, math, os, time
for i in range(200):
    loss = 2 / (1 + i / 20) + 0.2 * math.sin(i / 3 + rank) / (1 + i / 50)
    jdist.log(loss=math.nan if rank == 3 and i >= 120 else loss, lr=0.1 * 0.99**i, step=i)
while not os.path.exists('SIGNAL'): time.sleep(0.02)
for i in range(200, 220):  # so few that no rank is marked because it is behind for a moment
    jdist.log(loss=0.1 + rank / 100, lr=0.01, step=i)
print('trained')""",
    "%dist detach",
]
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
OPEN = "path => window.jupyterapp.commands.execute('docmanager:open', { path })"
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"
# How many pixels of a chart have been painted.
PAINTED = """canvas => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let painted = 0;
    for (let i = 3; i < data.length; i += 4) painted += data[i] > 0;
    return painted;
}"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, signal_file: Path) -> Iterator[LabNotebook]:
    cells = [cell.replace("SIGNAL", str(signal_file)) for cell in CELLS]
    with lab.open_notebook(cells, name="metrics.ipynb", viewport={"width": 1280, "height": 1000}) as opened:
        yield opened
        assert not opened.complaints


def hover(chart: Locator, share: float) -> Locator:
    """Put the mouse on the plot, so far from its left edge; the values that are shown then."""
    plot = chart.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] * share, "y": box["height"] / 2})
    return values(chart.page)


def values(page: Page) -> Locator:
    """The values at the cursor of a chart."""
    return page.locator(".jdist-ChartValues:visible")


def test_charts_grow_while_the_cell_runs_and_tell_each_ranks_numbers(
    notebook: LabNotebook, cluster: jdist.Cluster, signal_file: Path
) -> None:
    signal_file.unlink(missing_ok=True)  # of an attempt before this one
    notebook.run(ATTACH)
    notebook.start(TRAINS)
    try:
        output = notebook.output(TRAINS)
        charts = output.locator(".jdist-Metric")
        expect(charts).to_have_count(2)
        expect(charts.first).to_contain_text("loss")
        marks = output.locator(".jdist-MetricsMarks")
        expect(marks).to_have_text("⚠ rank 3: loss is NaN since step 120")
        expect(output.locator(".jdist-MetricsTable")).to_contain_text("4 ranks · 1,600 points")
        canvas = charts.first.locator("canvas")
        assert canvas.evaluate(PAINTED) > 2000
        shown = hover(charts.first, 0.995)
        expect(shown).to_contain_text(re.compile("step 19[789]"))
        expect(shown).to_contain_text("⚠ rank 3: NaN")
        expect(shown.locator("div > div")).to_have_count(7)  # mean, lowest, highest, four ranks
        assert re.search(r"rank 0: 0\.\d+", shown.inner_text())
        notebook.picture("metrics-live", output)
        chart = charts.first.locator(".jdist-Chart").element_handle()
    finally:
        signal_file.touch()
    notebook.until_over(TRAINS)
    expect(marks).to_have_text("⚠ rank 3: loss was NaN or infinite 80 times, first at step 120")
    assert chart is not None
    assert chart.is_visible(), "it was not made anew; its lines may be, if a rank is marked meanwhile"
    output.locator(".jdist-MetricsTable summary").click()
    table = output.locator(".jdist-MetricsTable table")
    expect(table.locator("tbody tr").first).to_have_text(re.compile(r"loss\s*219\s*0.115\s*0.1\s*0.13\s*4"))
    expect(hover(charts.first, 0.5)).to_contain_text("rank 2")
    notebook.picture("metrics-light", output)


def test_the_keyboard_reads_a_chart_and_leaves_the_notebook_alone(notebook: LabNotebook) -> None:
    chart = notebook.output(TRAINS).locator(".jdist-Chart").first
    shown = values(notebook.page)
    chart.focus()
    chart.press("Home")
    expect(shown).to_contain_text("step 0")
    chart.press("ArrowRight")
    expect(shown).to_contain_text("step 1")
    chart.press("End")
    expect(shown).to_contain_text("step 219")
    expect(shown).to_contain_text("rank 3: 0.13")
    chart.press("Escape")
    expect(shown).to_be_hidden()
    expect(chart).to_be_focused()


def test_charts_follow_the_theme_and_are_accessible(notebook: LabNotebook) -> None:
    output = notebook.output(TRAINS)
    colour = "canvas => canvas.closest('.jdist-Chart') && getComputedStyle(canvas).color"
    assert output.locator("canvas").first.evaluate(colour)
    use_theme(notebook.page, DARK)
    hover(notebook.output(TRAINS).locator(".jdist-Metric").first, 0.7)
    notebook.picture("metrics-dark", output)
    assert findings_in_all_themes(notebook.page, ".jdist-Metrics", ANY) == []


def test_a_saved_notebook_has_its_charts(notebook: LabNotebook) -> None:
    notebook.page.evaluate(SAVE)
    notebook.page.reload()
    notebook.until_ready()
    charts = notebook.output(TRAINS).locator(".jdist-Metric")
    expect(charts).to_have_count(2)
    expect(charts.first.locator("canvas")).to_be_visible()
    assert charts.first.locator("canvas").evaluate(PAINTED) > 2000
    expect(hover(charts.first, 0.001)).to_contain_text("step 0")
    notebook.run(ATTACH)
    notebook.run(DETACH)


def write_notebook(lab: Lab, name: str, ranks: int, steps: int, names: int) -> None:
    """A notebook with the saved charts of a run that nobody has made."""
    logged = RunMetrics(7)
    for rank in range(ranks):
        buffer = MetricBuffer(rank)
        buffer.begin(7)
        for step in range(steps):
            buffer.add(step, {f"name{n}": (rank + 1) / (step + n + 10) for n in range(names)})
        logged.feed(MetricsLogged(*buffer.take()))
    bundle = MetricChart(7, logged.snapshot()).bundle()
    output: dict[str, Any] = {"output_type": "display_data", "data": bundle, "metadata": {}}
    cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [output], "source": "", "id": "a"}
    content = {"cells": [cell], "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}
    (lab.server.notebooks / name).write_text(json.dumps(content))


def test_many_ranks_and_names_are_drawn_fast(lab: Lab) -> None:
    write_notebook(lab, "many.ipynb", ranks=64, steps=1000, names=4)
    with lab.open_page("lab/tree/many.ipynb") as page:
        notebook = LabNotebook(page, lab.pictures)
        notebook.until_ready()
        charts = page.locator(".jdist-Metric")
        expect(charts).to_have_count(4)
        expect(charts.nth(3).locator("canvas")).to_be_visible()
        shown = hover(charts.nth(3), 0.5)
        expect(shown.locator("div > div")).to_have_count(67)
        notebook.picture("metrics-many")
        notebook.end_kernel()


def draws_charts(response: Response) -> bool:
    """Whether it is the part of the extension with uPlot, told by the names that it gives to parts of a chart."""
    return "/extensions/jdist/static/" in response.url and response.ok and "u-over" in response.text()


def test_uplot_is_fetched_with_the_first_chart(lab: Lab) -> None:
    write_notebook(lab, "one.ipynb", ranks=2, steps=5, names=1)
    fetched: list[Response] = []

    def note(response: Response) -> None:
        fetched.append(response)

    with lab.open_page(before=lambda page: page.on("response", note)) as page:
        expect(page.locator('.lm-TabBar-tab[data-id="jdist-panel"]')).to_be_visible()  # the extension is there
        notebook = LabNotebook(page, lab.pictures)
        assert any("/extensions/jdist/static/" in response.url for response in fetched)
        assert not any(draws_charts(response) for response in fetched if response.url.endswith(".js"))
        with page.expect_response(draws_charts):
            page.evaluate(OPEN, "one.ipynb")
        expect(page.locator(".jdist-Metric canvas")).to_be_visible()
        notebook.until_ready()
        notebook.end_kernel()


def test_a_chart_whose_code_is_not_fetched_says_so(lab: Lab) -> None:
    write_notebook(lab, "one.ipynb", ranks=2, steps=5, names=1)

    def refuse_charts(route: Route) -> None:
        answer = route.fetch()
        route.abort() if "u-over" in answer.text() else route.fulfill(response=answer)

    def before(page: Page) -> None:
        page.route("**/extensions/jdist/static/*.js*", refuse_charts)

    with lab.open_page("lab/tree/one.ipynb", before=before) as page:
        notebook = LabNotebook(page, lab.pictures)
        notebook.until_ready()
        expect(page.locator(".jdist-Metric")).to_contain_text("its code could not be fetched. Reload the page.")
        notebook.end_kernel()
