"""Finding clusters: a connection file outlives its controller only until somebody looks."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jdist.client import find
from jdist.core.errors import UsageError
from jdist.core.messages.membership import Owner
from jdist.core.settings import Settings
from jdist.wire.processes import host_id, start_time
from jdist.wire.transport.keys import (
    CHARTER_AGE,
    Charter,
    Connection,
    KeyPair,
    charter_path,
    connection_path,
    new_cluster_id,
    read_connection,
    write_keys,
)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def write(runtime: Path, name: str, port: int, pid: int, **more: Any) -> Path:
    path = connection_path(runtime, name)
    at, public = ("127.0.0.1", port, port), KeyPair.make().public
    host = {"hostname": socket.gethostname(), "host_id": host_id()}
    connection = Connection(name, new_cluster_id(), *at, public, KeyPair.make(), pid, "1", **(host | more))
    write_keys(path, connection, replace=False)
    return path


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_the_file_of_a_controller_that_nobody_has_waited_for_is_removed(runtime: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    path = write(runtime, "c1", closed_port(), ended.pid)
    assert find.connections() == {}
    assert not path.exists()
    ended.wait()


def test_the_file_of_a_process_that_lives_stays(runtime: Path) -> None:
    path = write(runtime, "c1", closed_port(), os.getpid())
    assert find.connections() == {}
    assert path.exists()


def test_a_controller_that_listens_is_found(runtime: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        write(runtime, "c1", server.getsockname()[1], os.getpid())
        assert list(find.connections()) == ["c1"]
        assert find.free_name() == "c2"


def test_a_process_that_has_only_got_the_controllers_number_is_not_the_controller(runtime: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # and another that has got its port
        port = server.getsockname()[1]
        path = write(runtime, "c1", port, os.getpid(), started=start_time(os.getpid()) - 1)
        beside = write_charter_beside(path)
        assert find.connections() == {}
        assert list(find.restartable()) == ["c1"]
        beside.unlink()
        assert find.connections() == {}
        assert not path.exists()


def test_the_file_of_an_earlier_container_of_this_name_keeps_nobody_from_starting(runtime: Path) -> None:
    path = write(runtime, "c1", closed_port(), os.getpid(), host_id="earlier")
    beside = write_charter_beside(path, age=30.0)
    assert find.connections() == {}
    assert find.restart_time(read_connection(path)) == 0.0, "its agents are gone as well"
    assert find.free_name() == "c2"
    os.utime(beside, (0.0, time.time() - 90.0))
    assert find.free_name() == "c1"
    assert not path.exists()


# ---------------------------------------------------------------- controllers that may be started again

GRACE = 60.0


def write_charter_beside(path: Path, age: float = 0.0, **more: Any) -> Path:
    """A charter for the cluster of a connection file, last touched so many seconds ago."""
    c = read_connection(path)
    settings = Settings(name=c.name, agent_grace=GRACE)
    keys = KeyPair.make()
    charter = Charter(settings, c.cluster, "1", c.hostname, c.host_id, 1, 2, keys, keys, **more)
    beside = charter_path(path.parent, c.name)
    write_keys(beside, charter, replace=True)
    then = time.time() - age
    os.utime(beside, (then, then))
    return beside


@pytest.fixture
def ended() -> int:
    """A process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_controller_that_died_just_now_is_restartable(runtime: Path, ended: int) -> None:
    path = write(runtime, "c1", closed_port(), ended)
    beside = write_charter_beside(path, age=10.0)
    assert find.connections() == {}
    assert path.exists()
    assert list(find.restartable()) == ["c1"]
    assert find.find("c1").pid == find.find(None).pid == ended
    assert find.free_name() == "c2"
    seconds = find.restart_time(read_connection(path))
    assert GRACE - 10.0 - 1.0 < seconds <= GRACE
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600


def test_one_that_is_gone_for_longer_than_its_agents_wait_is_a_leftover(runtime: Path, ended: int) -> None:
    path = write(runtime, "c1", closed_port(), ended)
    beside = write_charter_beside(path, age=GRACE + CHARTER_AGE + 1.0)
    assert find.restartable() == {}
    assert find.connections() == {}
    assert not path.exists()
    assert not beside.exists()


def test_agents_that_a_login_carries_wait_longer(runtime: Path, ended: int) -> None:
    path = write(runtime, "c1", closed_port(), ended)
    write_charter_beside(path, age=300.0, owners={"a": Owner((0,)), "b": Owner((1,), is_carried=True)})
    assert 300.0 < find.restart_time(read_connection(path)) < 310.0


def test_one_of_another_host_or_another_cluster_cannot_be_started_again_here(runtime: Path, ended: int) -> None:
    path = write(runtime, "c1", closed_port(), ended, hostname="elsewhere", host_id="elsewhere")
    write_charter_beside(path)
    assert find.restart_time(read_connection(path)) == 0.0
    other = write_charter_beside(write(runtime, "c2", closed_port(), ended))
    other.rename(charter_path(runtime, "c1"))
    assert find.charter_of(read_connection(path)) is None


def test_one_whose_process_lives_is_not_started_again(runtime: Path) -> None:
    path = write(runtime, "c1", closed_port(), os.getpid())
    write_charter_beside(path)
    assert find.restartable() == {}
    find.remove_dead("c1")
    assert path.exists()


def test_the_files_of_a_start_that_failed_go_at_once(runtime: Path, ended: int) -> None:
    path = write(runtime, "c1", closed_port(), ended)
    beside = write_charter_beside(path)
    find.remove_dead("c1")
    assert not path.exists()
    assert not beside.exists()
    find.remove_dead("c1")


# ---------------------------------------------------------------- clusters of other hosts, in a shared home


def write_elsewhere(runtime: Path, name: str, port: int, addresses: tuple[str, ...] = ("127.0.0.1",)) -> Path:
    path = write(runtime, name, closed_port(), os.getpid())
    there = {"hostname": "elsewhere", "host_id": "elsewhere", "addresses": addresses, "public_port": port}
    write_keys(path, msgspec.structs.replace(read_connection(path), **there), replace=True)
    return path


def test_one_of_another_host_is_reached_at_its_public_port_and_used_by_name_only(runtime: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        write_elsewhere(runtime, "c1", port, ("127.0.0.2", "127.0.0.1"))
        found = find.find("c1")
        assert (found.host, found.control_port, found.data_port) == ("127.0.0.1", port, port)
        assert list(find.connections()) == ["c1"]
        assert find.here() == {}
        assert find.free_name() == "c2"
        with pytest.raises(UsageError, match="no cluster to attach to, on this host; attach c1 to use one of host"):
            find.find(None)


@pytest.mark.parametrize(("port", "why"), [(0, "it listens only there"), (1, "this host does not reach it")])
def test_one_of_another_host_that_cannot_be_reached_is_kept_and_named(runtime: Path, port: int, why: str) -> None:
    path = write_elsewhere(runtime, "c1", port and closed_port())
    assert find.connections() == {}
    assert path.exists(), "its process is not of this host"
    assert find.free_name() == "c2"
    with pytest.raises(UsageError, match=f"cluster c1 runs on host elsewhere: {why}"):
        find.find("c1")


@pytest.mark.parametrize(("age", "is_kept"), [(600.0, True), (7200.0, False)])
def test_one_of_another_host_is_a_leftover_once_it_gave_no_sign_for_an_hour(
    runtime: Path, age: float, is_kept: bool
) -> None:
    path = write_elsewhere(runtime, "c1", 0)
    write_charter_beside(path, age=age)
    assert find.connections() == {}
    assert path.exists() is is_kept
