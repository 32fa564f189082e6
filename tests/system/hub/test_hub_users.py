"""Users of a real JupyterHub with clusters of their own: what they see, what others get, what limits and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import websocket

from jdist.server import routes  # noqa: F401 - it registers its routes
from jdist.server.handler import all_routes
from support.attempts import OTHER, PRELUDE, TRY_CONTROL, TRY_FILES, TRY_PORTS
from support.hub.jupyterhubs import Hub, Kernel, Server
from support.lab.browser import LONG, Browser
from support.lacking import lacking
from support.waits import eventually

START = "%dist start -n 2 --backend gloo --timeout 120"
GRACE = "--idle-timeout 5"
LONG_GRACE = "--idle-timeout 120"
"""More than a kernel's restart takes, on a machine with other things to do."""
ALL_REDUCE = "%%dist -t 60\nt = torch.ones(1) * (rank + 1)\ndist.all_reduce(t)\nt.item()"
FORBIDDEN = 403
MARKED_AFTER = timedelta(seconds=4)
"""Since a user did something: more than any delay in the Hub's knowledge of that."""
CULLED_AFTER = 12
"""Seconds; more than any interval at which the extension looks at an idle cluster."""


def connection(hub: Hub, user: str, name: str) -> dict[str, Any]:
    """What the user's connection file says."""
    [path] = (hub.home / user).rglob(f"jdist-{name}.json")
    return dict(json.loads(path.read_text()))


def attempt(his: Kernel, program: str, *arguments: str) -> tuple[int, list[Any]]:
    """From a cell of his: the Unix user he is there, and what he got."""
    command = ["-I", "-c", PRELUDE + program, *arguments]
    said = his.run(
        "import subprocess, sys\n"
        f"done = subprocess.run([sys.executable, *{command!r}], capture_output=True, text=True)\n"
        "print(done.stdout, done.stderr[-1000:])"
    )
    uid, got = json.loads(said)
    return uid, got


@pytest.fixture(scope="module")
def hers(hub: Hub, alice: Server) -> Iterator[Kernel]:
    """Her notebook, with a cluster."""
    notebook = alice.notebook()
    shown = notebook.run(f"{START} {LONG_GRACE} --name hers")
    assert "2 ranks" in shown, shown
    yield notebook
    assert "stopped" in notebook.run("%dist stop hers")


@pytest.fixture(scope="module")
def his(hub: Hub, bob: Server) -> Kernel:
    """His notebook."""
    return bob.notebook()


def test_a_cluster_is_seen_under_its_users_url(hub: Hub, alice: Server, hers: Kernel) -> None:
    browser = alice.browser
    assert eventually(lambda: browser.clusters().get("hers", {}).get("state") == "ready", LONG), browser.clusters()
    with browser.listen() as events:
        assert "3.0" in hers.run(ALL_REDUCE)
        events.until(lambda e: e["name"] == "hers")
        hers.run("%%dist -b\nimport time\ntime.sleep(600)")
        events.until(lambda e: e["name"] == "hers" and e["cluster"]["runs"])
        assert browser.request("POST", "jdist/clusters/hers/interrupt", {})[0] == 200
        events.until(lambda e: e["name"] == "hers" and not e["cluster"]["runs"])
    detail = browser.get("jdist/clusters/hers")
    assert [row["rank"] for row in detail["ranks"]] == [0, 1]
    assert "3.0" in hers.run(ALL_REDUCE)


def test_a_kernels_restart_leaves_the_cluster_as_it_is(hub: Hub, hers: Kernel) -> None:
    hers.run("%%dist\nkept = rank + 40")
    pid = connection(hub, "alice", "hers")["pid"]
    hers.restart()
    shown = hers.run("%dist attach hers")
    assert "41" in hers.run("%%dist\nkept"), shown
    assert connection(hub, "alice", "hers")["pid"] == pid


def test_another_user_gets_nothing_by_rest(hub: Hub, alice: Server, bob: Server, hers: Kernel) -> None:
    intruder = Browser(alice.browser.url, bob.token)
    for pattern, handler in all_routes():
        path = re.sub(r"\([^)]*\)", "hers", pattern, count=1)
        path = re.sub(r"\([^)]*\)", "0", path)
        for method in ("GET", "POST", "DELETE"):
            if method.lower() in vars(handler):
                status, _ = intruder.request(method, path, None if method == "GET" else {})
                assert status == FORBIDDEN, (method, path)
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        intruder.listen()
    assert "hers" not in bob.browser.clusters()
    assert bob.browser.request("GET", "jdist/clusters/hers")[0] == 404


