from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest

import jdist
from jdist.client import find
from jdist.wire.transport.keys import connection_path, read_connection
from support.lab.browser import LONG, Browser
from support.server.serving import ROOT, Server
from support.waits import eventually

pytestmark = [pytest.mark.usefixtures("server", "traces")]


def is_listed(browser: Browser, name: str, *states: str) -> bool:
    return browser.clusters().get(name, {}).get("state") in states


def test_list_and_detail(server: Server, browser: Browser, cluster: jdist.Cluster) -> None:
    assert eventually(lambda: is_listed(browser, "shared", "ready"), LONG)
    listed = browser.clusters()["shared"]
    assert (listed["world_size"], listed["nnodes"], listed["backend"], listed["ready"]) == (4, 2, "gloo", 4)
    assert "ranks" not in listed
    cluster.new_group("odd", "1,3")
    cluster.new_mesh("dp=2,tp=2")
    found = browser.get("jdist/clusters/shared")
    assert [r["rank"] for r in found["ranks"]] == [0, 1, 2, 3]
    assert [r["node"] for r in found["ranks"]] == [0, 0, 1, 1]
    assert {r["state"] for r in found["ranks"]} == {"idle"}
    assert {(r["state"], r["device"], r["doing"]) for r in found["ranks"]} == {("idle", "cpu", None)}
    assert all(r["rss"] > 10e6 for r in found["ranks"])
    assert not any(key.startswith("gpu") for r in found["ranks"] for key in r), "of what is not there nothing is said"
    assert [n["ranks"] for n in found["nodes"]] == [[0, 1], [2, 3]]
    assert {"name": "odd", "ranks": [1, 3]} in found["groups"]
    assert found["mesh"] == {"names": ["dp", "tp"], "sizes": [2, 2]}
    connection = cluster.asynchronous.link.connection
    shown = json.dumps([found, listed])
    for secret in (connection.key.secret, connection.server_key, str(connection.control_port), "jdist1."):
        assert secret not in shown


def test_what_a_rank_does_and_its_verdict(browser: Browser, cluster: jdist.Cluster) -> None:
    run = cluster.run("import time\nif rank != 3:\n    dist.barrier()", background=True)
    seen = eventually(lambda: browser.get("jdist/clusters/shared")["verdicts"], LONG)
    assert seen[0]["kind"] == "missing"
    assert seen[0]["responsible"] == [3]
    assert seen[0]["remedies"]
    found = browser.get("jdist/clusters/shared")
    assert [(r["ranks"], r["count"], r["done"]) for r in found["runs"]] == [("0-3", 4, 1)]
    doing = found["ranks"][0]["doing"]
    assert (doing["kind"], doing["line"], doing["op"]) == ("collective", 3, "barrier")
    stack = browser.get("jdist/clusters/shared/ranks/0/stack")["text"]
    assert "dist.barrier()" in stack
    assert "/ipykernel/" not in stack, "from the cell on"
    assert browser.request("POST", "jdist/clusters/shared/interrupt", {"ranks": "0-3"})[0] == HTTPStatus.OK
    run.wait(LONG)
    assert {o.kind for r, o in run.outcomes.items() if r != 3} == {"interrupted"}


def test_logs_attach_code_console_and_launch(browser: Browser, cluster: jdist.Cluster) -> None:
    cluster.run("print('a line of', rank)")
    log = browser.get("jdist/clusters/shared/ranks/2/logs?lines=20")
    assert "a line of 2" in log["text"]
    assert browser.get("jdist/clusters/shared/attach")["code"] == "%load_ext jdist\n%dist attach shared"
    console = browser.get("jdist/clusters/shared/ranks/1/console")
    assert console["command"].startswith("jupyter console --existing /")
    assert console["command_here"].endswith(console["command"].removeprefix("jupyter console")), "all run here"
    launch = browser.get("jdist/launch")
    assert launch["launchers"] == ["local", "ssh"]
    assert (launch["forms"]["local"]["hosts"], launch["forms"]["ssh"]["hosts"]) == ("", "required")
    assert (launch["max_ranks"], launch["ranks_here"]) == (8, 4)


