from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

import jdist
from jdist.server.cluster_list import INTERVAL
from support.lab.browser import LONG, Browser
from support.waits import eventually

pytestmark = [pytest.mark.usefixtures("server", "traces")]


def test_a_run_from_its_beginning_to_its_end(browser: Browser, cluster: jdist.Cluster) -> None:
    assert eventually(lambda: "shared" in browser.clusters(), LONG)
    with browser.listen() as events:
        run = cluster.run("import time\nif rank != 3:\n    dist.barrier()", background=True)
        # The feed may begin with the end of an earlier test's run.
        events.until(lambda e: e["name"] == "shared" and [r["number"] for r in e["cluster"]["runs"]] == [run.number])
        judged = events.until(lambda e: e["name"] == "shared" and e["cluster"]["verdicts"])
        assert judged["cluster"]["verdicts"][0]["responsible"] == [3]
        ranks = {row["rank"]: row for event in events.seen for row in event["ranks"]}
        assert ranks[0]["state"] == "running"
        if not ranks[0]["doing"]:
            events.until(lambda e: any(r["rank"] == 0 and r["doing"] for r in e["ranks"]))
        run.cancel()
        ended = events.until(lambda e: e["name"] == "shared" and not e["cluster"]["runs"])
        assert ended["cluster"]["verdicts"] == []
        run.wait(LONG)
        others = [e for e in events.seen if e["name"] != "shared"]
        assert {e["action"] for e in others} <= {"gone"}, "a cluster of an earlier test may be missed only now"


def test_a_run_that_is_over_at_once(browser: Browser, cluster: jdist.Cluster) -> None:
    assert eventually(lambda: "shared" in browser.clusters(), LONG)
    with browser.listen() as events:
        cluster.run("1")
        events.until(lambda e: e["name"] == "shared")


def test_many_runs_are_at_most_two_events_a_second(browser: Browser, cluster: jdist.Cluster) -> None:
    assert eventually(lambda: "shared" in browser.clusters(), LONG)
    began = time.monotonic()
    with browser.listen() as events:
        for _ in range(40):
            cluster.run("rank")
        cluster.run("import time; time.sleep(1)")
        events.until(lambda e: e["cluster"]["runs"])
        events.until(lambda e: not e["cluster"]["runs"])
        seconds = time.monotonic() - began
    assert len(events.seen) <= 2 + seconds / INTERVAL


def test_a_ranks_death_and_a_clusters_end(browser: Browser, fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    with browser.listen() as events:
        own = fresh_cluster(2, 1, name="mortal", on_death="wait")
        events.until(lambda e: e["name"] == "mortal" and e["cluster"]["state"] == "ready")
        os.kill(own.status().ranks[1].pid, signal.SIGKILL)
        died = events.until(lambda e: any(r["rank"] == 1 and r["death"] for r in e["ranks"]))
        assert died["cluster"]["ready"] == 1
        assert "SIGKILL" in next(r["death"] for r in died["ranks"] if r["rank"] == 1)
        if not any("is lost" in n for e in events.seen for n in e["notices"]):
            events.until(lambda e: any("is lost" in n for n in e["notices"]))
        own.stop()
        events.until(lambda e: e["name"] == "mortal" and e["action"] == "gone")
