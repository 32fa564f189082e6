"""What a start over ssh is made of, before anything is connected to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Host, Settings
from jdist.launch import ssh_login
from jdist.launch.base import LaunchPlan
from jdist.launch.hosts import parse_hosts
from jdist.launch.ssh import SshLauncher, SshOptions, parse_options
from jdist.launch.ssh_login import SshLogins
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import KeyPair


def settings(hosts: str, **given: Any) -> Settings:
    return Settings(name="s", hosts=parse_hosts(hosts), **{"nnodes": 0, "launcher": "ssh", **given})


@pytest.mark.parametrize(
    ("hosts", "given", "counts"),
    [
        ("a:2,b:2", {}, (2, 2)),
        ("a:2,b:1", {}, (2, 1)),
        ("a:2,b:2", {"nproc_per_node": (2,)}, (2, 2)),
        ("a:2,b:1", {"nproc_per_node": (2, 1), "nnodes": 2}, (2, 1)),
        ("a,b", {"nproc_per_node": (2, 1)}, (2, 1)),
        ("a,b", {"nproc_per_node": (4,)}, (4,)),
        ("a,b", {}, ()),
        ("a:4,b", {}, (4, 4)),
        ("a:4,b", {"nproc_per_node": (4,)}, (4, 4)),
    ],
)
def test_hosts_say_how_many_nodes_and_ranks(hosts: str, given: dict[str, Any], counts: tuple[int, ...]) -> None:
    complete = SshLauncher.complete(settings(hosts, **given))
    assert (complete.nnodes, complete.nproc_per_node) == (len(complete.hosts), counts)


@pytest.mark.parametrize(
    ("hosts", "given", "why"),
    [
        ("a,b", {"nnodes": 3}, "--nnodes 3, but 2 hosts are named"),
        ("a:2,b:1", {"nproc_per_node": (2,)}, "says 2 ranks on b, and b has 1 slots"),
        ("a:2,b:1", {"nproc_per_node": (2, 1, 1)}, "names 3 nodes, but 2 hosts are named"),
        ("a:2,b:1,c", {}, "how many ranks are to be on c"),
        ("a", {"launcher_args": ("--pithon", "p")}, "does not understand --pithon; did you mean --python"),
        ("a", {"launcher_args": ("b",)}, "to add it to a running cluster"),
    ],
)
def test_what_does_not_fit_together(hosts: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        SshLauncher.complete(settings(hosts, **given))


def test_hosts_are_needed() -> None:
    with pytest.raises(UsageError, match="--hosts a:2,b:2 or --hostfile FILE"):
        SshLauncher.complete(Settings(name="s", launcher="ssh"))


def test_what_stands_after_the_dashes() -> None:
    words = ["--python", "/p", "--directory", "/d", "-F", "f", "h"]
    assert parse_options(words) == SshOptions("/p", "/d", "f", "h")
    assert parse_options([]) == SshOptions(tunnel="auto")
    assert parse_options(["--tunnel", "never"]) == SshOptions(tunnel="never")
    with pytest.raises(UsageError, match="--tunnel"):
        parse_options(["--tunnel", "sometimes"])


def test_the_host_of_a_node_that_is_added() -> None:
    start = settings("a,b", launcher_args=("--directory", "/d"))
    launcher = SshLauncher(LaunchPlan(start, "/nowhere", first=2, nnodes=1, host=Host("c")))
    assert launcher.make_node(2).name == "c"
    unnamed = SshLauncher(LaunchPlan(start, "/nowhere", first=2, nnodes=1))
    with pytest.raises(LaunchError, match="which host is node 2 to be on"):
        unnamed.make_node(2)


@pytest.mark.parametrize("tunnel", ["auto", "never"])
def test_a_login_in_which_nothing_else_can_be_started_is_one_that_reaches_the_controller(tunnel: str) -> None:
    asked: list[str] = []
    line = JoinLine("c0ffee", ("127.0.0.1",), 1, 2, "", KeyPair.make()).encode()

    async def create_process(command: str, **_: object) -> None:
        asked.append(command)
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "open failed")

    async def scenario() -> None:
        launcher = SshLauncher(LaunchPlan(settings("a", launcher_args=("--tunnel", tunnel)), "/nowhere", nnodes=1))
        connection: Any = SimpleNamespace(create_process=create_process)
        agent: Any = SimpleNamespace(exit_status=None)
        node = launcher.make_node(0)
        assert await node._passable(line, connection, agent) == line
        assert ("--tunnel always" in node._advice) == (tunnel == "auto")

    asyncio.run(scenario())
    assert len(asked) == (tunnel == "auto")


def test_a_login_that_breaks_silently_is_given_up_in_time_whatever_the_users_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    async def connect(name: str, **options: Any) -> None:
        given.update(options)

    path = tmp_path / "config"
    path.write_text("Host *\n  ServerAliveInterval 60\n  ServerAliveCountMax 120\n")
    monkeypatch.setattr(ssh_login.asyncssh, "connect", connect)
    asyncio.run(SshLogins(str(path)).log_in("a", 15.0))
    assert given["keepalive_interval"] * (given["keepalive_count_max"] + 1) == 15.0
    given.clear()
    asyncio.run(SshLogins(str(path)).log_in("a"))
    assert (given["keepalive_interval"], "keepalive_count_max" in given) == (60, False)
