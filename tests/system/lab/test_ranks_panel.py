"""The panel in a real JupyterLab with a real cluster of two nodes: what it shows, and what can be done from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

import jdist
from support.lab.accessibility import findings_in_menu
from support.lab.browsing import Lab
from support.lab.panelled import HANG, Panelled, panelled, seconds_until, shows, type_in_terminal

pytestmark = pytest.mark.usefixtures("traces")
TERMINALS = "() => Array.from(window.jupyterapp.serviceManager.terminals.running()).map(each => each.name)"
END_TERMINALS = "() => window.jupyterapp.serviceManager.terminals.shutdownAll()"


@pytest.fixture(scope="module")
def shown(lab: Lab) -> Iterator[Panelled]:
    with panelled(lab) as shown:
        shown.widen()
        yield shown
        assert not shown.complaints


@pytest.fixture
def panel(shown: Panelled, cluster: jdist.Cluster) -> Iterator[Panelled]:
    """It looks at the shared cluster, and nothing is chosen."""
    shown.choose("shared")
    expect(shown.row(3)).to_contain_text("idle")
    yield shown
    shown.panel.get_by_role("searchbox").fill("")
    shown.row(0).press("Escape")


@pytest.fixture
def terminals(panel: Panelled) -> Iterator[None]:
    """They end with the test."""
    yield
    panel.page.evaluate(END_TERMINALS)
    expect(panel.page.locator(".jp-Terminal")).to_have_count(0)


def test_a_cluster_and_its_ranks(panel: Panelled) -> None:
    expect(panel.cluster("shared")).to_contain_text("idle")
    expect(panel.cluster("shared")).to_contain_text("4 ranks · 2 nodes · gloo")
    expect(panel.rows).to_have_count(4)
    for rank in range(4):
        expect(panel.row(rank).get_by_role("gridcell").nth(1)).to_have_text(str(rank // 2))
        expect(panel.row(rank)).to_contain_text("cpu")
        expect(panel.row(rank)).to_contain_text("MiB")
    assert panel.table.get_by_role("columnheader", name="GPU").count() == 0
    expect(panel.status).to_have_text(re.compile("4/4 ranks · gloo · idle"))
    assert panel.findings_in_all_themes() == []


def test_a_verdict_and_its_suggested_action(panel: Panelled, cluster: jdist.Cluster) -> None:
    run = cluster.run(HANG, background=True)
    expect(panel.verdict).to_contain_text("rank 3")
    expect(panel.row(0)).to_contain_text(re.compile(rf"barrier #\d+, \d+ s · run {run.number}"))
    before = panel.row(0).inner_text()
    expect(panel.row(0)).not_to_have_text(before)  # time goes on between events
    expect(panel.row(3)).to_contain_text("idle")
    expect(panel.status).to_contain_text("cannot finish")
    expect(panel.cluster("shared")).to_contain_text("cannot finish")
    panel.verdict.get_by_role("button", name="Select the responsible ranks").click()
    expect(panel.row(3)).to_have_attribute("aria-selected", "true")
    for part in ("#jdist-panel", ".jdist-status"):
        assert panel.findings_in_all_themes(part) == []
    panel.verdict.get_by_role("button", name="%dist interrupt").click()
    expect(panel.verdict).to_have_count(0)
    expect(panel.row(0)).to_contain_text("idle")
    assert run.wait(60)
    expect(panel.status).to_contain_text("idle")


def test_a_suggested_cell_is_asked_for_and_run_beside_the_run_that_waits(
    panel: Panelled, cluster: jdist.Cluster
) -> None:
    run = cluster.run("if rank != 3:\n    dist.all_reduce(torch.ones(1))", background=True)
    try:
        panel.verdict.get_by_role("button", name="%%dist -r 3").click()
        expect(panel.dialog).to_contain_text("Run a cell on rank 3")
        assert panel.findings_in_all_themes(".jp-Dialog") == []
        panel.dialog.get_by_role("textbox").fill("dist.all_reduce(torch.ones(1))\nprint('joined')")
        panel.dialog.get_by_role("button", name="Run").click()
        panel.show_notifications()
        expect(panel.notifications).to_contain_text("joined")
        assert run.wait(60)
        assert all(outcome.ok for outcome in run.outcomes.values())
    finally:
        run.cancel()
        run.wait(60)
    expect(panel.row(0)).to_contain_text("idle")


def test_a_suggested_cell_that_cannot_be_run_is_reported(panel: Panelled, cluster: jdist.Cluster) -> None:
    run = cluster.run("if rank != 3:\n    dist.all_reduce(torch.ones(1))", background=True)
    path = "**/jdist/clusters/shared/cells*"
    panel.page.route(path, lambda route: route.fulfill(status=409, json={"message": "the ranks are busy"}))
    try:
        panel.verdict.get_by_role("button", name="%%dist -r 3").click()
        panel.dialog.get_by_role("textbox").fill("1")
        panel.dialog.get_by_role("button", name="Run").click()
        panel.show_notifications()
        expect(panel.notifications).to_contain_text("the ranks are busy")
    finally:
        panel.page.unroute(path)
        run.cancel()
        run.wait(60)
    panel.complaints.clear()  # Chromium's own line about the answer's status
    expect(panel.row(0)).to_contain_text("idle")


def test_ranks_are_sorted_filtered_and_grouped(panel: Panelled) -> None:
    panel.table.get_by_title("Sort by Rank").click()
    expect(panel.table.get_by_role("columnheader", name="Rank")).to_have_attribute("aria-sort", "descending")
    assert [row.get_attribute("data-key") for row in panel.rows.all()] == ["r3", "r2", "r1", "r0"]
    panel.table.get_by_title("Sort by Rank").click()
    search = panel.panel.get_by_role("searchbox")
    search.fill("1-2")
    expect(panel.rows).to_have_count(2)
    search.fill("running")
    expect(panel.rows).to_have_count(0)
    search.fill("")
    panel.panel.get_by_role("button", name="Group ranks by node").click()
    expect(panel.rows).to_have_count(6)
    expect(panel.rows.nth(3)).to_have_text(re.compile(r"node 1, \S+: 2 ranks"))
    panel.rows.nth(3).click()
    expect(panel.panel.locator(".jdist-filter")).to_contain_text("selected: 2-3")
    panel.panel.get_by_role("button", name="Group ranks by node").click()
    expect(panel.rows).to_have_count(4)


def test_ranks_by_keyboard(panel: Panelled) -> None:
    keyboard = panel.page.keyboard
    panel.row(0).click()
    keyboard.press("ArrowDown")
    expect(panel.row(1)).to_be_focused()
    keyboard.press("Space")
    expect(panel.panel.locator(".jdist-filter")).to_contain_text("selected: 0-1")
    keyboard.press("End")
    expect(panel.row(3)).to_be_focused()
    keyboard.press("Escape")
    expect(panel.row(0)).to_have_attribute("aria-selected", "false")
    keyboard.press("Control+a")
    expect(panel.row(2)).to_have_attribute("aria-selected", "true")
    keyboard.press("Escape")
    keyboard.press("Enter")
    expect(panel.page.get_by_role("menuitem", name="Interrupt ranks 3")).to_be_visible()
    assert findings_in_menu(panel.page) == []
    keyboard.press("Escape")
    expect(panel.row(3)).to_be_focused()


def test_groups_choose_their_ranks(panel: Panelled, cluster: jdist.Cluster) -> None:
    cluster.new_group("odd", "1,3")
    cluster.new_mesh("dp=2,tp=2")
    panel.panel.get_by_role("button", name="odd").click()
    expect(panel.row(1)).to_have_attribute("aria-selected", "true")
    expect(panel.row(0)).to_have_attribute("aria-selected", "false")
    mesh = panel.panel.get_by_role("table", name="mesh dp=2, tp=2")
    mesh.get_by_role("button", name="dp=1").click()
    expect(panel.panel.locator(".jdist-filter")).to_contain_text("selected: 2-3")
    mesh.get_by_role("button", name="rank 0, idle").click()
    panel.page.keyboard.press("ArrowDown")
    expect(mesh.get_by_role("button", name="rank 2, idle")).to_be_focused()
    assert panel.findings_in_all_themes() == []


def test_what_a_row_offers(panel: Panelled, cluster: jdist.Cluster) -> None:
    cluster.run("x = 1\nprint('said by', rank)")
    run = cluster.run("import time\nif rank == 2:\n    time.sleep(300)", background=True)
    expect(panel.row(2)).to_contain_text("sleep")
    panel.menu(2, "Stack of a rank")
    expect(panel.page.get_by_role("document", name="Stack of rank 2 of shared")).to_contain_text("time.sleep")
    panel.menu(1, "Log of a rank")
    log = panel.page.get_by_role("document", name="Log of rank 1 of shared")
    expect(log).not_to_be_empty()
    panel.menu(2, "Interrupt ranks 2")
    assert run.wait(60)
    expect(panel.row(2)).to_contain_text("idle")
    assert panel.findings_in_all_themes(".jdist-textviewer") == []


def test_a_console_opens_in_a_terminal(panel: Panelled, cluster: jdist.Cluster, terminals: None, lab: Lab) -> None:
    cluster.run("x = rank * 20")
    asked: list[str] = []
    panel.page.on("request", lambda request: asked.append(request.url))
    panel.menu(2, "Console of a rank")
    shows(panel.page, "In [")
    type_in_terminal(panel.page, "x + 2")
    shows(panel.page, ": 42")
    type_in_terminal(panel.page, "typed = 'here'")
    shows(panel.page, "typed = 'here'")
    picture = lab.pictures / "console.png"
    picture.write_bytes(panel.page.screenshot())
    type_in_terminal(panel.page, "exit")
    shows(panel.page, "keeping kernel alive")
    assert cluster.run("typed", ranks=[2]).values == {2: "here"}
    assert panel.page.evaluate(TERMINALS) == ["rank_2_of_shared"]
    key = json.loads(Path(cluster.console(2).connection_file).read_text())["key"]
    assert not [url for url in asked if key in url or "existing" in url]


def test_a_second_console_is_another_terminal(panel: Panelled, terminals: None) -> None:
    for name in ("rank_1_of_shared", "rank_1_of_shared_2"):
        panel.menu(1, "Console of a rank")
        expect(panel.page.get_by_role("tab", name=f"Terminal {name}", exact=True)).to_be_visible()
        shows(panel.page, "In [")
    assert sorted(panel.page.evaluate(TERMINALS)) == ["rank_1_of_shared", "rank_1_of_shared_2"]


def test_where_the_server_cannot_reach_the_rank_there_is_a_command_to_copy(panel: Panelled) -> None:
    def answer(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "hostname": "far", "command_here": "", "reason": "the rank is on far"})

    panel.page.route("**/ranks/2/console*", answer, times=1)
    panel.menu(2, "Console of a rank")
    expect(panel.dialog).to_contain_text("No terminal can be opened here: the rank is on far.")
    expect(panel.dialog).to_contain_text("run this in a terminal on far:")
    expect(panel.dialog).to_contain_text("jupyter console --existing /")
    assert panel.serious_findings(".jp-Dialog") == []
    panel.dialog.get_by_role("button", name="Close").click()
    assert panel.page.evaluate(TERMINALS) == []


def test_a_restart_asks_first(panel: Panelled, cluster: jdist.Cluster) -> None:
    cluster.run("kept = rank")
    panel.menu(1, "Restart ranks 1")
    expect(panel.dialog).to_contain_text("variables are lost")
    assert panel.serious_findings(".jp-Dialog") == []
    panel.dialog.get_by_role("button", name="Cancel").click()
    assert cluster.run("kept").values == {r: r for r in range(4)}
    panel.menu(1, "Restart ranks 1")
    pid = cluster.status().ranks[1].pid
    panel.dialog.get_by_role("button", name="Restart").click()
    expect(panel.row(1)).to_contain_text(re.compile(r"replaced [1-9]\d* s ago: earlier variables are lost"))
    assert cluster.status().ranks[1].pid != pid


def test_how_soon_it_shows(panel: Panelled, cluster: jdist.Cluster) -> None:
    run = cluster.run("import time\ntime.sleep(300)", background=True)
    busy = panel.row(0).get_by_text("running", exact=True)
    busy.wait_for()
    interrupt = panel.panel.get_by_role("button", name="Interrupt all ranks")
    ended = seconds_until(interrupt.click, panel.row(0).get_by_text("idle", exact=True))
    assert run.wait(60)
    panel.row(0).press("Escape")
    chosen = panel.table.locator('[data-key="r0"][aria-selected="true"]')
    here = seconds_until(panel.row(0).click, chosen)
    print(f"from the click on Interrupt to 'idle' on the screen: {ended:.2f} s; a row chosen: {here * 1000:.0f} ms")
