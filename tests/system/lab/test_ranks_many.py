"""The panel with what no test can have for real: hundreds of ranks, and servers that lack what it needs.

The server's answers are made up here, in the browser; what it really answers is in ``tests/server``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from support.lab.browsing import Lab
from support.lab.panelled import Panelled, panelled

RANKS = 600
THEMES = ("JupyterLab Dark", "JupyterLab Dark High Contrast", "JupyterLab Light")

PRESS_AT_ONCE = """async keys => {
  const focused = [];
  for (const key of keys) {
    document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    await new Promise(resolve => setTimeout(resolve)); // not a frame
    focused.push(document.activeElement.dataset.key);
  }
  return focused;
}"""
SAVE_SETTINGS = "raw => window.jupyterapp.serviceManager.settings.save('jdist:plugin', raw)"


def rank(number: int, state: str = "running") -> dict[str, Any]:
    return {
        "rank": number,
        "node": number // 8,
        "local_rank": number % 8,
        "hostname": f"host-{number // 8}",
        "pid": 1000 + number,
        "state": state,
        "run": 7,
        "last_line": "",
        "is_fresh": False,
        "death": "",
        "death_age": 0,
        "device": f"cuda:{number % 8}",
        "rss": (2 << 30) + (number << 20),
        "gpu_name": f"GPU {number % 8} (NVIDIA H100)",
        "gpu_used": 31 << 30,
        "gpu_own": 30 << 30,
        "gpu_total": 80 << 30,
        "gpu_busy": 0.9,
        "doing": {
            "kind": "collective",
            "op": "all_reduce",
            "number": 12,
            "group": "world",
            "line": 3,
            "source": "dist.all_reduce(x)",
            "seconds": 5.0 + number,
            "cpu": 1.0,
            "waits_for": "",
            "process": "",
        },
        "progress": [],
    }


def cluster(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "state": "ready", "reason": "", "version": "", **facts}


MANY = cluster(
    "many",
    backend="nccl",
    nnodes=RANKS // 8,
    world_size=RANKS,
    ready=RANKS,
    generation=1,
    mesh={"names": ["pp", "dp", "tp"], "sizes": [5, 15, 8]},
    groups=[],
    runs=[{"number": 7, "state": "running", "ranks": f"0-{RANKS - 1}", "count": RANKS, "done": 0, "seconds": 5.0}],
)


def hear_nothing(page: Page) -> None:
    """Of the server's real clusters, by events."""
    page.route_web_socket(re.compile("/api/events/subscribe"), lambda socket: None)


@pytest.fixture(scope="module")
def shown(lab: Lab) -> Iterator[Panelled]:
    with panelled(lab, before=hear_nothing) as shown:
        shown.widen()
        yield shown


def answer(panel: Panelled, status: int = 200, clusters: Any = (), ranks: list[dict[str, Any]] | None = None) -> None:
    """From now on the server answers so, and is asked."""

    def fulfill(route: Route) -> None:
        if route.request.url.split("?")[0].endswith("/clusters"):
            body: Any = {"clusters": clusters, "message": "no"}
        else:
            body = {**clusters[0], "ranks": ranks or []}
        route.fulfill(status=status, content_type="application/json", body=json.dumps(body))

    panel.page.unroute("**/jdist/clusters**")
    panel.page.route("**/jdist/clusters**", fulfill)
    panel.do("jdist:refresh")


