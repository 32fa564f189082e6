"""Cells that begin with ``%%dist`` are marked, with the ranks that they choose."""

from __future__ import annotations

from playwright.sync_api import expect

from support.lab.accessibility import DARK, LIGHT, findings_in_all_themes, use_theme
from support.lab.browsing import Lab

PLAIN, ALL, SOME, GROUP = range(4)
CELLS = ["x = 1", "%%dist\nprint(rank)", "# only two\n%%dist -t 5m -r 0-1\nprint(rank)", "%%dist -g evens"]
THEMES = {"dark": DARK, "light": LIGHT}  # the last one stays


def test_cells_for_ranks_are_marked(lab: Lab) -> None:
    with lab.open_notebook(CELLS, "marks.ipynb") as notebook:
        marks = [notebook.cell(i).locator(".jdist-RankMark") for i in range(len(CELLS))]
        for theme, name in THEMES.items():
            use_theme(notebook.page, name)
            notebook.picture(f"rank-marks-{theme}")
        expect(marks[PLAIN]).to_have_count(0)
        expect(marks[ALL]).to_have_text("all ranks")
        expect(marks[SOME]).to_have_text("ranks 0-1")
        expect(marks[GROUP]).to_have_text("group evens")
        expect(notebook.cell(SOME).get_by_role("img", name="This cell runs on: ranks 0-1")).to_be_visible()
        assert findings_in_all_themes(notebook.page, ".jp-Notebook .jdist-RankMark") == []

        notebook.cell(SOME).click()
        expect(marks[SOME]).to_be_hidden()  # the cell's buttons are there
        notebook.type(GROUP, "\n")
        notebook.page.keyboard.press("Control+Home")
        notebook.page.keyboard.press("Control+Delete")  # %%dist is no magic any more
        expect(marks[GROUP]).to_have_count(0)
        expect(notebook.page.locator(".jdist-mod-forRanks")).to_have_count(2)
        assert not [said for said in notebook.complaints if "jdist" in said]
