"""Clusters of another host, which the server follows through a login of its own while pages look at them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from jdist.client.threads import bridge
from jdist.core.errors import LaunchError, UsageError
from jdist.server import remote_hosts
from jdist.server.cluster_list import ClusterList
from jdist.server.snapshots import LoginState
from jdist.server.starts import Policy
from support.hosts.pythons import make_python
from support.lab.browser import LONG, Browser, Json
from support.server.logins import PASSPHRASE, Logins
from support.server.serving import Server
from support.waits import eventually

pytestmark = [pytest.mark.usefixtures("traces")]
LOGIN = "jdist/hosts/locked/login"


@pytest.fixture
def logins(runtime_directory: Path) -> Iterator[Logins]:
    with tempfile.TemporaryDirectory(dir=runtime_directory, prefix="hosts-") as bed:
        yield Logins(Path(bed))


@pytest.fixture
def by_logins(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> Logins:
    """This process logs in by them."""
    monkeypatch.setenv("JDIST_SSH", str(logins.program))
    monkeypatch.setenv("JDIST_AT_PYTHON", sys.executable)
    return logins


@pytest.fixture
def server(logins: Logins, runtime_directory: Path) -> Iterator[Server]:
    """A server of this test's own."""
    with tempfile.TemporaryDirectory(dir=runtime_directory) as bed:
        config = logins.bed / "config"
        config.write_text("Host login\nHost *.example.org !x\nInclude more\nHost = locked\n")
        ssh = f"{logins.program} -F {config}"
        environment = {"JDIST_SSH": ssh, "JDIST_AT_PYTHON": sys.executable}
        server = Server(Path(bed), runtime_directory, environment)
        assert eventually(lambda: server.browser.request("GET", "jdist/launch")[0] == HTTPStatus.OK, LONG)
        yield server
        server.end()


def goes_on(browser: Browser, answer: Json, path: str = LOGIN) -> Json:
    """The step of a login after those in which the page only waits."""
    while answer.get("state") == "connecting":
        answer = browser.request("POST", path, {"question": 0})[1]
    return answer


def is_ready(event: Json, name: str) -> bool:
    """Whether the cluster of this name has started; the server follows others of this process, too."""
    return event["name"] == name and event["cluster"]["state"] == "ready" and "starting" not in event["cluster"]


def log_in(browser: Browser) -> None:
    asked = goes_on(browser, browser.request("POST", LOGIN, {})[1])
    assert (asked["state"], asked["is_secret"]) == ("asks", True), asked
    assert asked["text"].startswith("Enter passphrase for key"), "ssh's own words"
    body = {"question": asked["question"], "answer": PASSPHRASE}
    assert goes_on(browser, browser.request("POST", LOGIN, body)[1])["state"] == "open"


def test_a_cluster_is_started_followed_through_a_break_and_stopped(server: Server, logins: Logins) -> None:
    browser = server.browser
    assert browser.get("jdist/launch")["hosts"] == ["login", "locked"]
    log_in(browser)
    with browser.listen() as events:
        status, started = browser.request("POST", "jdist/clusters", {"at": "locked", "nproc_per_node": 2})
        assert (status, started) == (HTTPStatus.ACCEPTED, {"name": "locked:c1", "state": "starting"})
        events.until(lambda e: is_ready(e, "locked:c1"))
        assert "gone" not in {e["action"] for e in events.seen if e["name"] == "locked:c1"}
        path = "jdist/clusters/locked%3Ac1"
        assert [row["rank"] for row in browser.get(path)["ranks"]] == [0, 1]
        assert browser.get(f"{path}/attach")["code"].endswith("%dist attach locked:c1")
        assert browser.get(f"{path}/nodes")["launcher"] == "local"
        cell = browser.request("POST", f"{path}/cells", {"code": "x = rank * 10; x"})[1]
        assert "[1] 10" in cell["data"]["text/plain"]
        assert [v["name"] for v in browser.get(f"{path}/variables")["variables"]] == ["x"]
        for action in ("interrupt", "restart"):
            assert browser.request("POST", f"{path}/{action}", {})[0] in (HTTPStatus.OK, HTTPStatus.ACCEPTED)
        assert browser.get(f"{path}/ranks/1/logs")["path"]
        logins.cut(server.process.pid)
        event = events.until(lambda e: e["name"] == "locked:c1" and e["cluster"]["state"] == "reconnecting")
        assert event["cluster"]["age"] < LONG
        assert eventually(lambda: "Permission denied" in browser.get(path)["reason"], LONG)
        log_in(browser)
        events.until(lambda e: is_ready(e, "locked:c1"))
        assert browser.request("DELETE", path)[0] in (HTTPStatus.OK, HTTPStatus.ACCEPTED)
        events.until(lambda e: e["action"] == "gone" and e["name"] == "locked:c1")
    assert browser.request("GET", path)[0] == HTTPStatus.NOT_FOUND