def test_a_runs_trace(browser: Browser, cluster: jdist.Cluster) -> None:
    run = cluster.run("dist.barrier()")
    for path in ("jdist/clusters/shared/trace", f"jdist/clusters/shared/trace?run={run.number}"):
        found = browser.get(path)
        assert (found["cluster"], found["run"]) == ("shared", run.number)
        assert [row["calls"] for row in found["rows"]] == [1, 1, 1, 1]
        assert found["kinds"][0]["op"] == "barrier"


def test_an_interrupt_of_one_run_leaves_the_one_beside_it(browser: Browser, cluster: jdist.Cluster) -> None:
    waits = "import time\nwhile True: time.sleep(0.01)"
    hanging = cluster.run(waits, "0-1", background=True)
    beside = cluster.run(waits, "2-3", background=True)
    assert eventually(lambda: len(browser.get("jdist/clusters/shared")["runs"]) == 2, LONG)
    body = {"run": hanging.number, "cluster": cluster.id}
    assert browser.request("POST", "jdist/clusters/shared/interrupt", body)[0] == HTTPStatus.OK
    hanging.wait(LONG)
    assert browser.request("POST", "jdist/clusters/shared/interrupt", body) == (
        HTTPStatus.BAD_REQUEST,
        {"message": f"run {hanging.number} is over: there is nothing to interrupt", "reason": "UsageError"},
    )
    assert not beside.is_done
    cluster.interrupt(run=beside.number)
    beside.wait(LONG)


def test_a_run_is_shown_to_a_browser_that_was_not_there(browser: Browser, cluster: jdist.Cluster) -> None:
    run = cluster.run("print('the share of', rank)\nif rank == 2: raise ValueError('bad shard')", check=False)
    data = browser.get(f"jdist/clusters/shared/runs/{run.number}?cluster={cluster.id}")["data"]
    assert "ValueError: bad shard" in data["text/plain"]
    assert "[0-3] the share of 0 | 1 | 2 | 3" in data["text/plain"]
    structure = data["application/vnd.jdist.run.v1+json"]
    assert (structure["run"], structure["cluster_id"], structure["state"]) == (run.number, cluster.id, "done")


def test_the_metrics_of_a_run_are_shown_to_a_browser_that_was_not_there(
    browser: Browser, cluster: jdist.Cluster
) -> None:
    run = cluster.run("import jdist\nfor i in range(3): jdist.log(loss=rank + 1 / (i + 1), step=i)")
    found = browser.get(f"jdist/clusters/shared/runs/{run.number}?cluster={cluster.id}")
    structure = found["metrics"]["application/vnd.jdist.metrics.v1+json"]
    assert structure["run"] == run.number
    assert [chart["name"] for chart in structure["charts"]] == ["loss"]
    other = cluster.run("pass")
    assert "metrics" not in browser.get(f"jdist/clusters/shared/runs/{other.number}")


