"""How somebody who knows only that jdist is installed finds it: palette, side bar, launcher, menu, first cell."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

import jdist
from support.lab.browsing import Lab
from support.lab.panelled import Panelled, panelled
from support.lacking import lacking

pytestmark = pytest.mark.usefixtures("traces")
CAPTION = "Distributed PyTorch clusters (jdist)"
COLOURS = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
NO_CLUSTER = '{"clusters": []}'


def without_clusters(page: Page) -> None:
    """The server's list is empty, and no event tells of the cluster that other tests use."""
    page.route(re.compile(r"/jdist/clusters(\?|$)"), lambda route: route.fulfill(body=NO_CLUSTER))
    page.route_web_socket("**/api/events/subscribe**", lambda _: None)


@pytest.fixture(scope="module")
def panel(lab: Lab) -> Iterator[Panelled]:
    """A page without a notebook, of a server that has no cluster."""
    with panelled(lab, before=without_clusters) as shown:
        yield shown


def is_start_dialog(dialog: Locator) -> None:
    """It is open; it is closed again."""
    expect(dialog).to_contain_text("Start a cluster")
    expect(dialog.get_by_label("Ranks per node")).to_be_focused()
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("word", ["jdist", "distributed", "torch", "cluster"])
def test_a_word_finds_the_commands_in_the_palette(panel: Panelled, word: str) -> None:
    panel.page.keyboard.press("Control+Shift+c")
    expect(panel.page.locator(".lm-CommandPalette-input")).to_be_focused()
    panel.page.keyboard.type(word)
    found = panel.page.locator(".lm-CommandPalette-content")
    for entry in ("Start a cluster…", "Refresh the list of clusters"):
        expect(found.get_by_role("menuitem", name=entry)).to_be_visible()
    panel.page.keyboard.press("Escape")


def test_the_icon_in_the_side_bar_has_a_name(panel: Panelled) -> None:
    tab = panel.page.locator('.lm-TabBar-tab[data-id="jdist-panel"]')
    expect(tab).to_have_attribute("title", CAPTION)
    expect(panel.page.get_by_role("region", name=CAPTION)).to_be_visible()


def test_without_a_cluster_the_panel_says_what_to_type(panel: Panelled) -> None:
    expect(panel.panel.get_by_role("button", name="Start a cluster…")).to_be_visible()
    expect(panel.panel.locator("pre")).to_have_text("%load_ext jdist\n%dist start -n 4")
    assert panel.findings_in_all_themes() == []


def test_the_launcher_has_a_card(panel: Panelled, lab: Lab) -> None:
    panel.do("launcher:create")
    card = panel.page.locator(".jp-LauncherCard", has_text="Distributed cluster").last
    for colour, theme in COLOURS.items():
        panel.do("apputils:change-theme", theme=theme)
        expect(panel.page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
        expect(panel.page.locator("#jupyterlab-splash")).to_have_count(0)
        card.scroll_into_view_if_needed()
        expect(card.locator("svg[data-icon='jdist:ranks']")).to_be_visible()
        (lab.pictures / f"launcher-{colour}.png").write_bytes(panel.page.screenshot())
    assert panel.findings_in_all_themes(".jp-LauncherCard[title^='Start']") == []
    card.focus()
    panel.page.keyboard.press("Enter")
    is_start_dialog(panel.dialog)


def open_new_menu(page: Page) -> Locator:
    """*File ▸ New*, and jdist's entry in it."""
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.locator('.lm-Menu-item[data-type="submenu"]').get_by_text("New", exact=True).click()
    return page.get_by_role("menuitem", name="Distributed cluster…")


def test_file_new_has_an_entry(panel: Panelled) -> None:
    entry = open_new_menu(panel.page)
    expect(entry.locator("svg[data-icon='jdist:ranks']")).to_be_visible()
    entry.click()
    is_start_dialog(panel.dialog)


def test_notebook_7_has_the_entry_too(lab: Lab) -> None:
    if importlib.util.find_spec("notebook") is None:
        lacking("Notebook 7 is not installed: pip install notebook")
    with lab.open_notebook([""], "new.ipynb", below="notebooks") as notebook:
        open_new_menu(notebook.page).click()
        is_start_dialog(notebook.page.locator(".jp-Dialog"))
        assert not [fault for fault in notebook.complaints if "jdist" in fault]


def test_after_attach_a_first_cell_is_offered(lab: Lab, cluster: jdist.Cluster) -> None:
    with lab.open_notebook(["", "# further down"], "first.ipynb") as notebook:
        cells = notebook.page.locator(".jp-Notebook .jp-Cell")
        panel = Panelled(notebook.page)
        panel.open()
        attach = panel.cluster("shared").get_by_role("button", name="Attach this notebook to shared")
        attach.click()
        expect(notebook.cell(0)).to_contain_text("%dist attach shared")
        expect(notebook.cell(1)).to_contain_text("print(rank, world_size)")  # below that cell, not at the end
        expect(notebook.cell(1)).to_have_class(re.compile("jp-mod-active"))
        expect(cells).to_have_count(3)
        assert notebook.text(1) == ""  # not run
        notebook.picture("first-cell")
        notebook.run(1)
        expect(notebook.output(1)).to_contain_text("3 4")
        attach.click()
        expect(cells).to_have_count(4)  # the notebook knows what a cell for ranks is
        notebook.until_over(2)
        expect(notebook.output(2)).to_contain_text("in use here already")
        expect(cells).to_have_count(4)
