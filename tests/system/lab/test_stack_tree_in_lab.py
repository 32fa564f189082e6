"""The stacks of paused ranks in a real JupyterLab: a click chooses the frame, and shortcuts let the ranks go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

import jdist
from support.lab.browsing import Lab
from support.lab.panelled import Panelled

pytestmark = pytest.mark.usefixtures("traces")

LOOPS = """%%dist
import os, time
def wait(end):
    while not os.path.exists(end):
        time.sleep(0.01)
def train(step):
    wait('END')
    return step
torch.no_grad()(train)(5)"""


def test_a_click_chooses_the_frame_and_shortcuts_go_on(lab: Lab, cluster: jdist.Cluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    cells = [
        "%load_ext jdist\n%dist attach shared",
        LOOPS.replace("END", str(end)),
        "%%dist\nstep",
        "%dist up",
        "%dist down 2",
    ]
    with lab.open_notebook(cells, name="stacks.ipynb", viewport={"width": 1500, "height": 1000}) as notebook:
        notebook.run(0)
        panel = Panelled(notebook.page)
        panel.open()
        panel.choose("shared")
        notebook.start(1)
        expect(panel.row(3)).to_contain_text("running")
        panel.panel.get_by_role("button", name="Pause running ranks").first.click()
        expect(panel.row(3)).to_contain_text("wait, line")
        notebook.until_over(1)
        tree = panel.panel.get_by_role("tree")
        expect(tree.get_by_role("treeitem")).to_have_count(3)
        expect(tree.locator(".jdist-mod-chosen")).to_contain_text("wait")
        tree.get_by_role("button", name="train").click()
        expect(tree.locator(".jdist-mod-chosen")).to_contain_text("train")
        assert "5" in notebook.run(2), "a name of the frame that was chosen"
        notebook.run(3)
        expect(tree.locator(".jdist-mod-chosen")).to_contain_text("<cell>")
        notebook.run(4)
        expect(tree.locator(".jdist-mod-chosen")).to_contain_text("wait")
        tree.get_by_role("button", name="train").click()
        expect(tree.locator(".jdist-mod-chosen")).to_contain_text("train")
        expect(panel.row(3)).to_contain_text("paused")
        notebook.picture("chosen-frame")
        end.touch()
        panel.row(0).click()
        notebook.page.keyboard.press("Shift+F11")
        expect(panel.row(0)).not_to_contain_text("wait, line")
        notebook.page.keyboard.press("Escape")
        notebook.page.keyboard.press("F9")
        expect(panel.row(0)).to_contain_text("idle")
        expect(tree).to_have_count(0)
        assert not notebook.complaints