def test_a_cell_beside_a_run_that_waits_for_it(browser: Browser, cluster: jdist.Cluster) -> None:
    waiting = cluster.run("if rank != 1: dist.barrier()", background=True)
    assert eventually(lambda: browser.get("jdist/clusters/shared")["verdicts"], LONG)
    body = {"code": "dist.barrier()\nprint('came')", "ranks": "1", "cluster": cluster.id}
    status, found = browser.request("POST", "jdist/clusters/shared/cells", body)
    assert status == HTTPStatus.OK
    assert "came" in found["data"]["text/plain"]
    waiting.wait(LONG)
    assert all(outcome.ok for outcome in waiting.outcomes.values())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "trace?cluster=of-earlier"),
        ("GET", "runs/1?cluster=of-earlier"),
        ("POST", "interrupt"),
        ("POST", "resume"),
        ("POST", "cells"),
    ],
)
def test_nothing_is_done_to_another_cluster_of_the_same_name(browser: Browser, method: str, path: str) -> None:
    body = {"cluster": "of-earlier", "code": "1", "run": 1} if method == "POST" else None
    status, found = browser.request(method, f"jdist/clusters/shared/{path}", body)
    assert status == HTTPStatus.GONE
    assert found["message"] == "the cluster shared of this output is gone; another one has that name now"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "jdist/clusters/shared/runs/99999", None, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters/shared/interrupt", {"run": "1"}, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters/shared/cells", {"ranks": "1"}, HTTPStatus.BAD_REQUEST),
        ("GET", "jdist/clusters/shared/trace?run=x", None, HTTPStatus.BAD_REQUEST),
        ("GET", "jdist/clusters/shared/trace?run=99999", None, HTTPStatus.BAD_REQUEST),
        ("GET", "jdist/clusters/nobody", None, HTTPStatus.NOT_FOUND),
        ("DELETE", "jdist/clusters/nobody", {}, HTTPStatus.NOT_FOUND),
        ("POST", "jdist/clusters/nobody/restart", {}, HTTPStatus.NOT_FOUND),
        ("GET", "jdist/clusters/shared/ranks/9/logs", None, HTTPStatus.BAD_REQUEST),
        ("GET", "jdist/clusters/shared/ranks/0/logs?lines=x", None, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters/shared/interrupt", {"ranks": "7"}, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters/shared/interrupt", {"ranks": {}}, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters/shared/restart", [1], HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters", {"launcher": "slurm"}, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters", {"nproc_per_node": 5}, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters", {"nproc_per_node": 1, "name": "shared"}, HTTPStatus.BAD_REQUEST),
        ("POST", "jdist/clusters", {"nproc_per_node": 1, "name": "100% me"}, HTTPStatus.ACCEPTED),
    ],
)
def test_wrong_words(
    browser: Browser, cluster: jdist.Cluster, method: str, path: str, body: object, status: int
) -> None:
    assert eventually(lambda: is_listed(browser, "shared", "ready"), LONG)
    got, answer = browser.request(method, path, body)
    assert got == status, answer
    if got == HTTPStatus.ACCEPTED:  # it cannot be started, which is said where one looks for it
        assert eventually(lambda: is_listed(browser, "100% me", "failed"), LONG)
        assert "letters, digits" in browser.clusters()["100% me"]["reason"]
        assert browser.request("DELETE", "jdist/clusters/100%25%20me")[0] == HTTPStatus.OK
        assert "100% me" not in browser.clusters()
        return
    assert len(answer["message"]) > 10


def test_a_cluster_from_its_start_to_its_end(browser: Browser) -> None:
    status, answer = browser.request("POST", "jdist/clusters", {"nproc_per_node": 2, "name": "mine"})
    assert (status, answer) == (HTTPStatus.ACCEPTED, {"name": "mine", "state": "starting"})
    assert "mine" in browser.clusters()
    assert eventually(
        lambda: is_listed(browser, "mine", "ready") and "starting" not in browser.clusters()["mine"], LONG
    )
    with_restart = browser.request("POST", "jdist/clusters/mine/restart", {"ranks": [1]})
    assert with_restart[0] in (HTTPStatus.OK, HTTPStatus.ACCEPTED)
    assert eventually(lambda: browser.get("jdist/clusters/mine")["ranks"][1]["is_fresh"], LONG)
    mine = jdist.attach("mine")
    assert mine.run("rank").values == {0: 0, 1: 1}
    mine.detach()
    assert browser.request("DELETE", "jdist/clusters/mine")[0] in (HTTPStatus.OK, HTTPStatus.ACCEPTED)
    assert eventually(lambda: "mine" not in browser.clusters(), LONG)
    assert "mine" not in find.connections()


