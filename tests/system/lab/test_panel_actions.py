"""Actions of the panel in a real JupyterLab: nodes are added and examined, code is copied, a run's cell is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Locator, Route, expect

import jdist
from jdist.notebook.text.remedy_text import command
from support.lab.browsing import LONG, Lab
from support.lab.panelled import HANG, Panelled, panelled

if TYPE_CHECKING:
    from support.leaks import Traces

pytestmark = pytest.mark.usefixtures("traces")

SUM = "t = torch.ones(1); dist.all_reduce(t); t.item()"
CLIPBOARD = "() => navigator.clipboard.readText()"
GO_TO_THE_END = """() => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.activeCellIndex = content.widgets.length - 1;
  return content.scrollToItem(content.activeCellIndex);
}"""
IS_ACTIVE = """index => {
  const { content } = window.jupyterapp.shell.currentWidget;
  return content.activeCellIndex === index && content.node.contains(document.activeElement);
}"""
TIMES = re.compile(r"[\d.]+ m?s\b")
JOIN = re.compile(r"echo (jdist1\.\S+) \| jdist join --node-rank (\d) -")


@pytest.fixture(scope="module")
def shown(lab: Lab) -> Iterator[Panelled]:
    with panelled(lab, permissions=["clipboard-read", "clipboard-write"]) as shown:
        shown.widen()
        yield shown
        # Of a cluster that has just ended, a request that was under way finds nothing.
        assert not [said for said in shown.complaints if "404" not in said]


@pytest.fixture
def panel(shown: Panelled, cluster: jdist.Cluster) -> Panelled:
    """It looks at the shared cluster."""
    shown.choose("shared")
    expect(shown.row(3)).to_contain_text("idle")
    return shown


@pytest.fixture
def own(shown: Panelled, run_traces: Traces) -> Iterator[jdist.Cluster]:
    """One node of one rank, at which the panel looks."""
    with jdist.start(1, 1, backend="gloo", name="grows", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        shown.choose("grows")
        expect(shown.cluster("grows")).to_contain_text("idle")
        expect(shown.row(0)).to_contain_text("idle")
        yield cluster
    expect(shown.cluster("grows")).to_have_count(0)


@pytest.fixture
def hanging(panel: Panelled, cluster: jdist.Cluster) -> Iterator[jdist.CellRun]:
    """A run that cannot finish."""
    run = cluster.run(HANG, background=True)
    expect(panel.verdict).to_contain_text("rank 3")
    expect(panel.row(0)).to_contain_text("barrier")
    yield run
    run.cancel()
    assert run.wait(LONG)
    expect(panel.verdict).to_have_count(0)


def offered(shown: Panelled, cluster: str, entry: str) -> Locator:
    """What the menu of a cluster offers, opened by its button."""
    # a menu is as things are when it is opened
    shown.cluster(cluster).get_by_role("button", name=f"Actions for cluster {cluster}").click()
    return shown.page.get_by_role("menuitem", name=entry)


# ---------------------------------------------------------------- nodes


def test_a_node_is_added(shown: Panelled, own: jdist.Cluster, lab: Lab) -> None:
    own.run("born = rank")
    offered(shown, "grows", "Add a node…").click()
    dialog = shown.dialog
    expect(dialog).to_contain_text("Add nodes to grows")
    expect(dialog.get_by_label("Launcher")).to_have_value("local")
    expect(dialog.get_by_label("Ranks per node")).to_have_attribute("placeholder", "1, as the last node")
    assert shown.serious_findings(".jp-Dialog") == []
    dialog.get_by_label("Nodes").fill("two")
    expect(dialog.get_by_role("alert")).to_have_text("A whole number, not “two”.")
    expect(dialog.get_by_role("button", name="Add", exact=True)).to_be_disabled()
    dialog.get_by_label("Nodes").fill("2")
    (lab.pictures / "add-node.png").write_bytes(shown.page.screenshot())
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("status")).to_be_visible()
    expect(dialog).to_have_count(0)
    expect(shown.rows).to_have_count(3)
    expect(shown.row(2)).to_contain_text("idle")
    assert own.run("born", [0]).values == {0: 0}
    assert own.run(SUM, timeout=30).values == dict.fromkeys(range(3), 3.0)
    shown.show_notifications()
    expect(shown.notifications).to_contain_text("with rank 2; the world has 3")


def test_why_no_node_can_be_added_is_said_in_the_form(shown: Panelled, own: jdist.Cluster) -> None:
    run = own.run("import time\ntime.sleep(300)", background=True)
    expect(shown.row(0)).to_contain_text("running")
    offered(shown, "grows", "Add a node…").click()
    shown.dialog.get_by_role("button", name="Add", exact=True).click()
    why = f"run {run.number} is running on rank 0: wait for its end or interrupt it, then add a node"
    expect(shown.dialog.get_by_role("alert")).to_have_text(why)
    run.cancel()
    assert run.wait(LONG)
    shown.dialog.get_by_role("button", name="Cancel").click()


def test_a_launcher_that_cannot_add_nodes(shown: Panelled, own: jdist.Cluster) -> None:
    fields = {"hosts": "", "nodes": "1", "options": [], "arguments": "", "problem": "", "cannot_add": ""}
    forms = {"join": fields, "kubernetes": {**fields, "cannot_add": "it cannot"}}
    launch = {"launchers": [*forms], "forms": forms, "max_ranks": 0, "ranks_here": 1, "defaults": {}}
    adding = {"launcher": "kubernetes", "nproc": 1, "backend": "gloo"}

    def answer(route: Route) -> None:
        route.fulfill(json=adding if route.request.url.partition("?")[0].endswith("/nodes") else launch)

    shown.page.route(re.compile("/clusters/grows/nodes|/jdist/launch"), answer, times=2)
    offered(shown, "grows", "Add a node…").click()
    dialog = shown.dialog
    expect(dialog.get_by_role("alert")).to_contain_text("kubernetes cannot add nodes to a running cluster")
    expect(dialog.get_by_role("button", name="Add", exact=True)).to_be_disabled()
    dialog.get_by_label("Launcher").select_option("join")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    expect(dialog.get_by_role("button", name="Add", exact=True)).to_be_enabled()
    dialog.get_by_role("button", name="Cancel").click()


def test_the_line_to_run_on_a_node_that_the_user_starts(shown: Panelled, own: jdist.Cluster, lab: Lab) -> None:
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url))
    offered(shown, "grows", "Add a node…").click()
    dialog = shown.dialog
    dialog.get_by_label("Launcher").select_option("join")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.locator("pre")).to_have_text(JOIN)
    (lab.pictures / "add-node-line.png").write_bytes(shown.page.screenshot())
    assert shown.serious_findings(".jp-Dialog") == []
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    line = shown.page.evaluate(CLIPBOARD)
    found = JOIN.fullmatch(line)
    assert found, line
    assert not [url for url in asked if "jdist1." in url]

    dialog.get_by_role("button", name="Continue in background").click()
    expect(shown.cluster("grows")).to_contain_text("Adding a node: waiting for the node to join")
    offered(shown, "grows", "Show the nodes that are being added…").click()
    expect(dialog.locator("pre")).to_have_text(line)
    dialog.get_by_role("button", name="Stop adding").click()
    expect(shown.cluster("grows")).not_to_contain_text("Adding a node")

    offered(shown, "grows", "Add a node…").click()
    dialog.get_by_label("Launcher").select_option("join")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.locator("pre")).to_have_text(JOIN)
    last = JOIN.fullmatch(dialog.locator("pre").inner_text())
    assert last
    words = [sys.executable, "-m", "jdist", "join", "--node-rank", last[2], "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        agent.stdin.write(last[1] + "\n")
        agent.stdin.close()
        expect(dialog).to_have_count(0)
        expect(shown.row(1)).to_contain_text("idle")
        assert own.run(SUM, timeout=30).values == {0: 2.0, 1: 2.0}
        own.remove([1])
        assert agent.wait(LONG) == 0
        assert agent.stdout is not None
        agent.stdout.read()


def test_the_doctors_report_while_a_cell_hangs(panel: Panelled, hanging: jdist.CellRun, lab: Lab) -> None:
    offered(panel, "shared", "Run doctor").click()
    report = panel.page.get_by_role("document", name="Doctor: shared")
    expect(report).to_contain_text("from \\ to")
    assert report.inner_text()[0] in "✗⚠·✓", "findings come first"
    assert report.evaluate("each => each.scrollTop") == 0
    (lab.pictures / "doctor.png").write_bytes(panel.page.screenshot())
    assert panel.serious_findings(".jdist-textviewer") == []


# ---------------------------------------------------------------- runs


def test_the_verdict_is_copied_as_text(panel: Panelled, hanging: jdist.CellRun, cluster: jdist.Cluster) -> None:
    panel.panel.get_by_role("button", name="Copy the verdict").click()
    panel.show_notifications()
    expect(panel.notifications).to_contain_text(f"The verdict on run {hanging.number} is in the clipboard.")
    told = cluster.status().verdicts[0].text(command)
    assert TIMES.sub("s", panel.page.evaluate(CLIPBOARD)) == TIMES.sub("s", told)


def test_a_run_of_no_open_notebook(panel: Panelled, hanging: jdist.CellRun) -> None:
    panel.menu(0, f"Go to the cell of run {hanging.number}")
    said = panel.dialog
    expect(said).to_contain_text(f"Run {hanging.number} of shared belongs to no notebook that is open in this page.")
    expect(said).to_contain_text(re.compile(r"It began on ranks 0-3 \d+ s ago; 1 of 4 are done\. Rank 0: barrier #\d+"))
    expect(said.locator("pre")).to_have_text(f"%dist output {hanging.number}")
    assert panel.serious_findings(".jp-Dialog") == []
    said.get_by_role("button", name="Close").click()


def test_the_cell_of_a_run_and_code_of_the_notebooks_folder(lab: Lab, cluster: jdist.Cluster) -> None:
    code = "%%dist\nif rank != 3:\n    dist.barrier()"
    cells = ["%load_ext jdist\n%dist attach shared", code, *(f"# {i}\n" + "x\n" * 20 for i in range(12))]
    with lab.open_notebook(cells, name="far.ipynb", viewport={"width": 1400, "height": 700}) as notebook:
        notebook.run(0)
        notebook.start(1)
        panel = Panelled(notebook.page)
        panel.open()
        panel.choose("shared")
        expect(panel.verdict).to_contain_text("rank 3")
        notebook.page.evaluate(GO_TO_THE_END)
        expect(notebook.cell(1).get_by_role("status").first).not_to_be_in_viewport()
        panel.do("launcher:create")  # another tab is in front
        panel.panel.get_by_role("button", name="Go to the cell of run").click()
        notebook.page.wait_for_function(IS_ACTIVE, arg=1)
        expect(notebook.cell(1).locator(".cm-content")).to_be_in_viewport()
        notebook.picture("go-to-cell")
        panel.verdict.get_by_role("button", name="%dist interrupt").click()
        notebook.until_over(1)

        (lab.server.notebooks / "beside.py").write_text("ANSWER = 42\n")
        with jdist.start(1, 1, backend="gloo", name="synced", timeout=60, idle_timeout=60) as other:
            panel.choose("synced")
            expect(panel.cluster("synced")).to_contain_text("idle")
            offered(panel, "synced", "Sync code…").click()
            field = panel.dialog.get_by_label("Folder or file of the Jupyter server")
            expect(field).to_have_value(re.compile(r"/notebooks$"))
            assert panel.serious_findings(".jp-Dialog") == []
            notebook.picture("sync")
            panel.dialog.get_by_role("button", name="Sync").click()
            panel.show_notifications()
            expect(panel.notifications).to_contain_text(re.compile(r"synced notebooks: \d+ files? of \d+ written"))
            assert other.run("import beside\nbeside.ANSWER").values == {0: 42}
            offered(panel, "synced", "Sync code…").click()
            field.fill("/no/such/folder")
            panel.dialog.get_by_role("button", name="Sync").click()
            panel.show_notifications()
            expect(panel.notifications).to_contain_text("there is no such file or folder here")
        # the request that fails is noted on the console
        assert [said for said in notebook.complaints if "400" not in said] == []


def test_all_of_them_are_in_the_palette_and_the_menu(panel: Panelled) -> None:
    page = panel.page
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.locator('.lm-Menu-item[data-type="submenu"]').get_by_text("Distributed PyTorch (jdist)").click()
    for entry in ("Add a node…", "Sync code…", "Run doctor", "Go to the cell", "Copy the verdict"):
        expect(page.get_by_role("menuitem", name=entry)).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".lm-Menu")).to_have_count(0)  # a menu that closes takes the focus, which hides the palette
    panel.do("apputils:activate-command-palette")
    for entry in ("Add a node…", "Sync code…", "Run doctor"):
        page.locator(".lm-CommandPalette-input").fill(entry)
        expect(page.locator(".lm-CommandPalette-itemLabel", has_text=entry).first).to_be_visible()
    page.keyboard.press("Escape")
