"""A page over time: what it is told, what it missed while its connection was gone, what is there after a reload."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from playwright.sync_api import Page, Response, WebSocketRoute, expect

import jdist
from jdist.client import find
from jdist.wire.transport.keys import connection_path, read_connection
from support.lab.browser import Browser
from support.lab.browsing import LONG, Lab
from support.lab.panelled import HANG, Panelled, panelled

pytestmark = pytest.mark.usefixtures("traces")


class Wire:
    """The connection over which events come to a page."""

    def __init__(self) -> None:
        self.opened = 0
        """How often it was opened."""
        self._open: list[tuple[WebSocketRoute, WebSocketRoute]] = []

    def prepare(self, page: Page) -> None:
        page.route_web_socket(re.compile("/api/events/subscribe"), self._connect)

    def cut(self) -> None:
        """It is closed. The page opens it again after a second or more, once this thread waits for the page."""
        for ends in self._open:
            for end in ends:
                end.close()
        self._open.clear()

    def _connect(self, page: WebSocketRoute) -> None:
        self.opened += 1
        self._open.append((page, page.connect_to_server()))


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire()


@pytest.fixture(scope="module")
def shown(lab: Lab, wire: Wire) -> Iterator[Panelled]:
    with panelled(lab, before=wire.prepare) as shown:
        shown.widen()
        yield shown


def test_what_happens_is_told_and_what_was_missed_is_made_up_for(
    shown: Panelled, wire: Wire, lab: Lab, cluster: jdist.Cluster, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    own = fresh_cluster(2, name="mortal", on_death="wait")
    shown.choose("mortal")
    expect(shown.row(1)).to_contain_text("idle")
    os.kill(own.status().ranks[1].pid, signal.SIGKILL)
    expect(shown.row(1)).to_contain_text("gone")
    expect(shown.row(1)).to_contain_text(re.compile(r"SIGKILL.*, [1-9]\d* s ago"))  # by the clock of the page
    shown.show_notifications()
    expect(shown.notifications).to_contain_text(re.compile(r"rank 1 .*is lost: .*SIGKILL"))

    before = wire.opened
    wire.cut()
    with Browser(lab.server.url).listen() as events:
        own.stop()
        events.until(lambda event: event["name"] == "mortal" and event["action"] == "gone")
    expect(shown.cluster("mortal")).to_have_count(0)
    assert wire.opened > before

    run = cluster.run(HANG, background=True)  # what happens from now on is told
    expect(shown.notifications.get_by_text(f"Cluster shared: run {run.number} cannot finish: rank 3")).to_have_count(1)
    assert shown.findings_in_all_themes(".jp-Notification-List") == []
    shown.do("jdist:choose", cluster="nobody's")
    shown.do("application:toggle-left-area")
    expect(shown.panel).not_to_be_visible()
    shown.notifications.get_by_role("button", name="Show").click()
    expect(shown.row(3)).to_contain_text("idle")
    expect(shown.cluster("shared")).to_contain_text("cannot finish")
    run.cancel()
    assert run.wait(LONG)
    expect(shown.cluster("shared")).to_contain_text("idle")
    expect(shown.notifications.get_by_text("cannot finish")).to_have_count(0)  # what does not hold is not shown on

    shown.do("jdist:attach", cluster="mortal")
    expect(shown.notifications.get_by_text("There is no cluster mortal any more.")).to_have_count(1)


def test_what_is_shown_says_how_old_it_is_where_that_is_not_now(
    shown: Panelled, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    fresh_cluster(1, name="hanging")
    shown.choose("hanging")
    expect(shown.row(0)).to_contain_text("idle")
    age = shown.panel.get_by_text(re.compile(r"^as of \d+ s ago$"))
    assert age.count() == 0
    controller = psutil.Process(read_connection(connection_path(find.directory(), "hanging")).pid)
    controller.send_signal(signal.SIGSTOP)
    try:
        expect(age).to_be_visible()
        before = age.inner_text()
        expect(age).not_to_have_text(before)
        expect(shown.cluster("hanging")).to_contain_text(re.compile("does not answer.*as of", re.DOTALL))
    finally:
        controller.send_signal(signal.SIGCONT)
    expect(age).to_have_count(0)
    expect(shown.row(0)).to_contain_text("idle")


def test_a_timeline_is_there_after_a_reload(shown: Panelled, lab: Lab, cluster: jdist.Cluster) -> None:
    run = cluster.run("dist.barrier()")
    name = f"jdist-timeline:shared:{cluster.asynchronous.link.connection.cluster}:{run.number}"
    timeline = shown.page.locator(".jp-MainAreaWidget > .jdist-Timeline")

    def is_kept(response: Response) -> bool:
        return "/api/workspaces/" in response.url and f'"current":"{name}"' in (response.request.post_data or "")

    with shown.page.expect_response(is_kept):
        shown.do("jdist:open-timeline", cluster="shared", run=run.number)
    expect(timeline.locator("canvas")).to_have_attribute("data-calls", "4")
    shown.page.goto(lab.address("lab"))
    expect(timeline.locator("canvas")).to_have_attribute("data-calls", "4")
    expect(shown.page.get_by_role("tab", name=f"Timeline of run {run.number}")).to_be_visible()
