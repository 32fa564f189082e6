"""JupyterLab for clusters on another host: started there from the dialog, logged in to, lost for a while and back."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.hosts.namespaces import Bed
from support.hosts.pythons import make_python
from support.hosts.sshd import PASSPHRASE, Sshd
from support.lab.browsing import Lab, LabNotebook, LabServer, chromium, extension
from support.waits import eventually

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("traces")]
COUNTED = re.compile(r"reconnecting \((\d+) s\)")
START = "() => void window.jupyterapp.commands.execute('jdist:start')"


@pytest.fixture
def lab(logins: Sshd, runtime_directory: Path, tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab whose user has the keys to the nodes."""
    kept = os.environ.get("JDIST_PICTURES")
    pictures = Path(kept) if kept else tmp_path
    pictures.mkdir(parents=True, exist_ok=True)
    environment = {"JDIST_SSH": logins.command, "JDIST_AT_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory(dir=runtime_directory, prefix="lab-") as bed:
        server = LabServer(Path(bed), runtime_directory, [extension(Path(bed) / "extensions")], environment)
        try:
            with chromium() as browser:
                yield Lab(server, browser, pictures)
        finally:
            server.end()


def answer(page: Page) -> None:
    """Type the passphrase where ssh asks for it."""
    asked = page.locator(".jp-Dialog", has_text="Log in to")
    expect(asked).to_contain_text("Enter passphrase for key")
    field = asked.locator("input")
    expect(field).to_have_attribute("type", "password")
    field.fill(PASSPHRASE)
    asked.get_by_role("button", name="Answer").click()


def start(notebook: LabNotebook, host: str) -> None:
    """In the dialog."""
    page = notebook.page
    page.evaluate(START)
    form = page.locator(".jp-Dialog", has_text="Start a cluster")
    where = form.get_by_label("Where")
    expect(where).to_be_visible()
    offered = form.locator("datalist option").evaluate_all("found => found.map(each => each.value)")
    assert {"a", "b", "locked"} <= set(offered)
    where.fill(host)
    form.get_by_label("Ranks per node").fill("2")
    notebook.picture("at-1-form")
    form.get_by_role("button", name="Start").click()


def until_counting(notebook: LabNotebook) -> None:
    """The toolbar counts how long the login has been broken."""
    button = notebook.page.locator(".jdist-MenuButton", has_text="reconnecting").first
    expect(button).to_contain_text(COUNTED)
    seen = COUNTED.search(button.inner_text())
    assert seen is not None
    expect(button).not_to_contain_text(seen[0])
    expect(button).to_contain_text(COUNTED)


def test_a_cluster_is_started_at_a_host_that_asks_and_comes_back_after_a_break(lab: Lab, hosts: Bed) -> None:
    with lab.open_notebook(["%%dist\nrank * 10"]) as notebook:
        page = notebook.page
        start(notebook, "locked")
        expect(page.locator(".jp-Dialog", has_text="Log in to locked")).to_be_visible()
        notebook.picture("at-2-question")
        answer(page)
        expect(page.locator(".jp-Dialog", has_text="Starting locked:c1")).to_be_visible()
        notebook.picture("at-3-starting")
        page.get_by_role("button", name="Attach", exact=True).click()
        typed = page.locator(".jp-Stdin-input")  # the kernel has a login of its own
        expect(typed).to_be_visible()
        typed.fill(PASSPHRASE)
        typed.press("Enter")
        button = page.locator(".jdist-MenuButton", has_text="locked:c1")
        expect(button).to_contain_text("2 ranks · idle")
        last = page.locator(".jp-Notebook .jp-Cell").count() - 1
        index = next(i for i in range(last + 1) if "rank * 10" in notebook.cell(i).inner_text())
        assert "10" in notebook.run(index)
        page.evaluate("() => void window.jupyterapp.commands.execute('jdist:open-panel')")
        item = page.locator('.jdist-item[data-cluster="locked:c1"]')
        expect(item).to_contain_text("idle")
        notebook.picture("at-4-attached")
        hosts.cut(1)
        until_counting(notebook)
        expect(item).to_contain_text(COUNTED)
        notebook.picture("at-5-reconnecting")
        hosts.heal(1)
        expect(item).to_contain_text("Permission denied")
        notebook.picture("at-6-denied")
        item.get_by_role("button", name="Log in", exact=True).click()
        answer(page)
        expect(button).to_contain_text("idle")
        expect(item).to_contain_text("idle")
        item.get_by_role("button", name="Stop cluster locked:c1").click()
        page.locator(".jp-Dialog").get_by_role("button", name="Stop").click()
        expect(item).to_have_count(0)
        notebook.picture("at-7-stopped")


def test_jdist_is_installed_from_the_dialog_at_a_host_that_lacks_it(lab: Lab, logins: Sshd, tmp_path: Path) -> None:
    python = str(make_python(logins.home / tmp_path.name))
    with lab.open_notebook([""]) as notebook:
        page = notebook.page
        page.evaluate(START)
        form = page.locator(".jp-Dialog", has_text="Start a cluster")
        expect(form.get_by_label("Where")).to_be_visible()
        expect(form.get_by_label("Python there")).to_have_count(0)
        form.get_by_label("Where").fill("a")
        form.get_by_label("Python there").fill(python)
        form.get_by_label("Ranks per node").fill("1")
        form.get_by_role("button", name="Start").click()
        expect(form.get_by_role("alert")).to_contain_text("Install jdist, in the start dialog")
        notebook.picture("at-install-0-refused")
        form.get_by_label("Install jdist").check()
        notebook.picture("at-install-1-form")
        form.get_by_role("button", name="Start").click()
        expect(page.locator(".jp-Dialog", has_text="Logging in to a")).to_contain_text(re.compile("making|Installing"))
        notebook.picture("at-install-2-progress")
        page.get_by_role("button", name="Attach", exact=True).click()
        expect(page.locator(".jdist-MenuButton", has_text="a:c1")).to_contain_text("1 rank · idle")
        expect(page.locator(".jp-Notebook")).to_contain_text(f"%dist attach a:c1 --python {python}")
        page.evaluate("() => void window.jupyterapp.commands.execute('jdist:open-panel')")
        item = page.locator('.jdist-item[data-cluster="a:c1"]')
        item.get_by_role("button", name="Stop cluster a:c1").click()
        page.locator(".jp-Dialog").get_by_role("button", name="Stop").click()
        expect(item).to_have_count(0)


def test_a_notebook_that_attaches_has_the_server_follow_and_it_comes_back_by_itself(lab: Lab, hosts: Bed) -> None:
    with lab.open_notebook(["%load_ext jdist\n%dist start --at a -n 1", "%dist stop"]) as notebook:
        notebook.run(0)
        button = notebook.page.locator(".jdist-MenuButton", has_text="a:c1")
        expect(button).to_contain_text("1 rank · idle")
        hosts.cut(0)
        until_counting(notebook)
        hosts.heal(0)
        expect(button).to_contain_text("1 rank · idle")
        notebook.run(1)
        expect(notebook.page.locator(".jdist-MenuButton", has_text="No cluster")).to_be_visible()
        assert eventually(lambda: not [c for c in notebook.complaints if "jdist" in c]), notebook.complaints
