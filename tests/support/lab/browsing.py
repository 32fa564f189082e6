"""Browsing: a real JupyterLab in a real Chromium, as a person has it: notebooks opened, cells run, pictures taken.

The server and the browser are fixtures (``lab_server`` for the session, ``lab`` for a module, see ``lab/conftest.py``).
A notebook is opened with its cells and driven by their numbers:

    with lab.open_notebook(["%load_ext jdist", "%dist panel"]) as notebook:
        notebook.run(0)
        notebook.start(1)
        expect(notebook.cell(1).get_by_role("button", name="Interrupt")).to_be_visible()

Playwright's waits (``expect`` and locators) end by themselves after ``LONG`` seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from support.lacking import lacking
from support.listening import end, listens
from support.waits import eventually

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-of-the-tests"
LONG = 120.0
"""Seconds within which anything happens, on a machine with other things to do."""
WIDTH, HEIGHT = 1280, 900
# No question about news and no look for updates: nothing outside this machine is asked.
OVERRIDES = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
EXTENSION = ROOT / "labextension" / "built"
FLAGS = [
    "--no-sandbox",  # for root, as CI is
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# What the toolbar shows as idle is shown before the kernel is connected, and a cell that is run then is lost.
IS_READY = """() => {
  const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
  return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
IS_OVER = """index => {
  const cell = window.jupyterapp.shell.currentWidget.content.widgets[index];
  return cell.promptNode.textContent.match(/\\[\\d+\\]/) !== null;
}"""
RUN = """async index => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  content.widgets[index].model.executionCount = null;
  content.widgets[index].setPrompt('');
  content.activeCellIndex = index;
  content.deselectAll();
  void window.jupyterapp.commands.execute('notebook:run-cell');
}"""


class LabServer:
    """A ``jupyter lab`` whose folders are all its own; notebooks lie in ``bed``, its words in ``bed/log``.

    It serves Notebook 7 as well, which enables itself where it is installed.
    jdist's server extension is enabled from the tree. ``options`` are added to the command line and ``environment`` to
    what this process has, for a server that is to be like another site's.
    """

    def __init__(self, bed: Path, runtime: Path, options: Sequence[str] = (), environment: Mapping[str, str] = {}):
        self.bed = bed
        self.notebooks = bed / "notebooks"
        self.notebooks.mkdir()
        config = bed / "config"
        (config / "labconfig").mkdir(parents=True)
        (config / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(OVERRIDES))
        self._log = (bed / "log").open("wb")
        everything = {
            **os.environ,
            "JUPYTER_CONFIG_DIR": str(config),
            "JUPYTER_CONFIG_PATH": str(ROOT / "etc"),  # what the wheel puts beside Python, here from the tree
            "JUPYTER_DATA_DIR": str(bed / "data"),
            "JUPYTERLAB_SETTINGS_DIR": str(bed / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(bed / "workspaces"),
            "IPYTHONDIR": str(bed / "ipython"),
            "JUPYTER_TOKEN": TOKEN,
            "SHELL": "/bin/sh",  # a terminal's: its prompt is known, and it writes no history
            **environment,
        }
        usual = ["--port=0", "--no-browser", "--allow-root", f"--ServerApp.root_dir={self.notebooks}"]
        usual += [f"--{app}.expose_app_in_browser=True" for app in ("LabApp", "JupyterNotebookApp")]
        # Under nohup the programs in its terminals would not end with them.
        heeding = ["env", "--default-signal=HUP"]
        self.process = subprocess.Popen(
            [*heeding, sys.executable, "-m", "jupyterlab", *usual, *options],
            env=everything,
            cwd=bed,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self._info = runtime / f"jpserver-{self.process.pid}.json"
        try:
            assert eventually(lambda: listens(self._info, LONG) or self.process.poll() is not None, LONG), self.said()
            assert self.process.poll() is None, self.said()
            self.url: str = json.loads(self._info.read_text())["url"]
        except BaseException:
            self.end()
            raise

    def said(self) -> str:
        """The end of what it wrote; nothing once its folder is removed."""
        log = self.bed / "log"
        return log.read_text()[-6000:] if log.exists() else ""

    def write_notebook(self, cells: Sequence[str], name: str) -> None:
        """A notebook file of code cells."""
        content = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{i}",
                    "metadata": {},
                    "execution_count": None,
                    "outputs": [],
                    "source": source,
                }
                for i, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.notebooks / name).write_text(json.dumps(content))

    def end(self) -> None:
        """With its kernels."""
        with self._log:
            end(self.process, self.said)


class Lab:
    """The server as a browser shows it."""

    def __init__(self, server: LabServer, chromium: Browser, pictures: Path):
        self.server = server
        self.chromium = chromium
        self.pictures = pictures

    def address(self, path: str, **query: str) -> str:
        """Of a page, with the token; ``path`` is relative to the server's base URL."""
        return f"{self.server.url}{path}?{urlencode({'token': TOKEN, **query})}"

    @contextlib.contextmanager
    def open_page(
        self, path: str = "lab", before: Callable[[Page], None] | None = None, **options: Any
    ) -> Iterator[Page]:
        """A window of its own, with cookies of its own, once JupyterLab shows itself; a clean workspace.

        ``before`` prepares the page before it asks for anything. ``options`` are of Playwright's ``new_context``, such
        as ``color_scheme="dark"``.
        """
        with self.chromium.new_context(**{"viewport": {"width": WIDTH, "height": HEIGHT}, **options}) as context:
            context.set_default_timeout(LONG * 1000)
            page = context.new_page()
            if before is not None:
                before(page)
            page.goto(self.address(path, reset=""), timeout=LONG * 1000)
            page.wait_for_selector("#jupyterlab-splash", state="detached")
            yield page

    @contextlib.contextmanager
    def open_notebook(
        self, cells: Sequence[str], name: str = "test.ipynb", below: str = "lab/tree", **options: Any
    ) -> Iterator[LabNotebook]:
        """A new notebook of these code cells, once its kernel can be used; the kernel ends with it.

        ``below`` says which application shows it: "notebooks" is Notebook 7.
        """
        self.server.write_notebook(cells, name)
        with self.open_page(f"{below}/{name}", **options) as page:
            notebook = LabNotebook(page, self.pictures)
            notebook.until_ready()
            try:
                yield notebook
            finally:
                notebook.end_kernel()


class LabNotebook:
    """The notebook that a page shows. Cells are counted from 0."""

    def __init__(self, page: Page, pictures: Path):
        self.page = page
        self.complaints: list[str] = []
        """Errors on the browser's console, from when the notebook was opened."""
        self._pictures = pictures
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def until_ready(self) -> None:
        """The kernel is connected and idle."""
        self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
        self.page.wait_for_function(IS_READY)

    def cell(self, index: int) -> Locator:
        """With its input and its outputs."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """Everything that a cell has shown."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def text(self, index: int) -> str:
        """Everything that a cell has shown, as it is read; "" if nothing."""
        return self.output(index).inner_text().strip() if self.output(index).count() else ""

    def start(self, index: int) -> None:
        """Run a cell, and do not wait for its end."""
        self.page.evaluate(RUN, index)

    def until_over(self, index: int) -> None:
        """The cell that was started has its number."""
        self.page.wait_for_function(IS_OVER, arg=index)

    def run(self, index: int) -> str:
        """Run a cell to its end; what it has shown."""
        self.start(index)
        self.until_over(index)
        return self.text(index)

    def type(self, index: int, text: str) -> None:
        """At the end of a cell's source, as by keyboard; the cursor stays there."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Control+End")
        self.page.keyboard.insert_text(text)

    def interrupt(self) -> None:
        """The Stop button."""
        self.page.evaluate("() => void window.jupyterapp.commands.execute('notebook:interrupt-kernel')")

    def end_kernel(self) -> None:
        """Shut the kernel down."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")

    def picture(self, name: str, of: Locator | None = None) -> Path:
        """A screenshot of the page or of a part, for people to look at; kept where ``JDIST_PICTURES`` says."""
        path = self._pictures / f"{name}.png"
        # not written by Playwright, which does it in a thread that it keeps: the test's leak check would find that
        path.write_bytes((of or self.page).screenshot())
        return path


def extension(folder: Path) -> str:
    """The option with which JupyterLab and Notebook 7 have jdist's extension as built in the tree, by ``folder``."""
    if not (EXTENSION / "package.json").exists():
        lacking("jdist's JupyterLab extension has not been built: make labextension")
    folder.mkdir()
    (folder / "jdist").symlink_to(EXTENSION)
    return f"--LabServerApp.extra_labextensions_path={folder}"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium without a window.

    While it is there, this thread has a running event loop (Playwright's), so nothing here can call ``asyncio.run``.
    """
    program = shutil.which("chromium")
    if program is None:
        lacking("tests in a browser need Chromium: apt install chromium")
    expect.set_options(timeout=LONG * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=LONG * 1000)
        try:
            yield browser
        finally:
            browser.close()
