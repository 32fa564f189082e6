"""Ranks are paused, looked into and continued in a real JupyterLab with a real cluster of two nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

import jdist
from support.lab.browsing import Lab, LabNotebook
from support.lab.panelled import Panelled

pytestmark = pytest.mark.usefixtures("traces")

ATTACH, DEFINES, LOOPS, LOOKS, SCRIPT = range(5)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    """# what each step does
%%dist
import os, time
def train_step(step):
    scale = step + rank
    while not os.path.exists('SIGNAL'):
        time.sleep(0.01)
    return scale""",
    """%%dist
for step in range(3, 4):
    total = train_step(step)
print('total', total)""",
    "%%dist\nscale, step",
    "%dist run FOLDER/a_script.py",
]
SOURCE = """import os, time
steps = 0
while not os.path.exists('OTHER'):
    time.sleep(0.01)
    steps += 1
print('ended')
"""


@pytest.fixture(scope="module")
def opened(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabNotebook, Path]]:
    folder = tmp_path_factory.mktemp("debugged")
    (folder / "a_script.py").write_text(SOURCE.replace("OTHER", str(folder / "other")))
    cells = [cell.replace("SIGNAL", str(folder / "end")).replace("FOLDER", str(folder)) for cell in CELLS]
    with lab.open_notebook(cells, name="debugged.ipynb", viewport={"width": 1500, "height": 1000}) as notebook:
        yield notebook, folder
        assert not notebook.complaints


@pytest.fixture
def notebook(opened: tuple[LabNotebook, Path], cluster: jdist.Cluster) -> LabNotebook:
    """It uses the shared cluster."""
    opened[0].run(ATTACH)
    return opened[0]


@pytest.fixture
def panel(notebook: LabNotebook) -> Panelled:
    panel = Panelled(notebook.page)
    panel.open()
    panel.choose("shared")
    return panel


def marks(of: Locator) -> Locator:
    return of.locator(".jdist-PausedLine")


def press(panel: Panelled, label: str) -> None:
    """A button in the title of a section."""
    panel.panel.get_by_role("button", name=label).first.click()


def test_a_cell_is_paused_looked_into_and_continued(
    notebook: LabNotebook, panel: Panelled, opened: tuple[LabNotebook, Path]
) -> None:
    notebook.run(DEFINES)
    notebook.start(LOOPS)
    expect(panel.row(3)).to_contain_text("running")
    press(panel, "Pause running ranks")
    for rank in range(4):
        expect(panel.row(rank)).to_contain_text("train_step, line")
    expect(panel.status).to_contain_text("is paused")
    expect(notebook.output(LOOPS)).to_contain_text("⏸")
    notebook.until_over(LOOPS)
    expect(marks(notebook.cell(DEFINES))).to_have_count(1)
    expect(marks(notebook.cell(DEFINES))).to_have_attribute("data-paused", "⏸ 0-3")
    notebook.picture("paused")
    for part in ("#jdist-panel", ".jdist-Run", ".jdist-PausedLine"):
        assert panel.findings_in_all_themes(part) == []
    stacks = panel.panel.get_by_role("tree")
    expect(stacks.get_by_role("treeitem")).to_have_count(2)
    expect(stacks).to_contain_text("<cell>, line 3")
    expect(stacks.locator(".jdist-mod-chosen")).to_contain_text("train_step")
    assert "(6, 3)" in notebook.run(LOOKS), "the local names of the paused frame"
    (opened[1] / "end").touch()
    before = panel.row(0).inner_text()
    press(panel, "Run to the next line of the chosen frame")
    expect(panel.row(0)).not_to_have_text(before)
    press(panel, "Run until the chosen frame is about to return")
    expect(notebook.output(LOOPS)).to_contain_text("return scale · about to return 3")
    notebook.picture("returning")
    press(panel, "Run to the next line of the chosen frame")
    expect(marks(notebook.cell(LOOPS))).to_have_attribute("data-paused", "⏸ 0-3")
    expect(marks(notebook.cell(DEFINES))).to_have_count(0)
    press(panel, "Resume paused ranks")
    expect(notebook.output(LOOPS)).to_contain_text(re.compile(r"total\s*3"))
    expect(marks(notebook.cell(LOOPS))).to_have_count(0)
    for rank in range(4):
        expect(panel.row(rank)).to_contain_text("idle")
    expect(stacks).to_have_count(0)


def test_one_rank_by_its_menu_and_the_source_of_a_script(
    notebook: LabNotebook, panel: Panelled, opened: tuple[LabNotebook, Path]
) -> None:
    notebook.start(SCRIPT)
    expect(panel.row(2)).to_contain_text("running")
    panel.menu(2, "Pause ranks 2")
    expect(panel.row(2)).to_contain_text("a_script.py line")
    expect(panel.row(1)).to_contain_text("running")
    panel.panel.get_by_role("tree").get_by_role("button", name=re.compile("a_script.py")).click()
    source = panel.page.locator(".jdist-source")
    expect(source).to_contain_text("while not os.path.exists")
    expect(source).to_contain_text("read-only")
    expect(marks(source)).to_have_attribute("data-paused", "⏸ 2")
    notebook.picture("paused-source")
    assert panel.findings_in_all_themes(".jdist-source") == []
    panel.menu(2, "Continue ranks 2")
    expect(panel.row(2)).to_contain_text("running")
    expect(marks(source)).to_have_count(0)
    panel.page.locator(".lm-TabBar-tab", has_text="a_script.py").locator(".lm-TabBar-tabCloseIcon").click()
    (opened[1] / "other").touch()
    expect(panel.row(2)).to_contain_text("idle")
