"""The panel in a real JupyterLab: a cluster is looked at, interrupted while a cell runs, and stopped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from support.lab.accessibility import findings_in_all_themes
from support.lab.browsing import Lab

if TYPE_CHECKING:
    from support.leaks import Traces

PANEL = ".jp-Cell .jupyter-widgets.widget-vbox"
CELLS = [
    "%load_ext jdist\n%dist panel",
    "%dist start -n 2 --name seen -N 2 --idle-timeout 60",
    "%%dist\nkept = rank + 1\nif rank == 0: dist.barrier()\nelse:\n    import time\n    while True: time.sleep(0.1)",
    "%%dist\nprint('kept', kept)\nif rank < 3: dist.all_reduce(torch.ones(8))",
    "%dist stop",
]


def test_a_cluster_from_start_to_stop(lab: Lab, run_traces: Traces) -> None:
    with lab.open_notebook(CELLS, viewport={"width": 1250, "height": 1100}) as notebook:
        page, panel = notebook.page, notebook.output(0)
        notebook.run(0)
        expect(panel).to_contain_text("no cluster is in use")
        notebook.run(1)
        expect(panel).to_contain_text("4 ranks")
        run_traces.note_clusters()
        try:
            expect(panel).to_contain_text("idle")
            expect(panel.get_by_role("row")).to_have_count(4 + 1 + 1)  # of ranks, with their heads, and of groups
            expect(panel).to_contain_text("nothing runs, so nothing is asked")

            # a click while a cell runs
            notebook.start(2)
            expect(panel).to_contain_text(re.compile(r"running \(run 1\).*barrier #\d+ of world at line 3", re.DOTALL))
            assert "work only between cells" not in panel.inner_text()
            panel.get_by_role("button", name=re.compile("Interrupt$")).click()
            notebook.until_over(2)
            assert "CellInterrupted" in notebook.text(2)
            expect(panel).to_contain_text("interrupting run 1")

            # a verdict
            notebook.start(3)
            expect(panel.get_by_role("alert")).to_contain_text("rank 3")
            expect(panel.get_by_role("alert")).to_contain_text("%dist interrupt")
            notebook.picture("panel", panel)
            assert findings_in_all_themes(page, PANEL) == []
            panel.get_by_role("button", name=re.compile("Interrupt$")).click()
            notebook.until_over(3)
            assert "kept 1 | 2 | 3 | 4" in notebook.text(3)
            expect(panel.get_by_role("alert")).to_have_count(0)

            # the end
            notebook.run(4)
            expect(panel).to_contain_text("no cluster is in use")
            # JupyterLab's own panel may ask for the cluster in the moment in which it ends: the browser notes a 404
            assert [said for said in notebook.complaints if "404" not in said] == []
        finally:
            if "is stopped" not in notebook.text(4):
                notebook.interrupt()
                notebook.run(4)
