"""The settings: each has its effect at once, in JupyterLab and in Notebook 7."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

import jdist
from jdist.notebook.output.run_json import MIME
from support.lab.accessibility import IN_FORMS, findings_in_all_themes
from support.lab.browsing import LONG, Lab, LabNotebook
from support.lab.panelled import HANG, Panelled, panelled

RANKS, LINES = 4, 12
APPLICATIONS = ("lab/tree", "notebooks")
# As the settings editor does it.
SET = """async values => {
  const { service } = window.jupyterapp.pluginRegistry._plugins.get('@jupyterlab/apputils-extension:settings');
  await service.upload('jdist:plugin', JSON.stringify(values));
}"""
NOTE_INTERVALS = """
window.intervals = [];
const setUsually = window.setInterval;
window.setInterval = (callback, delay, ...rest) => {
  window.intervals.push(delay);
  return setUsually(callback, delay, ...rest);
};
"""


def set_to(page: Page, **values: Any) -> None:
    """These settings, and the defaults of the others."""
    page.evaluate(SET, values)


def write_notebook(lab: Lab, name: str) -> None:
    """A notebook with the saved output of a run: a bar for each rank, and some lines."""
    texts = [{"ranks": str(rank), "text": f"train {rank} %"} for rank in range(RANKS)]
    bars = {"kind": "text", "ranks": f"0-{RANKS - 1}", "text": "train 0-3 %", "texts": texts}
    lines = {"kind": "text", "ranks": f"0-{RANKS - 1}", "text": "\n".join(f"line {i}" for i in range(LINES))}
    parts = [{"ranks": f"0-{RANKS - 1}", "state": "value", "seconds": 0.5}]
    run = {"version": 1, "run": 7, "cluster": "nobody's", "state": "done", "seconds": 0.6, "ranks": parts}
    data = {MIME: {**run, "segments": [bars, lines]}, "text/plain": "a run"}
    output = {"output_type": "display_data", "metadata": {}, "data": data}
    lab.server.write_notebook(["%%dist\n..."], name)
    path = lab.server.notebooks / name
    content = json.loads(path.read_text())
    content["cells"][0]["outputs"] = [output]
    path.write_text(json.dumps(content))


@pytest.fixture(params=APPLICATIONS)
def notebook(lab: Lab, request: pytest.FixtureRequest) -> Iterator[LabNotebook]:
    write_notebook(lab, "settings.ipynb")
    with lab.open_page(f"{request.param}/settings.ipynb") as page:
        notebook = LabNotebook(page, lab.pictures)
        notebook.until_ready()
        yield notebook
        set_to(page)
        notebook.end_kernel()


def strip(output: Locator) -> Locator:
    return output.locator(".jdist-RunTabs.jdist-mod-strip")


def test_outputs_are_folded_as_set(notebook: LabNotebook) -> None:
    page, output = notebook.page, notebook.output(0)
    bar, box = output.locator("summary"), output.locator(".jdist-RunBody.jdist-mod-long")
    expect(output.get_by_role("tab")).to_have_count(RANKS + 1)
    for folded in (strip(output), bar, box):
        expect(folded).to_have_count(0)
    set_to(page, maxRankTabs=RANKS - 1)
    expect(strip(output)).to_have_count(1)
    set_to(page, maxRankLines=RANKS - 1)
    expect(strip(output)).to_have_count(0)
    expect(bar).to_have_text("train 0-3 %")
    set_to(page, maxOutputLines=LINES - 1)
    expect(bar).to_have_count(0)
    expect(box).to_have_count(1)
    set_to(page)
    expect(box).to_have_count(0)


def test_the_state_beside_a_cell_is_shown_as_set(notebook: LabNotebook) -> None:
    mark = notebook.cell(0).get_by_role("img", name="4 of 4 ranks done")
    expect(mark).to_be_visible()
    set_to(notebook.page, showCellMarks=False)
    expect(mark).to_have_count(0)
    set_to(notebook.page)
    expect(mark).to_be_visible()


@pytest.fixture
def panel(lab: Lab) -> Iterator[Panelled]:
    with panelled(lab) as panel:
        yield panel
        set_to(panel.page)


def test_the_settings_editor_has_all(panel: Panelled, lab: Lab) -> None:
    panel.do("settingeditor:open", query="jdist")
    form = panel.page.locator(".jp-SettingsEditor, .jp-SettingsPanel")
    field = form.get_by_label("Notify me when a cluster is ready or gone")
    expect(field).not_to_be_checked()
    panel.page.screenshot(path=lab.pictures / "settings.png")
    for text in (
        "Maximum number of ranks with a tab each",
        "Maximum lines of output without scrolling",
        "Show the state of a run beside its cell",
    ):
        expect(form.get_by_text(text, exact=True).first).to_be_attached()
    assert findings_in_all_themes(panel.page, ".jp-SettingsPanel", apart_from=IN_FORMS) == []


@pytest.mark.usefixtures("traces")
def test_notifications_are_those_that_were_chosen(
    panel: Panelled, cluster: jdist.Cluster, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    panel.show_notifications()

    @contextlib.contextmanager
    def hang() -> Iterator[int]:
        """A run that cannot finish, once the page knows that; a notification would go with the verdict."""
        panel.do("jdist:choose", cluster="shared")
        run = cluster.run(HANG, background=True)
        try:
            expect(panel.verdict).to_contain_text(f"run {run.number} cannot finish")
            yield run.number
        finally:
            run.cancel()
            assert run.wait(LONG)
        expect(panel.cluster("shared")).to_contain_text("idle")

    def told(text: str) -> Locator:
        return panel.notifications.get_by_text(text)

    set_to(panel.page, notifyHangs=False, notifyClusters=True)
    with hang() as silent:
        own = fresh_cluster(1, name="announced")
        expect(told("Cluster announced is ready.")).to_have_count(1)
        own.stop()
        expect(told("Cluster announced is gone.")).to_have_count(1)
        expect(told(f"run {silent} cannot finish")).to_have_count(0)

    set_to(panel.page)
    own = fresh_cluster(1, name="unannounced")
    expect(panel.cluster("unannounced")).to_contain_text("idle")
    with hang() as told_of:
        expect(told(f"run {told_of} cannot finish")).to_have_count(1)
    expect(told("Cluster unannounced is ready.")).to_have_count(0)


@pytest.mark.usefixtures("traces")
def test_events_are_told_as_set(panel: Panelled, fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    panel.show_notifications()
    own = fresh_cluster(3, name="mortal", on_death="wait")
    panel.do("jdist:choose", cluster="mortal")
    for rank, is_told in ((0, False), (1, False), (2, True)):  # that of rank 0 has come once that of rank 1 is seen
        set_to(panel.page, notifyEvents=is_told)
        expect(panel.row(rank)).to_contain_text("idle")
        os.kill(own.status().ranks[rank].pid, signal.SIGKILL)
        expect(panel.row(rank)).to_contain_text("gone")
    expect(panel.notifications).to_contain_text(re.compile("rank 2 .*is lost"))
    assert "rank 0 " not in panel.notifications.inner_text()


def test_times_are_drawn_again_as_often_as_set(lab: Lab) -> None:
    with panelled(lab, before=lambda page: page.add_init_script(NOTE_INTERVALS)) as panel:
        panel.page.wait_for_function("() => window.intervals.includes(1000)")
        set_to(panel.page, refreshSeconds=2.5)
        panel.page.wait_for_function("() => window.intervals.includes(2500)")
        set_to(panel.page)


def test_the_status_bar_is_as_set(panel: Panelled, cluster: jdist.Cluster) -> None:
    expect(panel.status).to_be_visible()
    set_to(panel.page, showStatus=False)
    expect(panel.status).not_to_be_visible()
    set_to(panel.page)
    expect(panel.status).to_be_visible()