def test_what_keeps_a_login_from_being_made_is_said_in_the_words_of_ssh(server: Server) -> None:
    browser = server.browser
    status, answer = browser.request("POST", "jdist/clusters", {"at": "locked", "nproc_per_node": 1})
    assert (status, answer["reason"]) == (HTTPStatus.BAD_GATEWAY, "LaunchError")
    assert "Permission denied" in answer["message"], "a start alone asks nothing"
    assert answer["message"].endswith("(publickey). Log in with the button Log in in jdist's panel")
    status, answer = browser.request("GET", "jdist/clusters/a%3Ab%3Ac")
    assert (status, "--at" in answer["message"]) == (HTTPStatus.BAD_REQUEST, False)
    assert answer["message"] == "a:b is no host's name, but a cluster's: the host is a"
    asked = browser.request("POST", LOGIN, {})[1]
    wrong = browser.request("POST", LOGIN, {"question": asked["question"], "answer": "wrong"})[1]
    assert "Permission denied" in goes_on(browser, wrong)["message"]
    browser.request("POST", LOGIN, {})
    assert browser.request("DELETE", LOGIN)[0] == HTTPStatus.OK
    assert browser.request("POST", LOGIN, {"question": 0})[1]["message"] == "the login to locked was cancelled"
    nowhere = "jdist/hosts/nowhere/login"
    found = goes_on(browser, browser.request("POST", nowhere, {})[1], nowhere)
    assert "Could not resolve hostname" in found["message"]
    found = browser.get("jdist/clusters/locked%3Ac1")
    assert (found["state"], "Permission denied" in found["reason"]) == ("unreachable", True)
    assert browser.request("POST", "jdist/hosts/-oX=y/login", {})[0] == HTTPStatus.BAD_REQUEST
    assert PASSPHRASE not in server.said()


def test_jdist_is_installed_by_a_login_that_names_the_python_there(
    server: Server, logins: Logins, tmp_path: Path
) -> None:
    browser, path, python = server.browser, "jdist/hosts/login/login", str(make_python(tmp_path / "lacking"))
    missing = goes_on(browser, browser.request("POST", path, {"python": python})[1], path)["message"]
    assert f"login: jdist cannot be imported by {python}" in missing
    assert "; Install jdist, in the start dialog, makes an environment with it there, or name the" in missing
    assert missing.endswith(": Python there, in the start dialog, takes its path or the name of a conda environment")
    told, answer = [], browser.request("POST", path, {"python": python, "install": True})[1]
    while answer.get("state") == "connecting":
        told.append(answer["text"])
        answer = browser.request("POST", path, {"question": 0})[1]
    assert answer["state"] == "open", answer
    share = logins.bed / "login" / "share" / "jdist"
    assert any(text.startswith(f"login: making {share}/venv-") for text in told), told
    with browser.listen() as events:
        browser.request("POST", "jdist/clusters", {"at": "login", "nproc_per_node": 1})
        events.until(lambda e: is_ready(e, "login:c1"))
    cluster = "jdist/clusters/login%3Ac1"
    cell = browser.request("POST", f"{cluster}/cells", {"code": "import sys; sys.prefix"})[1]
    assert f"{share}/venv-" in cell.get("data", {}).get("text/plain", ""), cell
    assert browser.get(f"{cluster}/attach")["code"].endswith(f"%dist attach login:c1 --python {python}")
    status, answer = browser.request("POST", path, {"python": "other"})
    assert (status, "is in use here with" in answer["message"]) == (HTTPStatus.BAD_REQUEST, True)
    assert answer["message"].endswith(
        "; the server's login ends 5 minutes after the last page that shows a cluster of it"
    )
    browser.request("DELETE", cluster)


