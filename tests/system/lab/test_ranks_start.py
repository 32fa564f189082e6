"""From the start dialog to a notebook that uses the cluster, and to its end; by a person who has never typed a verb."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from support.lab.browsing import Lab
from support.lab.panelled import Panelled, panelled

pytestmark = pytest.mark.usefixtures("traces")


def test_a_cluster_from_its_start_to_its_end(lab: Lab) -> None:
    with lab.open_notebook([""], "begun.ipynb") as notebook:
        panel = Panelled(notebook.page)
        panel.open()
        panel.panel.get_by_role("button", name="Start a cluster").first.click()
        expect(panel.dialog.get_by_label("Launcher")).to_have_value("local")
        expect(panel.dialog.get_by_label("Ranks per node")).to_be_focused()
        notebook.picture("start-dialog")
        expect(panel.dialog.get_by_label("Ranks per node")).to_have_attribute("placeholder", "one per GPU, else 2")
        expect(panel.dialog.get_by_label("Hosts")).to_have_count(0)
        panel.dialog.get_by_label("Ranks per node").fill("two")
        panel.dialog.get_by_label("Nodes").fill("abc")
        expect(panel.dialog.get_by_role("alert")).to_contain_text(["not “abc”", "not “two”"])
        expect(panel.dialog.get_by_label("Nodes")).to_have_attribute("aria-invalid", "true")
        panel.page.keyboard.press("Enter")
        expect(panel.dialog.get_by_role("button", name="Start")).to_be_disabled()
        notebook.picture("start-dialog-refused")
        assert panel.findings_in_all_themes(".jp-Dialog") == []
        panel.dialog.get_by_label("Nodes").fill("")
        panel.dialog.get_by_label("Ranks per node").fill("2")
        panel.dialog.get_by_label("Name").fill("begun")
        panel.dialog.get_by_role("button", name="Start").click()
        expect(panel.dialog).to_contain_text("Starting begun")
        expect(panel.dialog.get_by_role("progressbar")).to_be_visible()
        expect(panel.dialog).to_have_count(0)
        expect(panel.cluster("begun")).to_contain_text("2 ranks · 1 node · gloo")
        expect(panel.rows).to_have_count(2)

        panel.do("jdist:insert-attach-code")
        expect(notebook.cell(0)).to_contain_text("%dist attach begun")  # the cell was empty
        assert notebook.text(0) == ""
        panel.cluster("begun").get_by_role("button", name="Attach this notebook to begun").click()
        expect(notebook.cell(1)).to_contain_text("%dist attach begun")
        notebook.until_over(1)
        expect(notebook.output(1)).to_contain_text("2 ranks")
        panel.do("jdist:insert-cell", ranks=[1])
        expect(notebook.page.locator(".jp-Notebook .jp-Cell").last).to_contain_text("%%dist -r 1")

        panel.page.locator('.lm-TabBar-tab[data-id="jp-running-sessions"]').click()
        running = panel.page.locator("#jp-running-sessions")
        expect(running.get_by_text("begun", exact=True)).to_be_visible()
        running.get_by_text("begun", exact=True).click()
        expect(panel.panel).to_be_visible()

        panel.do("jdist:start")
        expect(panel.dialog.get_by_label("Ranks per node")).to_have_value("2")  # as last time
        panel.dialog.get_by_role("button", name="Cancel").click()
        panel.show_notifications()
        expect(panel.notifications.get_by_text("Cluster begun is ready.")).to_have_count(1)
        panel.cluster("begun").get_by_role("button", name="Stop cluster begun").click()
        expect(panel.dialog).to_contain_text("variables are lost")
        assert panel.findings_in_all_themes(".jp-Dialog") == []
        panel.dialog.get_by_role("button", name="Stop").click()
        expect(panel.notifications.get_by_text("Cluster begun is ready.")).to_have_count(
            0
        )  # there is nothing to attach
        expect(panel.cluster("begun")).to_have_count(0)


def test_a_start_that_is_cancelled_says_which_nodes_are_missing(lab: Lab) -> None:
    with panelled(lab) as panel:
        panel.do("jdist:start")
        panel.dialog.get_by_label("Launcher").select_option("join")
        panel.dialog.get_by_label("Nodes").fill("2")
        panel.dialog.get_by_label("Ranks per node").fill("1")
        panel.dialog.get_by_label("Name").fill("never")
        panel.dialog.get_by_role("button", name="Start").click()
        expect(panel.dialog.get_by_role("status")).to_contain_text("missing: node 0, node 1")
        expect(panel.cluster("never")).to_contain_text("starting")
        expect(panel.status).to_contain_text("starting")
        for part in (".jp-Dialog", "#jdist-panel", ".jdist-status"):
            assert panel.findings_in_all_themes(part) == []
        shown = panel.dialog.locator("pre")
        expect(shown).to_contain_text(re.compile(r"^echo jdist1\.\S+ \| jdist join -$"))
        line = shown.inner_text()
        listed = panel.page.request.get(lab.address("jdist/clusters")).text()
        assert "has_instructions" in listed
        assert "jdist1." not in listed, "the line holds a key, and is sent only when it is asked for"
        panel.dialog.get_by_role("button", name="Copy").press("Enter")
        expect(panel.dialog.get_by_role("button", name="Copied")).to_be_visible()
        panel.dialog.get_by_role("button", name="Continue in background").click()
        panel.cluster("never").get_by_role("button", name="Show the line with which nodes join never").click()
        expect(panel.dialog.locator("pre")).to_have_text(line)
        assert panel.serious_findings(".jp-Dialog") == []
        panel.dialog.get_by_role("button", name="Close").click()
        panel.cluster("never").get_by_role("button", name="Cancel the start of never").click()
        expect(panel.cluster("never")).to_have_count(0)
        # The cancelled start is answered with 400, and the cluster may be gone when the page asks for its ranks: 404.
        assert not [each for each in panel.complaints if not re.search("400|404", each)]


def test_enter_pressed_twice_starts_one_cluster(lab: Lab) -> None:
    with panelled(lab) as panel:
        panel.do("jdist:start")
        panel.dialog.get_by_label("Launcher").select_option("join")
        panel.dialog.get_by_label("Name").fill("twice")
        panel.dialog.get_by_label("Name").press("Enter")
        expect(panel.dialog).to_contain_text("Starting twice")
        panel.page.keyboard.press("Enter")
        panel.page.keyboard.press("Enter")
        expect(panel.dialog.get_by_role("status")).to_contain_text("missing: node 0")
        expect(panel.dialog).to_have_count(1)
        panel.page.keyboard.press("Tab")  # to the line, its button and the dialog's own
        panel.page.keyboard.press("Tab")
        panel.page.keyboard.press("Tab")
        panel.page.keyboard.press("Tab")
        expect(panel.dialog.get_by_role("button", name="Cancel start")).to_be_focused()
        panel.page.keyboard.press("Enter")
        expect(panel.cluster("twice")).to_have_count(0)


def test_each_launcher_has_its_own_fields(lab: Lab) -> None:
    with panelled(lab) as panel:
        panel.do("jdist:start")
        launcher = panel.dialog.get_by_label("Launcher")
        expect(panel.dialog.get_by_label("Arguments")).to_have_count(0)
        launcher.select_option("slurm")
        expect(panel.dialog.get_by_label("Partition")).to_be_visible()
        expect(panel.dialog.get_by_label("Arguments")).to_be_visible()
        expect(panel.dialog.get_by_label("Hosts")).to_have_count(0)
        launcher.select_option("ssh")
        expect(panel.dialog.get_by_label("Nodes")).to_have_count(0)
        expect(panel.dialog.get_by_label("Partition")).to_have_count(0)
        expect(panel.dialog.get_by_role("button", name="Start")).to_be_disabled()
        panel.dialog.get_by_label("Hosts").fill("alpha")
        expect(panel.dialog.get_by_role("button", name="Start")).to_be_enabled()
        for name in launcher.locator("option").evaluate_all("all => all.map(each => each.value)"):
            launcher.select_option(name)
            assert panel.serious_findings(".jp-Dialog") == []
        assert panel.findings_in_all_themes(".jp-Dialog") == []
        panel.dialog.get_by_role("button", name="Cancel").click()
