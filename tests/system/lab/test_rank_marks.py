"""Cells that begin with ``%%dist`` are marked, with the ranks that they choose."""

from __future__ import annotations

from playwright.sync_api import expect

from support.lab.browsing import Lab
from support.lab.panelled import Panelled

PLAIN, ALL, SOME, GROUP = range(4)
CELLS = ["x = 1", "%%dist\nprint(rank)", "# only two\n%%dist -t 5m -r 0-1\nprint(rank)", "%%dist -g evens"]
THEMES = {"dark": "JupyterLab Dark", "light": "JupyterLab Light"}  # the last one stays


def test_cells_for_ranks_are_marked(lab: Lab) -> None:
    with lab.open_notebook(CELLS, "marks.ipynb") as notebook:
        marks = [notebook.cell(i).locator(".jdist-RankMark") for i in range(len(CELLS))]
        for theme, name in THEMES.items():
            Panelled(notebook.page).do("apputils:change-theme", theme=name)
            expect(notebook.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
            expect(notebook.page.locator("#jupyterlab-splash")).to_have_count(0)
            notebook.picture(f"rank-marks-{theme}")
        expect(marks[PLAIN]).to_have_count(0)
        expect(marks[ALL]).to_have_text("all ranks")
        expect(marks[SOME]).to_have_text("ranks 0-1")
        expect(marks[GROUP]).to_have_text("group evens")
        expect(notebook.cell(SOME).get_by_role("img", name="This cell runs on: ranks 0-1")).to_be_visible()
        assert Panelled(notebook.page).serious_findings(".jp-Notebook .jdist-RankMark") == []

        notebook.cell(SOME).click()
        expect(marks[SOME]).to_be_hidden()  # the cell's buttons are there
        notebook.type(GROUP, "\n")
        notebook.page.keyboard.press("Control+Home")
        notebook.page.keyboard.press("Control+Delete")  # %%dist is no magic any more
        expect(marks[GROUP]).to_have_count(0)
        expect(notebook.page.locator(".jdist-mod-forRanks")).to_have_count(2)
        assert not [said for said in notebook.complaints if "jdist" in said]