@pytest.mark.parametrize("body", [{"python": "-c"}, {"python": "a\nb"}, {"install": "yes"}, {"pythn": "ml"}])
def test_what_no_login_takes(body: Json) -> None:
    with pytest.raises(UsageError, match=r"^(python|login): "):
        remote_hosts.read_login(body)


def test_the_limits_of_the_server_hold_elsewhere(server: Server) -> None:
    status, answer = server.browser.request("POST", "jdist/clusters", {"at": "login", "nproc_per_node": 9})
    assert (status, answer["reason"]) == (HTTPStatus.BAD_REQUEST, "UsageError")
    status, answer = server.browser.request("POST", "jdist/clusters", {"at": "login", "launcher": "slurm"})
    assert "does not allow launcher 'slurm'" in answer["message"]


def test_a_login_is_closed_when_no_page_has_looked_for_a_while(
    by_logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_hosts, "FORGOTTEN", 3.0)
    events: list[Any] = []

    async def make() -> ClusterList:
        return ClusterList(Policy(), events.append, lambda: True, lambda: None, logging.getLogger("test"))

    def is_ready() -> bool:
        found = call(clusters.detail(name))
        return found is not None and found.state == "ready" and bool(found.ranks)

    call = bridge().call
    clusters = call(make())
    try:
        name = call(clusters.start({"at": "login", "nproc_per_node": 1, "idle_timeout": 60.0}))
        assert eventually(is_ready, LONG)
        assert eventually(lambda: clusters.snapshot(name) is None, LONG)
        assert eventually(lambda: not by_logins.of(os.getpid()))
        assert clusters.elsewhere.names == []
        assert eventually(is_ready, LONG), "it runs on, and can be looked at again"
        call(clusters.stop(name, LONG))
    finally:
        call(clusters.close())
    assert {e.action for e in events} == {"changed", "gone"}
    assert eventually(lambda: not by_logins.of(os.getpid()))


def test_the_line_that_nodes_need_to_join_comes_from_there(by_logins: Logins) -> None:
    async def make() -> ClusterList:
        return ClusterList(Policy(), lambda _: None, lambda: True, lambda: None, logging.getLogger("test"))

    def waits() -> bool:
        found = clusters.snapshot(name)
        return found is not None and found.has_instructions is True

    call = bridge().call
    clusters = call(make())
    try:
        name = call(clusters.start({"at": "login", "launcher": "join", "nnodes": 1, "nproc_per_node": 1}))
        assert eventually(waits, LONG)
        about, line = call(clusters.instructions(name)).split("\n")
        assert about.startswith("run this on each node")
        assert (line.startswith("echo jdist1."), line.endswith(" | jdist join -")) == (True, True)
        assert call(clusters.stop(name, LONG))
    finally:
        call(clusters.close())


def test_who_may_only_read_has_no_host_logged_in_to_that_is_not_in_use(server: Server, logins: Logins) -> None:
    browser, path = server.browser, "jdist/clusters/login%3Ac1"
    with server.denying("write", "execute"):
        for name in ("login", "a%3Ab", "x%20y"):
            status, answer = browser.request("GET", f"jdist/clusters/{name}%3Ac1")
            assert (status, "there is no cluster called" in answer["message"]) == (HTTPStatus.NOT_FOUND, True)
        assert browser.get("jdist/launch")["hosts"] == []
        assert not logins.of(server.process.pid)
    browser.request("POST", "jdist/clusters", {"at": "login", "nproc_per_node": 1})
    with server.denying("write", "execute"):
        assert browser.get(path)["name"] == "login:c1"
    browser.request("DELETE", path)