def test_hundreds_of_rows_are_drawn_as_they_are_seen(shown: Panelled) -> None:
    answer(shown, clusters=[MANY], ranks=[rank(r) for r in range(RANKS)])
    expect(shown.row(0)).to_contain_text("all_reduce #12")
    expect(shown.row(0)).to_contain_text("30.0 / 80 GiB")
    expect(shown.row(0)).to_contain_text("90 %")
    memory = shown.row(0).get_by_text("30.0 / 80 GiB")
    expect(memory).to_have_attribute("title", re.compile(r"GPU 0 \(NVIDIA H100\)\n.*30.0 GiB\n.*31.0 GiB of 80.0 GiB"))
    assert shown.rows.count() < 80
    expect(shown.table).to_have_attribute("aria-rowcount", str(RANKS + 1))
    began = time.monotonic()
    shown.table.evaluate("each => each.scrollTo(0, each.scrollHeight)")
    expect(shown.row(RANKS - 1)).to_be_visible()
    scrolled = time.monotonic() - began
    assert shown.rows.count() < 80
    shown.row(RANKS - 1).click()
    shown.page.keyboard.press("Home")
    expect(shown.row(0)).to_be_focused()
    # keys as fast as they can come: none may find the focus nowhere
    assert shown.page.evaluate(PRESS_AT_ONCE, ["PageDown", "End", "PageUp", "Home", "End"])[-1] == f"r{RANKS - 1}"
    expect(shown.row(RANKS - 1)).to_be_focused()
    shown.panel.get_by_role("searchbox").fill("host-9 100")
    expect(shown.rows).to_have_count(0)
    shown.panel.get_by_role("searchbox").fill("496-505")
    expect(shown.rows).to_have_count(10)
    began = time.monotonic()
    shown.panel.get_by_role("searchbox").fill("")
    expect(shown.row(0)).to_be_visible()
    filtered = time.monotonic() - began
    answer(shown, clusters=[MANY], ranks=[rank(r, "gone" if r == 1 else "running") for r in range(RANKS)])
    expect(shown.row(1)).to_contain_text("gone")
    expect(shown.panel.get_by_role("table", name="mesh pp=5, dp=15, tp=8")).to_be_visible()
    print(f"{RANKS} ranks: scrolled to the end {scrolled * 1000:.0f} ms, filter taken away {filtered * 1000:.0f} ms")


def test_a_cluster_that_comes_changes_nothing_of_what_is_looked_at(shown: Panelled) -> None:
    answer(shown, clusters=[MANY], ranks=[rank(r) for r in range(8)])
    expect(shown.rows).to_have_count(8)
    answer(shown, clusters=[MANY, cluster("early")], ranks=[rank(r) for r in range(16)])
    expect(shown.cluster("early")).to_be_visible()
    expect(shown.rows).to_have_count(16)
    expect(shown.table).to_have_accessible_name("Ranks of many")


