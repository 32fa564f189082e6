"""The server's routes for a cluster's nodes: some are added, code is copied to them, they are examined."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

import jdist
from support.lab.browser import LONG, Browser
from support.server.serving import Server
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

pytestmark = [pytest.mark.usefixtures("server", "traces")]


@pytest.fixture
def own(run_traces: Traces, server: Server) -> Iterator[jdist.Cluster]:
    """One node of one rank, which the server knows."""
    with jdist.start(1, 1, backend="gloo", name="growing", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        assert eventually(lambda: server.browser.clusters().get("growing", {}).get("state") == "ready", LONG)
        yield cluster


def adding(browser: Browser, number: int) -> dict[str, Any]:
    """What is said of it once it is over."""

    def find() -> dict[str, Any]:
        row: dict[str, Any] = browser.get("jdist/clusters/growing").get("adding", {})
        return row if row.get("number") == number and row["state"] != "adding" else {}

    return eventually(find, LONG)


def test_nodes_are_added_and_are_like_those_before(browser: Browser, own: jdist.Cluster) -> None:
    own.run("born = rank")
    assert browser.get("jdist/clusters/growing/nodes") == {"launcher": "local", "nproc": 1, "backend": "gloo"}
    with browser.listen() as events:
        status, begun = browser.request("POST", "jdist/clusters/growing/nodes", {"count": 2})
        assert (status, begun["state"]) == (HTTPStatus.ACCEPTED, "under way")
        told = events.until(lambda event: any("is new" in notice for notice in event["notices"]))
    assert "with rank 1; the world has 2" in " ".join(told["notices"])
    row = adding(browser, begun["number"])
    assert row == {"number": begun["number"], "state": "added", "text": "", "done": 2, "count": 2}
    assert eventually(lambda: own.world_size == 3, LONG)
    assert own.run("born", [0]).values == {0: 0}
    assert own.run("t = torch.ones(1); dist.all_reduce(t); t.item()", timeout=30).values == {0: 3.0, 1: 3.0, 2: 3.0}
    here = own.run("import os\nos.getcwd()").values
    assert len(set(here.values())) == 1, "the server's own folder is another one"


def test_it_cannot_be_done_while_a_cell_runs_which_is_said(browser: Browser, own: jdist.Cluster) -> None:
    run = own.run("import time\ntime.sleep(300)", background=True)
    _, begun = browser.request("POST", "jdist/clusters/growing/nodes", {})
    row = adding(browser, begun["number"])
    assert row["state"] == "failed"
    assert row["text"] == "run 1 is running on rank 0: wait for its end or interrupt it, then add a node"
    assert browser.request("DELETE", "jdist/clusters/growing/nodes", {})[0] == HTTPStatus.OK
    assert "adding" not in browser.get("jdist/clusters/growing")
    run.cancel()
    run.wait(LONG)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"count": 8}, "this server allows 8 ranks"),
        ({"launcher": "join"}, "does not allow launcher 'join'"),
        ({"count": 0}, "0 nodes cannot be added"),
        ({"hosts": "a:x"}, "write HOST or HOST:RANKS"),
        ({"folder": "/"}, "unknown field"),
    ],
)
def test_what_cannot_be_added_is_refused_at_once(
    browser: Browser, cluster: jdist.Cluster, asked: dict[str, Any], message: str
) -> None:
    assert eventually(lambda: browser.clusters().get("shared", {}).get("state") == "ready", LONG)
    status, answer = browser.request("POST", "jdist/clusters/shared/nodes", asked)
    assert status == HTTPStatus.BAD_REQUEST
    assert message in answer["message"]
    assert browser.request("DELETE", "jdist/clusters/shared/nodes", {})[0] == HTTPStatus.OK, "nothing was begun"


def test_a_launcher_that_chooses_the_host_takes_none(browser: Browser, own: jdist.Cluster) -> None:
    _, begun = browser.request("POST", "jdist/clusters/growing/nodes", {"hosts": "b"})
    assert adding(browser, begun["number"])["text"] == "--host b: --launcher local chooses the host by itself"
    with pytest.raises(jdist.UsageError, match="name one host"):
        own.add_node(host="a,b", launcher="ssh")


def test_code_of_the_server_is_copied_while_a_cell_runs(server: Server, own: jdist.Cluster) -> None:
    folder = server.bed / "sent"
    folder.mkdir()
    (folder / "sent_module.py").write_text("ANSWER = 42\n")
    run = own.run("import time\ntime.sleep(300)", background=True)
    status, answer = server.browser.request("POST", "jdist/clusters/growing/sync", {"path": "sent"})
    assert (status, answer["text"].partition(",")[0]) == (HTTPStatus.OK, "synced sent: 1 file of 1 written")
    run.cancel()
    run.wait(LONG)
    assert own.run("import sent_module\nsent_module.ANSWER").values == {0: 42}
    status, answer = server.browser.request("POST", "jdist/clusters/growing/sync", {"path": str(folder)})
    assert answer["text"] == "synced sent: nothing has changed; 1 files on 1 node"
    own.add_node()
    known = "import importlib.util\nimportlib.util.find_spec('sent_module') is not None"
    assert eventually(lambda: own.run(known, [1]).values[1], LONG), "a node that joins later gets it"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "path: a file or folder of this server"),
        ({"path": "src", "exclude": "*.bin"}, "exclude: a list of patterns"),
        ({"path": "no_such_folder"}, "there is no such file or folder here"),
    ],
)
def test_what_cannot_be_synced(browser: Browser, cluster: jdist.Cluster, body: object, message: str) -> None:
    assert eventually(lambda: browser.clusters().get("shared", {}).get("state") == "ready", LONG)
    status, answer = browser.request("POST", "jdist/clusters/shared/sync", body)
    assert status == HTTPStatus.BAD_REQUEST
    assert message in answer["message"]


def test_the_doctors_findings_come_first_while_a_cell_hangs(browser: Browser, cluster: jdist.Cluster) -> None:
    run = cluster.run("if rank != 3: dist.barrier()", background=True)
    status, found = browser.request("POST", "jdist/clusters/shared/doctor", {})
    assert status == HTTPStatus.OK, found
    assert found["is_well"]
    findings, _, tables = found["text"].partition("\n\n")
    assert all(line[:1] in "✗⚠·✓" for line in findings.splitlines())
    assert tables.split()[:4] == ["node", "0", "node", "1"]
    assert "from \\ to" in tables
    run.cancel()
    run.wait(LONG)
