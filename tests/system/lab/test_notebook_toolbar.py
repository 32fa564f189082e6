"""The notebook's toolbar: which cluster the notebook uses, and the ranks of its active cell."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

import jdist
from support.lab.accessibility import DARK, LIGHT, findings_in_menu, use_theme
from support.lab.browsing import IS_READY, Lab, LabNotebook
from support.lab.panelled import Panelled
from support.lacking import lacking

pytestmark = pytest.mark.usefixtures("traces")
ATTACH, DETACH, PLAIN, WAITS, MAGIC, EMPTY = range(6)
CELLS = [
    "%load_ext jdist\n%dist attach shared",
    "%dist detach",
    "x = rank",
    "%%dist -t 5m -o waited\nimport pathlib, time\nwhile not pathlib.Path('SIGNAL').exists(): time.sleep(0.05)",
    "%%bash\nls",
    "",
]
THEMES = {"dark": DARK, "light": LIGHT}  # the last one stays
TO_MARKDOWN = "() => window.jupyterapp.commands.execute('notebook:change-cell-to-markdown')"
SOURCE = "index => window.jupyterapp.shell.currentWidget.content.widgets[index].model.sharedModel.getSource()"
ATTACH_TO_REUSED = """() => window.jupyterapp.shell.currentWidget.content.widgets[0].model.sharedModel.setSource(
  '%load_ext jdist\\n%dist attach reused')"""
RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"


@pytest.fixture
def notebook(lab: Lab, cluster: jdist.Cluster, tmp_path: Path) -> Iterator[LabNotebook]:
    cells = [cell.replace("SIGNAL", str(tmp_path / "end")) for cell in CELLS]
    with lab.open_notebook(cells, "toolbar.ipynb", viewport={"width": 1500, "height": 900}) as opened:
        yield opened
        assert not [said for said in opened.complaints if "jdist" in said]


def cluster_button(notebook: LabNotebook) -> Locator:
    return notebook.page.locator(".jp-Toolbar-item[data-jp-item-name='jdist-cluster'] button")


def ranks_button(notebook: LabNotebook) -> Locator:
    return notebook.page.locator(".jp-Toolbar-item[data-jp-item-name='jdist-ranks'] button")


def choose(notebook: LabNotebook, *entries: str) -> None:
    """Entries of the menu behind the button, the last in a submenu of those before."""
    ranks_button(notebook).click()
    for entry in entries:
        notebook.page.locator(".lm-Menu-item").get_by_text(entry).last.click()


def source(notebook: LabNotebook, index: int) -> str:
    text: str = notebook.page.evaluate(SOURCE, index)
    return text


def test_the_cluster_of_this_notebook(notebook: LabNotebook, cluster: jdist.Cluster) -> None:
    button = cluster_button(notebook)
    expect(button).to_have_text("No cluster")  # the panel shows one; this notebook uses none
    button.focus()
    notebook.page.keyboard.press("Enter")
    expect(notebook.page.get_by_role("menuitem", name="Start a cluster…")).to_be_visible()
    notebook.page.get_by_role("menuitem", name="Attach this notebook to shared").click()
    expect(button).to_have_text("○shared · 4 ranks · idle")
    expect(button).to_have_attribute("aria-label", re.compile("This notebook uses cluster shared: 4/4 ranks"))
    panel = Panelled(notebook.page)
    for name, theme in THEMES.items():
        use_theme(notebook.page, theme)
        notebook.picture(f"toolbar-{name}")
    assert panel.findings_in_all_themes(".jdist-MenuButton") == []
    button.click()
    notebook.picture("toolbar-menu")
    assert findings_in_menu(notebook.page) == []
    notebook.page.get_by_role("menuitem", name="Show the ranks panel").click()
    expect(panel.panel).to_be_visible()
    notebook.run(DETACH + 1)  # the attaching code is in a cell of its own
    expect(button).to_have_text("No cluster")
    notebook.run(ATTACH)
    expect(button).to_contain_text("shared")
    notebook.page.evaluate(RESTART)
    expect(button).to_have_text("No cluster")


def test_the_panel_shows_the_notebooks_cluster_and_one_that_ends_elsewhere_is_withdrawn(
    notebook: LabNotebook, cluster: jdist.Cluster, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    reused = fresh_cluster(name="reused")
    panel = Panelled(notebook.page)
    panel.open()
    panel.choose("shared")
    expect(panel.status).to_contain_text("4/4 ranks")
    notebook.page.evaluate(ATTACH_TO_REUSED)
    notebook.run(ATTACH)
    button = cluster_button(notebook)
    expect(button).to_contain_text("reused")
    expect(panel.status).to_contain_text("2/2 ranks")
    panel.choose("shared")  # another one may be looked at
    expect(panel.status).to_contain_text("4/4 ranks")
    reused.stop()
    expect(button).to_have_text("No cluster")


def test_a_reloaded_page_knows_it_again_even_while_the_kernel_is_busy(
    notebook: LabNotebook, cluster: jdist.Cluster, tmp_path: Path
) -> None:
    page = notebook.page
    button = cluster_button(notebook)
    notebook.run(ATTACH)
    expect(button).to_contain_text("shared")
    page.evaluate("() => sessionStorage.clear()")  # as in another window
    page.reload()
    expect(button).to_contain_text("shared · 4 ranks")  # the kernel was asked
    page.wait_for_function(IS_READY)
    notebook.start(WAITS)
    expect(button).to_contain_text("run ")
    page.reload()
    expect(button).to_contain_text("shared · 4 ranks · run ")
    (tmp_path / "end").touch()
    expect(button).to_contain_text("idle")


def test_the_ranks_of_a_cell_are_chosen_in_a_menu(notebook: LabNotebook, cluster: jdist.Cluster) -> None:
    page, button, panel = notebook.page, ranks_button(notebook), Panelled(notebook.page)
    notebook.run(ATTACH)
    cluster.new_group("evens", [0, 2])
    cluster.new_mesh("dp=2,tp=2")
    notebook.cell(PLAIN).click()
    expect(button).to_have_text("this notebook")
    choose(notebook, "All ranks")
    assert source(notebook, PLAIN) == "%%dist\nx = rank"
    expect(button).to_have_text("all ranks")
    choose(notebook, "Group", "Group evens: ranks 0,2")
    assert source(notebook, PLAIN) == "%%dist -g evens\nx = rank"
    expect(button).to_have_text("group evens")
    choose(notebook, "Node or part of the mesh", "tp=1: ranks 1,3")
    assert source(notebook, PLAIN) == "%%dist -r tp=1\nx = rank"
    notebook.run(PLAIN)  # it is what jdist understands
    assert "Error" not in notebook.text(PLAIN)
    notebook.cell(WAITS).click()
    choose(notebook, "Some ranks…")
    assert panel.findings_in_all_themes(".jp-Dialog") == []
    page.locator(".jp-Dialog input").fill("0-1,3")
    page.keyboard.press("Enter")
    expect(button).to_have_text("ranks 0-1,3")
    assert source(notebook, WAITS).startswith("%%dist -r 0-1,3 -t 5m -o waited\nimport")
    button.click()
    notebook.picture("ranks-menu")
    assert findings_in_menu(notebook.page) == []
    page.keyboard.press("Escape")
    choose(notebook, "This notebook only")
    assert source(notebook, WAITS).startswith("import")
    notebook.cell(EMPTY).click()
    choose(notebook, "All ranks")
    page.keyboard.type("y = 1")
    assert source(notebook, EMPTY) == "%%dist\ny = 1"
    notebook.cell(MAGIC).click()
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_attribute("title", "This cell begins with %%bash, which runs in the notebook")
    page.evaluate(TO_MARKDOWN)
    expect(button).to_have_attribute("title", "Only code cells run on ranks")
    assert panel.serious_findings(".jdist-MenuButton") == []


def test_a_notebook_without_jdist_has_no_menu_of_ranks(lab: Lab) -> None:
    with lab.open_notebook(["x = 1"], "without.ipynb") as notebook:
        expect(cluster_button(notebook)).to_have_text("No cluster")
        expect(ranks_button(notebook)).to_be_hidden()
        notebook.type(0, "\n")
        notebook.page.keyboard.press("Control+Home")
        notebook.page.keyboard.insert_text("%%dist\n")
        expect(ranks_button(notebook)).to_have_text("all ranks")


def test_the_same_in_notebook_7(lab: Lab, cluster: jdist.Cluster) -> None:
    if importlib.util.find_spec("notebook") is None:
        lacking("Notebook 7 is not installed: pip install notebook")
    with lab.open_notebook(CELLS, "toolbar7.ipynb", below="notebooks") as notebook:
        expect(cluster_button(notebook)).to_have_text("No cluster")
        notebook.run(ATTACH)
        expect(cluster_button(notebook)).to_have_text("○shared · 4 ranks · idle")
        notebook.cell(PLAIN).click()
        choose(notebook, "All ranks")
        assert source(notebook, PLAIN) == "%%dist\nx = rank"
        notebook.picture("toolbar-notebook7")
        assert not [said for said in notebook.complaints if "jdist" in said]