@pytest.mark.parametrize("theme", THEMES)
def test_themes(lab: Lab, shown: Panelled, theme: str) -> None:
    verdict = {
        "run": 7,
        "kind": "missing",
        "is_certain": True,
        "headline": "run 7 cannot finish: rank 3 has not entered all_reduce #12",
        "details": ["ranks 0-2 wait in all_reduce at cell line 3 (5.0 s)"],
        "responsible": [3],
        "waiting": [0, 1, 2],
        "remedies": [{"action": "interrupt", "ranks": "", "effect": "stop the run everywhere"}],
    }
    few = {**MANY, "world_size": 4, "ready": 3, "nnodes": 1, "mesh": {"names": ["dp"], "sizes": [4]}}
    states = ["running", "idle", "gone", "starting"]
    answer(shown, clusters=[{**few, "verdicts": [verdict]}], ranks=[rank(r, s) for r, s in enumerate(states)])
    expect(shown.rows).to_have_count(4)
    shown.do("apputils:change-theme", theme=theme)
    expect(shown.page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
    expect(shown.rows).to_have_count(4)  # drawn again in this theme
    for state, row in zip(states, shown.rows.all(), strict=True):
        expect(row).to_contain_text(state)  # in words, not by colour alone
    shown.page.screenshot(path=lab.pictures / f"panel-{theme.replace(' ', '-').lower()}.png")
    assert shown.serious_findings() == []


def test_nothing_there_says_why_and_what_to_do(shown: Panelled) -> None:
    answer(shown)
    expect(shown.panel).to_contain_text("You have no clusters")
    expect(shown.panel.get_by_role("button", name="Start a cluster…")).to_be_enabled()
    expect(shown.panel).to_contain_text("%dist mesh")
    answer(shown, 404)
    expect(shown.panel.get_by_role("alert")).to_contain_text("jupyter server extension enable jdist")
    answer(shown, 403)
    expect(shown.panel.get_by_role("alert")).to_contain_text("You are not allowed to see clusters on this server: no")
    answer(shown, clusters="another answer")
    expect(shown.panel.get_by_role("alert")).to_contain_text("restart the Jupyter server and reload")
    assert shown.findings_in_all_themes() == []
    answer(shown, clusters=[cluster("c1")])
    shown.panel.get_by_role("button", name="Refresh the list").click()
    expect(shown.cluster("c1")).to_be_visible()


def test_clusters_that_cannot_be_attached_to(shown: Panelled) -> None:
    foreign = cluster("old", state="foreign", reason="it is version 0.0.1")
    lost = cluster("lost", state="orphaned", reason="its controller is gone")
    answer(shown, clusters=[lost, foreign])
    expect(shown.cluster("old")).to_contain_text("another version")
    expect(shown.cluster("old").get_by_role("button", name="Stop")).to_have_count(0)
    expect(shown.panel).to_contain_text("revive the cluster to use it again")
    assert shown.findings_in_all_themes() == []
    with shown.page.expect_request("**/jdist/clusters/lost/revive?*") as asked:
        shown.cluster("lost").get_by_role("button", name="Revive").click()
    assert asked.value.method == "POST"


def test_the_panel_and_its_view_are_there_after_a_reload(lab: Lab) -> None:
    with panelled(lab, before=hear_nothing) as panel:
        answer(panel, clusters=[MANY], ranks=[rank(r) for r in range(16)])
        with panel.page.expect_response(lambda r: "/api/workspaces/" in r.url and r.request.method == "PUT"):
            panel.panel.get_by_role("button", name="Group ranks by node").click()
        expect(panel.rows.nth(0)).to_contain_text("node 0, host-0: 8 ranks")
        # the layout is written down a moment after the view
        with panel.page.expect_response(lambda r: "/api/workspaces/" in r.url and r.request.method == "PUT"):
            panel.do("application:toggle-left-area")
            panel.do("jdist:open-panel")
        panel.page.goto(lab.address("lab"))
        panel.page.wait_for_selector("#jupyterlab-splash", state="detached")
        expect(panel.panel).to_be_visible()
        expect(panel.rows.nth(0)).to_contain_text("node 0, host-0: 8 ranks")


def test_everything_is_in_the_palette_and_the_menu(shown: Panelled) -> None:
    answer(shown, clusters=[MANY], ranks=[rank(r) for r in range(16)])
    expect(shown.rows.first).to_be_visible()
    shown.do("apputils:activate-command-palette")
    search = shown.page.locator(".lm-CommandPalette-input")
    search.fill("ranks")
    palette = shown.page.locator(".lm-CommandPalette-content")
    for entry in ("Show the ranks panel", "Interrupt all ranks", "Restart all ranks…", "Log of a rank"):
        expect(palette).to_contain_text(entry)
    shown.page.keyboard.press("Escape")
    shown.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    submenu = shown.page.locator(".lm-Menu-item")  # it has no role in Lumino
    submenu.get_by_text("Distributed PyTorch (jdist)").click()
    expect(shown.page.get_by_role("menuitem", name="Start a cluster…")).to_be_visible()
    shown.page.keyboard.press("Escape")
    shown.page.keyboard.press("Escape")


def test_the_status_bar_by_a_setting(shown: Panelled) -> None:
    answer(shown, clusters=[MANY], ranks=[rank(r) for r in range(16)])
    expect(shown.status).to_contain_text("600/600 ranks · nccl · run 7: 0/600 done")
    shown.do("application:toggle-left-area")
    expect(shown.panel).not_to_be_visible()
    shown.status.click()
    expect(shown.panel).to_be_visible()
    assert shown.findings_in_all_themes(".jdist-status") == []
    shown.page.evaluate(SAVE_SETTINGS, '{"showStatus": false}')
    shown.page.reload()
    shown.page.wait_for_selector("#jupyterlab-splash", state="detached")
    shown.open()
    answer(shown, clusters=[MANY], ranks=[rank(r) for r in range(16)])
    expect(shown.rows.first).to_be_visible()
    expect(shown.page.locator(".jdist-status")).not_to_be_visible()
    shown.page.evaluate(SAVE_SETTINGS, "{}")
