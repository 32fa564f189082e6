"""The extension in Notebook 7, where a page is one notebook: what is there of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import jdist
from support.lab.browsing import Lab, LabNotebook
from support.lab.panelled import Panelled, shows, type_in_terminal
from support.lacking import lacking

pytestmark = pytest.mark.usefixtures("traces")
ATTACH, SAYS, DETACH = range(3)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    "%%dist\nx = rank * 20\nprint('the share of rank', 'abcd'[rank])\ndist.barrier()",
    "%dist detach",
]


@pytest.fixture(scope="module")
def opened(lab: Lab) -> Iterator[LabNotebook]:
    if importlib.util.find_spec("notebook") is None:
        lacking("Notebook 7 is not installed: pip install notebook")
    with lab.open_notebook(CELLS, name="seven.ipynb", below="notebooks") as notebook:
        faults: list[str] = []
        notebook.page.on("pageerror", lambda error: faults.append(error.stack or error.message))
        yield notebook
        # Notebook itself complains now and then
        assert not [fault for fault in (*faults, *notebook.complaints) if "jdist" in fault]


@pytest.fixture
def notebook(opened: LabNotebook, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    """It uses the shared cluster."""
    opened.run(ATTACH)
    yield opened
    opened.run(DETACH)


def test_a_runs_output_by_rank(notebook: LabNotebook) -> None:
    notebook.run(SAYS)
    output = notebook.output(SAYS)
    expect(output.get_by_role("tab")).to_have_count(5)
    output.get_by_role("tab").nth(3).click()
    expect(output.locator(".jdist-RunBody")).to_contain_text("the share of rank c")
    expect(output.locator(".jdist-RunBody")).not_to_contain_text("the share of rank a")
    expect(notebook.cell(SAYS).get_by_role("img", name="4 of 4 ranks done")).to_be_visible()
    output.get_by_role("button", name="Timeline").click()
    timeline = notebook.page.locator("#jp-down-stack .jdist-Timeline")
    expect(timeline.locator("canvas")).to_have_attribute("data-calls", "4")
    expect(timeline.locator("canvas")).to_be_in_viewport(ratio=0.9)
    notebook.picture("notebook7-timeline")


def test_the_panel_and_what_a_row_offers(notebook: LabNotebook) -> None:
    notebook.run(SAYS)
    panel = Panelled(notebook.page)
    panel.open()
    panel.choose("shared")
    expect(panel.rows).to_have_count(4)
    expect(panel.row(3)).to_contain_text("idle")
    assert panel.serious_findings() == []
    panel.menu(1, "Log of a rank")
    log = notebook.page.locator("#jp-down-stack").get_by_role("document", name="Log of rank 1 of shared")
    expect(log).not_to_be_empty()
    expect(log).to_be_in_viewport(ratio=0.9)
    notebook.picture("notebook7-panel")
    with notebook.page.expect_popup() as opened:  # a terminal is a page of its own here
        panel.menu(2, "Console of a rank")
    terminal = opened.value
    shows(terminal, "In [")
    type_in_terminal(terminal, "x + 2")
    shows(terminal, ": 42")
    terminal.evaluate("() => window.jupyterapp.serviceManager.terminals.shutdownAll()")
    terminal.close()
