"""JupyterLab with jdist: from a click to its effect, requests of an idle page, and the scripts that a page fetches."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from measuring.frontend import IDLE, private_runtime
from measuring.table import MILLISECONDS, Pairs, Table, Unit, cannot_run

import jdist

ROOT = Path(__file__).parents[1]
TURNS = 8
IDLE_SECONDS = 60
KILOBYTES = Unit("kB", 1e-3, 0)
REQUESTS = Unit("requests", 1.0, 0)
LOOP = "import time\nwhile True:\n    time.sleep(0.01)"
HANG = "%%dist\nif rank != 3:\n    dist.barrier()"
LOGS = "%%dist\nimport jdist\njdist.log(loss=1.0)"
# As the button of the notebook's toolbar does: it asks the server to interrupt the kernel.
STOP = "() => void window.jupyterapp.commands.execute('notebook:interrupt-kernel')"
IS_IDLE = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"


class Traffic:
    """What a page has requested, and how many bytes of scripts it got: all of them, and jdist's."""

    def __init__(self, page):
        self.urls: list[str] = []
        self.scripts: dict[str, int] = {}
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("response", self._add)

    def _add(self, response) -> None:
        path = response.url.partition("?")[0]
        if path.endswith(".js") and response.ok:
            self.scripts[path] = int(response.headers.get("content-length") or 0)

    @property
    def own(self) -> int:
        return sum(size for path, size in self.scripts.items() if "/extensions/jdist/" in path)

    @property
    def all(self) -> int:
        return sum(self.scripts.values())


def clicks(lab, table: Table) -> None:
    """A suggested interrupt in the panel, and JupyterLab's own Stop of a loop in a plain kernel, by turns."""
    from playwright.sync_api import expect

    from support.lab.panelled import Panelled, seconds_until

    figures, floors, selections = [], [], []
    with lab.open_notebook([LOOP, "%load_ext jdist\n%dist attach bench", HANG]) as notebook:
        page, panel = notebook.page, Panelled(notebook.page)
        panel.open()
        panel.choose("bench")
        notebook.run(1)
        for _ in range(TURNS):
            notebook.start(0)
            page.wait_for_function("() => !(" + IS_IDLE + ")()")
            time.sleep(0.3)  # the loop has begun
            began = time.monotonic()
            page.evaluate(STOP)
            page.wait_for_function(IS_IDLE)
            floors.append(time.monotonic() - began)
            notebook.until_over(0)

            notebook.start(2)
            button = panel.verdict.get_by_role("button", name="%dist interrupt")
            expect(button).to_be_visible()
            idle = panel.row(0).filter(has_text="idle")
            figures.append(seconds_until(button.click, idle))
            notebook.until_over(2)
            expect(panel.verdict).to_have_count(0)
            chosen = panel.row(1).locator('xpath=self::*[@aria-selected="true"]')
            selections.append(seconds_until(panel.row(1).click, chosen))
            page.keyboard.press("Escape")
    table.row("interrupt of 4 ranks in the panel; Stop of a kernel", Pairs(tuple(figures), tuple(floors)), MILLISECONDS)
    table.alone("a click on a rank, until it is selected", selections, MILLISECONDS)


def traffic(lab, table: Table) -> None:
    """Requests of a page with the panel of an idle cluster, and the scripts that it has fetched."""
    from support.lab.panelled import Panelled

    seen: list[Traffic] = []
    with lab.open_notebook(
        ["%load_ext jdist\n%dist attach bench", LOGS], before=lambda p: seen.append(Traffic(p))
    ) as notebook:
        (found,) = seen
        panel = Panelled(notebook.page)
        panel.open()
        notebook.run(0)
        panel.choose("bench")
        notebook.page.wait_for_timeout(3000)
        loaded = found.own, found.all
        del found.urls[:]
        notebook.page.wait_for_timeout(IDLE_SECONDS * 1000)
        urls = list(found.urls)
        notebook.run(1)
        notebook.output(1).locator("canvas").first.wait_for()
        with_chart = found.own
    own = sum("/jdist/" in url for url in urls)
    table.row("requests a minute, all; of JupyterLab itself", Pairs((len(urls),), (max(1, len(urls) - own),)), REQUESTS)
    table.row("scripts fetched by a page; JupyterLab's own", Pairs((loaded[0],), (loaded[1] - loaded[0],)), KILOBYTES)
    table.alone("scripts fetched with the first chart", [with_chart - loaded[0]], KILOBYTES)


def main() -> None:
    if shutil.which("chromium") is None:
        cannot_run("there is no Chromium; apt install chromium")
    if importlib.util.find_spec("playwright") is None:
        cannot_run("Playwright is not installed; make .venv/.tools")
    if not (ROOT / "labextension/built/package.json").exists():
        cannot_run("the JupyterLab extension has not been built; make labextension")
    sys.path.insert(0, str(ROOT / "tests"))
    from support.lab.browsing import Lab, LabServer, chromium, extension

    table = Table("JupyterLab with jdist, in Chromium")
    with tempfile.TemporaryDirectory(prefix="jb-", dir="/tmp") as place:
        bed = Path(place)
        server = LabServer(bed, Path(os.environ["JUPYTER_RUNTIME_DIR"]), [extension(bed / "extensions")])
        try:
            with jdist.start(nproc_per_node=2, nnodes=2, name="bench", idle_timeout=IDLE), chromium() as browser:
                lab = Lab(server, browser, bed)
                clicks(lab, table)
                traffic(lab, table)
        finally:
            server.end()


if __name__ == "__main__":
    with private_runtime():
        main()
