"""The mark beside a cell: what has become of its run, in a word and a sign, also in a notebook that is opened again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

import jdist
from support.lab.accessibility import findings_in_all_themes
from support.lab.browsing import Lab, LabNotebook

pytestmark = pytest.mark.usefixtures("traces")

ATTACH, SUCCEEDS, FAILS, HANGS, DETACH = range(5)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    "%%dist\nrank",
    "%%dist\nif rank == 2:\n    raise ValueError('bad shard')",
    "%%dist\nif rank != 1:\n    dist.barrier()",
    "%dist detach",
]
KEEP_TOASTS = """() => {
  window.toasts = [];
  const all = document.getElementsByClassName('Toastify__toast');
  const keep = () => window.toasts.push(...Array.from(all, each => each.textContent));
  new MutationObserver(keep).observe(document.body, { childList: true, subtree: true });
}"""
SAVED = "() => window.jupyterapp.shell.currentWidget.context.save().then(() => true)"
ENDED = {
    SUCCEEDS: ("4 of 4 ranks done", "4/4 ✓"),
    FAILS: ("3 of 4 ranks done, 1 of 4 ranks failed", "1 of 4 failed ✗"),
    HANGS: ("1 of 4 ranks done, 3 of 4 ranks interrupted", "3 of 4 interrupted ■"),
}


@pytest.fixture
def notebook(lab: Lab, cluster: jdist.Cluster) -> Iterator[LabNotebook]:
    with lab.open_notebook(CELLS, "marks.ipynb") as notebook:
        notebook.run(ATTACH)
        yield notebook
        notebook.run(DETACH)


def mark(notebook: LabNotebook, cell: int) -> Locator:
    return notebook.cell(cell).locator(".jdist-CellProgress")


def expect_marks(notebook: LabNotebook) -> None:
    for cell, (label, text) in ENDED.items():
        expect(notebook.cell(cell).get_by_role("img", name=label, exact=True)).to_have_text(text)
    expect(mark(notebook, ATTACH)).to_have_count(0)


def test_a_mark_says_how_the_run_has_ended(notebook: LabNotebook, lab: Lab) -> None:
    notebook.run(SUCCEEDS)
    notebook.run(FAILS)
    notebook.page.evaluate(KEEP_TOASTS)
    notebook.start(HANGS)
    expect(mark(notebook, HANGS)).to_have_text("cannot finish ●")
    expect(notebook.output(HANGS)).to_contain_text(re.compile(r"run \d+ · .*[3-9] s"))
    toasts = notebook.page.evaluate("() => window.toasts")
    assert not [text for text in toasts if "cannot finish" in text], "the output says so, in front of the user"
    notebook.picture("marks-hang")
    notebook.interrupt()
    notebook.until_over(HANGS)
    expect_marks(notebook)
    notebook.picture("marks")
    assert findings_in_all_themes(notebook.page, ".jdist-CellProgress") == []
    for cell in ENDED:
        inner = mark(notebook, cell).evaluate("node => node.scrollWidth <= node.clientWidth")
        assert inner, "the words fit beside the cell"
    notebook.page.evaluate(SAVED)
    with lab.open_page("lab/tree/marks.ipynb") as page:
        again = LabNotebook(page, lab.pictures)
        again.until_ready()
        expect_marks(again)


def test_cells_that_auto_sends_to_the_ranks_are_marked(lab: Lab, cluster: jdist.Cluster) -> None:
    attach, on, plain, here, commented, off = range(6)
    cells = [
        CELLS[ATTACH],
        "%dist auto on",
        "x = rank",
        "%dist status",
        "# all of them\n%%dist\nrank",
        "%dist auto off",
    ]
    with lab.open_notebook(cells, "auto.ipynb", viewport={"width": 1500, "height": 900}) as notebook:
        ranks = notebook.cell(plain).locator(".jdist-RankMark")
        button = notebook.page.locator(".jp-Toolbar-item[data-jp-item-name='jdist-ranks'] button")
        notebook.run(attach)
        expect(ranks).to_have_count(0)
        notebook.run(on)
        expect(ranks).to_have_text("all ranks")
        expect(notebook.cell(here).locator(".jdist-RankMark")).to_have_count(0)
        notebook.cell(plain).click()
        expect(button).to_have_text("all ranks")
        notebook.page.evaluate("() => sessionStorage.clear()")
        notebook.page.reload()
        expect(button).to_have_text("this notebook")  # the first cell is chosen
        expect(ranks).to_have_text("all ranks")  # the kernel was asked
        notebook.until_ready()
        notebook.run(plain)
        notebook.run(commented)
        expect(mark(notebook, plain)).to_have_text("4/4 ✓")
        expect(mark(notebook, commented)).to_have_text("4/4 ✓")
        is_inside = "node => node.getBoundingClientRect().bottom <= node.parentNode.getBoundingClientRect().bottom"
        assert mark(notebook, plain).evaluate(is_inside), "a cell of one line has room for it"
        notebook.picture("marks-auto")
        notebook.run(off)
        expect(ranks).to_have_count(0)
        expect(mark(notebook, plain)).to_have_text("4/4 ✓")