def test_no_more_hosts_are_in_use_than_may_be(server: Server, logins: Logins) -> None:
    browser = server.browser
    looks = [browser.request("GET", f"jdist/clusters/nowhere{n}%3Ac1") for n in range(remote_hosts.MOST_HOSTS + 1)]
    assert looks[-1][0] == HTTPStatus.BAD_REQUEST
    assert "16 hosts are in use" in looks[-1][1]["message"]
    assert len(logins.of(server.process.pid)) <= remote_hosts.MOST_HOSTS


@pytest.mark.parametrize("name", ["", "-oX=y", "a b", "a;b", "$(a)", "a\n", "ü", "a" * 256, "login:c1"])
def test_what_is_no_hosts_name(name: str) -> None:
    async def no_one(*_: object) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match="is no host's name"):
        remote_hosts.RemoteHosts(no_one, lambda _: False).use(name)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():  # noqa: ASYNC110 — another process changes it
            await asyncio.sleep(0.05)


async def step_of(used: remote_hosts.FollowedHost, *answer: Any) -> LoginState:
    """The next step of a login at which the page has to do something."""
    step = await used.login(remote_hosts.LoginArguments(*answer))
    while step.state == "connecting":
        step = await used.login(remote_hosts.LoginArguments(0))
    return step


def in_hosts(scenario: Callable[[remote_hosts.RemoteHosts], Coroutine[Any, Any, None]]) -> None:
    async def adopt(*_: object) -> None:
        pass

    async def main() -> None:
        hosts = remote_hosts.RemoteHosts(adopt, lambda _: False)
        try:
            await scenario(hosts)
        finally:
            await hosts.close()

    asyncio.run(main())


def test_a_login_that_is_cancelled_while_the_host_is_away_ends_at_once(by_logins: Logins) -> None:
    async def scenario(hosts: remote_hosts.RemoteHosts) -> None:
        used = hosts.use("patient")
        asked = await step_of(used)
        assert (await step_of(used, asked.question, PASSPHRASE)).state == "open"
        by_logins.cut(os.getpid())
        await until(lambda: used.host.is_away)
        assert (await step_of(used)).state == "asks"
        await used.end_login()
        assert (used.host.state, used.host._opening) == ("waiting", None), "it reconnects by itself again"
        await until(lambda: not by_logins.of(os.getpid()))
        assert await used._ask("patient's password: ", "") is None

    in_hosts(scenario)


def test_a_cancellation_while_a_login_waits_for_one_that_asks_nothing_ends_both(by_logins: Logins) -> None:
    async def scenario(hosts: remote_hosts.RemoteHosts) -> None:
        look = asyncio.ensure_future(hosts.look("slow:c1"))
        await until(lambda: bool(by_logins.of(os.getpid())))
        login = asyncio.ensure_future(hosts.use("slow").login())
        await asyncio.sleep(0)  # it waits for the login that the look has begun
        await hosts.end_login("slow")
        with pytest.raises(LaunchError, match="the login to slow was cancelled"):
            async with asyncio.timeout(2.0):
                await login
        await look

    in_hosts(scenario)


def test_a_login_that_fails_is_tried_again_only_when_a_page_looks(by_logins: Logins) -> None:
    def made() -> int:
        return len((by_logins.bed / "made").read_text().split())

    async def scenario(hosts: remote_hosts.RemoteHosts) -> None:
        await hosts.look("nowhere:c1")
        await asyncio.sleep(2.5 * remote_hosts._PACE)
        assert made() == 1
        await hosts.look("nowhere:c1")
        await until(lambda: made() == 2)

    in_hosts(scenario)


def test_a_pages_login_that_fails_is_not_followed_by_one_that_asks_nothing(by_logins: Logins) -> None:
    """It would be with another Python, if the page has named one."""

    async def scenario(hosts: remote_hosts.RemoteHosts) -> None:
        with pytest.raises(LaunchError, match="nowhere"):
            await step_of(hosts.use("nowhere"))
        await asyncio.sleep(2.5 * remote_hosts._PACE)
        assert len((by_logins.bed / "made").read_text().split()) == 1

    in_hosts(scenario)
