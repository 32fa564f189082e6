"""Translations: with a language pack installed and chosen, jdist's texts are shown in its language."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import jdist
from support.lab.browsing import Lab, LabServer, chromium, extension
from support.lab.languagepack import GERMAN, write_language_pack
from support.lab.panelled import panelled

pytestmark = pytest.mark.usefixtures("traces")

TRANSLATIONS = {
    "Clusters": "Verbünde",
    "Start a cluster…": "Verbund starten…",
    "%1 rank": ("%1 Rang", "%1 Ränge"),
    "Ranks of %1": "Ränge von %1",
    "Distributed PyTorch (jdist)": "Verteiltes PyTorch (jdist)",
    "Show the cluster in the status bar": "Verbund in der Statusleiste zeigen",
}
CHOOSE = """locale => window.jupyterapp.serviceManager.settings.save(
  '@jupyterlab/translation-extension:plugin', JSON.stringify({ locale }))"""


@pytest.fixture(scope="module")
def german(run_traces: object, runtime_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab in whose environment a language pack is installed; nobody has chosen it yet."""
    packs = tmp_path_factory.mktemp("packs")
    write_language_pack(packs, TRANSLATIONS)
    with tempfile.TemporaryDirectory(dir=runtime_directory, prefix="lab-") as bed:
        options = [extension(Path(bed) / "extensions")]
        server = LabServer(Path(bed), runtime_directory, options, {"PYTHONPATH": str(packs)})
        try:
            with chromium() as browser:
                yield Lab(server, browser, packs)
        finally:
            server.end()


def choose(page: Page, locale: str) -> None:
    """As a click in *Settings → Language* does it: what is set holds from the next time the page is loaded."""
    page.wait_for_function("() => window.jupyterapp !== undefined")
    page.evaluate(CHOOSE, locale)
    page.reload()
    page.wait_for_selector("#jupyterlab-splash", state="detached")


def test_the_texts_are_in_the_language_that_was_chosen(german: Lab, cluster: jdist.Cluster) -> None:
    with panelled(german) as panel:
        expect(panel.panel.get_by_role("heading", name="Clusters")).to_be_visible()
        choose(panel.page, GERMAN)
        panel.open()
        panel.choose("shared")
        expect(panel.panel.get_by_role("heading", name="Verbünde")).to_be_visible()
        expect(panel.cluster("shared")).to_contain_text("4 Ränge · 2 nodes · gloo")  # the pack lacks the nodes
        expect(panel.table).to_have_accessible_name("Ränge von shared")
        panel.do("apputils:activate-command-palette")
        palette = panel.page.locator(".lm-CommandPalette-content")
        expect(palette.get_by_role("menuitem", name="Verbund starten…")).to_be_attached()
        assert not panel.complaints


def test_the_server_translates_the_texts_of_the_settings(german: Lab) -> None:
    """It does so for one extension. In its list of all, which pages use, those of prebuilt ones are English."""
    with german.open_page() as page:
        choose(page, GERMAN)
        schema = page.request.get(german.address("lab/api/settings/jdist:plugin")).json()["schema"]
    assert schema["properties"]["showStatus"]["title"] == "Verbund in der Statusleiste zeigen"
    menus = json.dumps(schema["jupyter.lab.menus"], ensure_ascii=False)
    assert "Verteiltes PyTorch (jdist)" in menus