def test_another_user_gets_nothing_by_file_or_port(hub: Hub, hers: Kernel, his: Kernel) -> None:
    if not hub.as_bob:
        lacking("two Unix users on one Hub need root, and mounts")
    known = connection(hub, "alice", "hers")
    listed = Path("/proc/net/unix").read_text()
    near = set(re.findall(rf"@(jdist-{known['cluster']}-\w+)", listed))
    folders = list(Path("/tmp").glob(f"jdist-{known['cluster']}-*"))
    files = [*(hub.home / "alice").rglob("jdist-*"), *folders, *(p for f in folders for p in f.rglob("*"))]
    assert len(files) > 4, "connection file, charter, logs, sockets"
    processes = list(hub.processes(users=["alice"]))
    assert known["pid"] in processes
    tries = [
        (TRY_FILES, json.dumps([str(p) for p in files]), json.dumps(processes)),
        (TRY_PORTS, json.dumps([[["127.0.0.1", known["data_port"]], *sorted(near)], known["cluster"]])),
        (TRY_CONTROL, json.dumps([known["control_port"], known["server_key"], "a-" + "0" * 32])),
    ]
    for program, *arguments in tries:
        assert attempt(his, program, *arguments) == (OTHER, [])
    assert "3.0" in hers.run(ALL_REDUCE)


def test_limits_hold_and_defaults_are_used(hub: Hub, bob: Server) -> None:
    """His own configuration says otherwise."""
    browser = bob.browser
    shown = browser.get("jdist/launch")
    assert (shown["launchers"], shown["max_ranks"]) == (["local", "hub"], 16)
    for asked, said in (
        ({"nproc_per_node": 17}, "allows 16 ranks"),
        ({"nproc_per_node": 1, "launcher": "ssh", "hosts": "a"}, "does not allow launcher 'ssh'"),
    ):
        status, answer = browser.request("POST", "jdist/clusters", asked)
        assert (status, said in answer["message"]) == (400, True), answer
    with browser.listen() as events:
        asked = {"nproc_per_node": 2, "name": "limited", "backend": "gloo"}
        assert browser.request("POST", "jdist/clusters", asked)[0] == 202
        events.until(lambda e: e["name"] == "limited" and e["cluster"]["state"] == "ready")
        settings = json.loads(next((hub.home / "bob").rglob("jdist-limited.charter")).read_text())["settings"]
        assert settings["idle_timeout"] == shown["defaults"]["idle_timeout"]
        status, answer = browser.request("POST", "jdist/clusters", {"nproc_per_node": 15})
        assert (status, "there would be 17" in answer["message"]) == (400, True), answer
        browser.request("DELETE", "jdist/clusters/limited")
        events.until(lambda e: e["name"] == "limited" and e["action"] == "gone")


def test_a_cluster_ends_after_its_grace_when_its_server_is_stopped(hub: Hub, bob: Server, his: Kernel) -> None:
    assert "2 ranks" in his.run(f"{START} {GRACE} --name his")
    assert "3.0" in his.run(ALL_REDUCE)
    controller = psutil.Process(connection(hub, "bob", "his")["pid"])
    assert controller.uids().real == (OTHER if hub.as_bob else os.geteuid())
    hub.stop_server("bob", "")
    assert eventually(lambda: not hub.processes(users=["bob"]), LONG), hub.processes(users=["bob"])
    assert not list((hub.home / "bob").rglob("jdist-his.*json"))
    hub.begin("bob")
    hub.serve("bob")


def test_a_server_counts_as_active_while_cells_run_and_is_culled_when_its_cluster_is_idle(hub: Hub) -> None:
    hub.begin("carol")
    carol = hub.serve("carol")
    with contextlib.closing(carol):
        run_until_culled(hub, carol)
    assert eventually(lambda: not hub.processes(users=["carol"]), LONG), hub.processes(users=["carol"])


def run_until_culled(hub: Hub, carol: Server) -> None:
    notebook = carol.notebook()
    assert "2 ranks" in notebook.run(f"{START} {GRACE} --name busy")
    gate = hub.home / "carol" / "gate"
    with carol.browser.listen() as events:
        notebook.run(f"%%dist -b\nimport os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.05)")
        events.until(lambda e: e["name"] == "busy" and e["cluster"]["runs"])
        notebook.close()
        since = datetime.now(UTC)
        assert eventually(lambda: last_activity(hub, "carol") > since + MARKED_AFTER, LONG), last_activity(hub, "carol")
        gate.touch()
        events.until(lambda e: e["name"] == "busy" and not e["cluster"]["runs"])
        with culler(hub):
            # a page goes on looking meanwhile, and the kernel holds on to its cluster
            assert eventually(lambda: not hub.servers("carol")[""]["ready"], LONG), hub.servers("carol")


def last_activity(hub: Hub, user: str) -> datetime:
    return datetime.fromisoformat(hub.servers(user)[""]["last_activity"])


def test_the_documentations_culler_may_do_its_work(hub: Hub) -> None:
    asked = re.compile(r"200 GET /hub/api/users\?state\S* \(idle-culler@")
    assert eventually(lambda: asked.search((hub.home / "hub.log").read_text()), LONG)


@contextlib.contextmanager
def culler(hub: Hub) -> Iterator[None]:
    """The documentation's, with less patience, and for one user only."""
    options = [f"--url={hub.url}/hub/api", f"--timeout={CULLED_AFTER}", "--cull-every=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterhub_idle_culler", *options],
        env={**os.environ, "JUPYTERHUB_API_TOKEN": hub.culler_token},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
