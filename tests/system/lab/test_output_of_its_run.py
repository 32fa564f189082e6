"""An output belongs to its run for ever: what its buttons do, and what it shows after the page was loaded again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Route, expect

import jdist
from support.lab.accessibility import findings_in_all_themes
from support.lab.browsing import LONG, Lab, LabNotebook
from support.waits import eventually

pytestmark = pytest.mark.usefixtures("traces")

ATTACH, HANGS, WRITES, AFTER, DETACH = range(5)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    "%%dist -r 0-1\nif rank == 0: dist.recv(torch.zeros(1), src=1)\nprint('rank', rank, 'goes on')",
    """%%dist
import os, time
print('it begins')
import jdist; jdist.log(loss=1.0, step=0)
while not os.path.exists('SIGNAL'): time.sleep(0.02)
for i in range(1, 50): jdist.log(loss=1 / i, step=i)
print('the end of rank', 'abcd'[rank])""",
    "1 + 1",
    "%dist detach",
]
FOREVER = "import time\nwhile True: time.sleep(0.02)"


@pytest.fixture
def notebook(lab: Lab, signal_file: Path, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    signal_file.unlink(missing_ok=True)
    cells = [cell.replace("SIGNAL", str(signal_file)) for cell in CELLS]
    with lab.open_notebook(cells, name="its-run.ipynb", viewport={"width": 1280, "height": 1000}) as opened:
        opened.run(ATTACH)
        yield opened
        signal_file.touch()
        opened.run(DETACH)


def action(output: Locator, name: str) -> Locator:
    return output.get_by_role("status").get_by_role("button", name=name)


def test_an_interrupt_leaves_what_runs_beside_it(notebook: LabNotebook, cluster: jdist.Cluster) -> None:
    beside = cluster.run(FOREVER, "2-3", background=True)
    try:
        notebook.start(HANGS)
        output = notebook.output(HANGS)
        action(output, "%dist interrupt --run").click()
        notebook.until_over(HANGS)
        expect(output.locator(".jdist-RunFailure").first).to_contain_text("interrupted")
        expect(output.get_by_role("status").get_by_role("button")).to_have_count(0)
        assert not beside.is_done
    finally:
        cluster.interrupt(run=beside.number)
        beside.wait(LONG)


def test_a_cell_for_the_missing_rank_runs_while_the_notebook_waits(notebook: LabNotebook) -> None:
    notebook.start(HANGS)
    output, page = notebook.output(HANGS), notebook.page
    action(output, "%%dist -r 1").click()
    field = page.get_by_role("textbox", name="Code of the cell")
    expect(field).to_be_focused()
    field.press_sequentially("dist.send(torch.ones(1), dst=0)\n'sent'")
    notebook.picture("cell-beside-a-hang")
    page.locator(".jp-Dialog").get_by_role("button", name="Run").click()
    notebook.until_over(HANGS)
    expect(output).to_contain_text("rank 0 goes on")
    expect(output.locator(".jdist-RunVerdict")).to_be_hidden()
    expect(output.get_by_role("log")).to_contain_text("'sent'")  # what the cell has written outlives the verdict
    notebook.picture("cell-beside-a-hang-over", output)
    expect(output.locator(".jdist-RunFailure")).to_have_count(0)


def test_why_a_cell_beside_a_hang_was_refused_stays(notebook: LabNotebook, cluster: jdist.Cluster) -> None:
    notebook.start(HANGS)
    output, page = notebook.output(HANGS), notebook.page

    def refuse(route: Route) -> None:  # it is over before the answer comes
        cluster.interrupt()
        route.fulfill(status=410, json={"message": "the cluster is gone"})

    page.route("**/jdist/clusters/shared/cells*", refuse)
    action(output, "%%dist -r 1").click()
    page.get_by_role("textbox", name="Code of the cell").fill("1")
    page.locator(".jp-Dialog").get_by_role("button", name="Run").click()
    notebook.until_over(HANGS)
    expect(output.get_by_role("log")).to_contain_text("%%dist -r 1")
    expect(output.get_by_role("log")).to_contain_text("failed: the cluster is gone")


def test_what_a_page_has_missed_is_brought_back(
    lab: Lab, notebook: LabNotebook, signal_file: Path, cluster: jdist.Cluster
) -> None:
    notebook.start(WRITES)
    expect(notebook.output(WRITES)).to_contain_text("it begins")
    expect(notebook.output(WRITES)).to_contain_text("4 points")
    page = notebook.page
    address = page.url
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.goto("about:blank")
    signal_file.touch()
    assert eventually(lambda: not cluster.status().runs, LONG)
    page.goto(address)
    notebook.until_ready()
    output = notebook.output(WRITES)
    expect(output).to_contain_text("the end of rank a")
    expect(output).to_contain_text("the end of rank d")
    expect(output.locator(".jdist-RunFooter")).to_contain_text("4 ranks")
    expect(output.locator(".jdist-RunFooter")).not_to_contain_text("done")
    expect(output).to_contain_text("4 ranks · 200 points")  # so is the chart
    # It is in the notebook, too, and so is saved.
    source = "i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.sharedModel.toJSON()"
    kept = page.evaluate(source, WRITES)
    assert kept["outputs"][0]["data"]["application/vnd.jdist.run.v1+json"]["state"] == "done"


def test_a_run_of_a_cluster_that_is_gone(lab: Lab, fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    first = fresh_cluster(name="reused")
    cells = ["%load_ext jdist\n%dist attach reused", "%%dist\ndist.barrier()", "%dist detach"]
    with lab.open_notebook(cells, name="gone.ipynb") as notebook:
        notebook.run(0)
        notebook.run(1)
        notebook.run(2)
        first.stop()
        second = fresh_cluster(name="reused")
        assert second.id != first.id
        second.run("dist.barrier()")
        output = notebook.output(1)
        notebook.page.wait_for_function(
            "id => fetch(document.baseURI.split('/lab')[0] + '/jdist/clusters/reused').then(r => r.json())"
            ".then(found => found.cluster === id)",
            arg=second.id,
        )
        output.get_by_role("button", name="Timeline").click()
        expect(output.locator(".jdist-RunFooter")).to_contain_text("another one has that name now")
        assert findings_in_all_themes(notebook.page, ".jdist-Run") == []
        assert notebook.page.locator(".jdist-TimelineScroll").count() == 0
