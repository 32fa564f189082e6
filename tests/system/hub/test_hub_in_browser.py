"""A person's way on a Hub, in a real Chromium: log in, open a notebook, start a cluster, look at its panels."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlencode

import nbformat
from playwright.sync_api import expect

from support.hub.jupyterhubs import Hub, Server
from support.lab.browsing import EXTENSION, HEIGHT, LONG, WIDTH, LabNotebook, chromium
from support.lacking import lacking

CELLS = (
    "%load_ext jdist",
    "%dist start -n 2 --backend gloo --name seen --timeout 120 --idle-timeout 5",
    "%dist panel",
    "%%dist\nif rank == 0:\n    dist.barrier()",
    "%%dist -t 60\nt = torch.ones(1) * (rank + 1)\ndist.all_reduce(t)\nt.item()",
    "%dist stop",
)


def test_a_notebook_with_a_panel_works_through_the_proxy(hub: Hub, alice: Server, tmp_path: Path) -> None:
    if not (EXTENSION / "package.json").exists():
        lacking("jdist's JupyterLab extension has not been built: make labextension")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), hub.home / "alice" / "seen.ipynb")
    where = urlencode({"next": f"{alice.path}lab/tree/seen.ipynb?reset"})
    with chromium() as browser, browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}) as context:
        context.set_default_timeout(LONG * 1000)
        page = context.new_page()
        page.goto(f"{hub.url}/hub/login?{where}")
        page.fill("#username_input", "alice")
        page.fill("#password_input", "any, with the tests' authenticator")
        page.click("#login_submit")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        notebook = LabNotebook(page, tmp_path)
        notebook.until_ready()
        notebook.run(0)
        assert "2 ranks" in notebook.run(1)
        notebook.run(2)
        panel = notebook.output(2)
        expect(panel).to_contain_text("idle")
        page.keyboard.press("Control+Alt+r")  # the extension's own, which the server's events keep up to date
        side = page.locator("#jdist-panel")
        expect(side).to_contain_text("2 ranks · 1 node · gloo")
        notebook.start(3)
        expect(side.locator(".jdist-verdict")).to_contain_text("rank 1")
        expect(panel.get_by_role("alert")).to_contain_text("has not entered barrier")
        panel.get_by_role("button", name=re.compile("Interrupt$")).click()
        notebook.until_over(3)
        expect(side.locator(".jdist-verdict")).to_have_count(0)
        assert "3.0" in notebook.run(4)
        assert "stopped" in notebook.run(5)
        notebook.end_kernel()