def test_who_looks_on_keeps_no_cluster(browser: Browser, fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(1, 1, name="idle", idle_timeout=3.0)
    assert eventually(lambda: is_listed(browser, "idle", "ready"), LONG)
    own.detach()
    assert eventually(lambda: "idle" not in browser.clusters(), LONG)
    assert eventually(lambda: "idle" not in find.connections(), LONG)  # it tells its clients first, then takes its file


def test_clusters_that_hang_or_died_or_are_another_versions(
    browser: Browser, fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path
) -> None:
    own = fresh_cluster(1, 1, name="hung")
    assert eventually(lambda: is_listed(browser, "hung", "ready"), LONG)
    path = connection_path(find.directory(), "hung")
    controller = psutil.Process(read_connection(path).pid)
    controller.send_signal(signal.SIGSTOP)
    try:
        assert browser.get("jdist/clusters/hung")["state"] == "silent"
        assert browser.request("POST", "jdist/clusters/hung/interrupt", {})[0] in (202, 502, 504)
        assert eventually(lambda: is_listed(browser, "hung", "silent"), LONG)
    finally:
        controller.send_signal(signal.SIGCONT)
    assert eventually(lambda: is_listed(browser, "hung", "ready"), LONG)

    later = connection_path(find.directory(), "later")
    later.write_text('{"name": "later", "protocol": 99}')
    later.chmod(0o600)
    dead = connection_path(find.directory(), "dead")
    dead.write_text(path.read_text().replace('"hung"', '"dead"').replace(f":{controller.pid},", ":4194303,"))
    dead.chmod(0o600)
    assert eventually(lambda: is_listed(browser, "later", "foreign"), LONG)
    assert browser.request("DELETE", "jdist/clusters/later")[0] == HTTPStatus.BAD_REQUEST
    later.unlink()
    assert eventually(lambda: not dead.exists(), LONG), "its process is gone, although its port is another's"

    own.detach()
    controller.kill()
    assert eventually(lambda: is_listed(browser, "hung", "orphaned"), LONG)
    assert browser.request("POST", "jdist/clusters/hung/revive", {})[0] == HTTPStatus.OK
    assert eventually(lambda: is_listed(browser, "hung", "ready"), LONG)
    assert browser.request("DELETE", "jdist/clusters/hung")[0] in (HTTPStatus.OK, HTTPStatus.ACCEPTED)
    assert eventually(lambda: "hung" not in browser.clusters(), LONG)


def test_activity_is_cells_that_run(browser: Browser, cluster: jdist.Cluster) -> None:
    def activity() -> str:
        return str(browser.get("api/status?no_track_activity=1")["last_activity"])

    eventually(lambda: is_listed(browser, "shared", "ready"), LONG)
    before = activity()
    for _ in range(3):
        browser.get("jdist/clusters")
        browser.get("jdist/clusters/shared")
    assert activity() == before
    cluster.run("import time; time.sleep(1.5)")
    assert eventually(lambda: activity() > before, LONG)


def test_nothing_is_unpickled(server: Server, browser: Browser, cluster: jdist.Cluster) -> None:
    value = "class Odd:\n    def __reduce__(self): return (print, ('unpickled',))\n"
    with browser.listen() as events:
        cluster.run(f"{value}o = Odd()\nprint(o)\n(rank, [o])", check=False)
        events.until(lambda e: e["name"] == "shared" and not e["cluster"]["runs"])
    browser.get("jdist/clusters/shared")
    assert not (server.bed / "unpickled").exists(), (server.bed / "unpickled").read_text()[-3000:]


def test_the_wheel_enables_it() -> None:
    enabled = json.loads((ROOT / "etc/jupyter_server_config.d/jdist.json").read_text())
    assert enabled == {"ServerApp": {"jpserver_extensions": {"jdist": True}}}
    (point,) = jdist._jupyter_server_extension_points()
    assert point["app"].__name__ == "Jdist"


def test_a_server_starts_without_torch() -> None:
    code = "import sys, jdist.server.extension; print(sorted({'torch', 'numpy', 'IPython'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_resources(browser: Browser, cluster: jdist.Cluster) -> None:
    run = cluster.run("1")

    def sampled() -> bool:
        nodes = browser.get("jdist/clusters/shared/resources?seconds=60&points=30")["nodes"]
        ranks = [rank for node in nodes for rank in node["ranks"]]
        return len(ranks) == 4 and all("cpu" in rank["series"] for rank in ranks)

    assert eventually(sampled, LONG)
    found = browser.get("jdist/clusters/shared/resources?seconds=60&points=30")
    assert [(n["node"], [r["rank"] for r in n["ranks"]]) for n in found["nodes"]] == [(0, [0, 1]), (1, [2, 3])]
    first = found["nodes"][0]
    assert len(first["ages"]) == len(first["series"]["memory"]) == len(first["ranks"][0]["series"]["cpu"]) <= 30
    assert run.number in [each["run"] for each in found["runs"]]
    assert found["missing"] == []
    assert browser.request("GET", "jdist/clusters/shared/resources?seconds=0")[0] == HTTPStatus.BAD_REQUEST
