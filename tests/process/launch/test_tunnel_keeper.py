"""A tunnel keeper's life is the controller's; and the node's end, which a later login replaces at the same ports."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from jdist.core.errors import LaunchError
from jdist.core.settings import SshBootstrapSpec
from jdist.launch import tunnel_keeper
from jdist.launch.node_end import NodeEndReport, NodeEndSpec, ReachSpec, _reaches
from jdist.launch.tunnel_keeper import KeeperSpec, TunnelKeeper
from jdist.wire.processes import host_id, start_time
from jdist.wire.transport.keys import Connection, KeyPair, write_keys
from jdist.wire.transport.tunnel import Tunnel
from support.port import run

PAIR = KeyPair.make()
SPEC = NodeEndSpec((("127.0.0.1", 1), ("127.0.0.1", 2)), (0, 0))


@pytest.fixture
def connection() -> Connection:
    """Of a cluster whose controller is this process."""
    pid = os.getpid()
    own = {"hostname": "here", "host_id": host_id(), "started": start_time(pid)}
    return Connection("c1", "c0ffee", "127.0.0.1", 1, 2, PAIR.public, PAIR, pid, "1", **own)


@pytest.fixture
def spec(tmp_path: Path, connection: Connection) -> KeeperSpec:
    path = tmp_path / "jdist-c1.json"
    write_keys(path, connection, replace=False)
    return KeeperSpec("nowhere", (), "", SshBootstrapSpec("m", ()), str(path), "c0ffee", 10.0)


class Clock:
    """Stands in for the loop, of which only the time is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now


def keeper_at(spec: KeeperSpec) -> tuple[TunnelKeeper, Clock]:
    keeper, clock = TunnelKeeper(spec), Clock()
    keeper._loop = clock  # type: ignore[assignment]
    keeper._controlled = keeper._used = 0.0
    return keeper, clock


def test_it_lives_as_long_as_there_are_a_controller_and_a_connection(spec: KeeperSpec, connection: Connection) -> None:
    async def scenario() -> None:
        keeper, clock = keeper_at(spec)
        clock.now = 9.0
        assert not keeper._is_over()
        clock.now = 11.0
        assert keeper._is_over(), "no connection for too long"
        tunnel = keeper._tunnel = Tunnel(None, lambda: None)
        tunnel._connections[1] = None  # type: ignore[assignment]
        assert not keeper._is_over()
        write_keys(Path(spec.connection_file), replace(connection, started=1), replace=True)
        clock.now = 20.0
        assert not keeper._is_over(), "a controller that has died may be started again"
        write_keys(Path(spec.connection_file), connection, replace=True)
        assert not keeper._is_over()
        write_keys(Path(spec.connection_file), replace(connection, started=1), replace=True)
        clock.now = 31.0
        assert keeper._is_over(), "no controller for too long"

    run(scenario)


@pytest.mark.parametrize("what", ["gone", "another"])
def test_it_ends_with_the_cluster(spec: KeeperSpec, connection: Connection, what: str) -> None:
    path = Path(spec.connection_file)

    async def scenario() -> None:
        keeper, _ = keeper_at(spec)
        assert not keeper._is_over()
        end()
        assert keeper._is_over()

    def end() -> None:
        if what == "gone":
            path.unlink()
        else:
            write_keys(path, replace(connection, cluster="another"), replace=True)

    run(scenario)


@pytest.mark.parametrize("what", ["another version", "unreadable"])
def test_a_file_that_cannot_be_read_for_a_moment_ends_nothing(
    spec: KeeperSpec, connection: Connection, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = Path(spec.connection_file)

    def spoil() -> None:
        path.write_text("{}")

    def fail(_: Path) -> Connection:
        raise OSError(errno.ESTALE, "Stale file handle")

    async def scenario() -> None:
        keeper, clock = keeper_at(spec)
        tunnel = keeper._tunnel = Tunnel(None, lambda: None)
        tunnel._connections[1] = None  # type: ignore[assignment]
        with monkeypatch.context() as patch:
            if what == "unreadable":
                patch.setattr(tunnel_keeper, "read_connection", fail)
            else:
                spoil()
            clock.now = 9.0
            assert not keeper._is_over()
        write_keys(path, connection, replace=True)
        assert not keeper._is_over()
        spoil()
        clock.now = 18.0
        assert not keeper._is_over(), "it was there in between"
        clock.now = 20.0
        assert keeper._is_over(), "it has not been readable for too long"

    run(scenario)


def test_only_the_controllers_host_carries(spec: KeeperSpec, connection: Connection) -> None:
    write_keys(Path(spec.connection_file), replace(connection, host_id="elsewhere"), replace=True)

    async def scenario() -> None:
        with pytest.raises(LaunchError, match="only here, the controller"):
            TunnelKeeper(spec)

    run(scenario)


@contextlib.contextmanager
def node_end(spec: NodeEndSpec) -> Iterator[tuple[subprocess.Popen[bytes], NodeEndReport]]:
    words = [sys.executable, "-P", "-m", "jdist", "node-end"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
        yield process, msgspec.json.decode(process.stdout.readline(), type=NodeEndReport)
        process.kill()


def test_a_later_end_takes_the_ports_of_an_earlier_one_whose_connections_break() -> None:
    with node_end(SPEC) as (first, report), socket.create_connection(("127.0.0.1", report.ports[0]), 20) as held:
        assert report.process == (first.pid, start_time(first.pid))
        again = NodeEndSpec(SPEC.controller, report.ports, report.process)
        with node_end(again) as (second, later):
            assert later.ports == report.ports
            assert first.wait(20)
            with pytest.raises(ConnectionResetError):
                held.recv(1)
            assert second.stdin is not None
            second.stdin.close()  # the login ends
            assert second.wait(20) == 0


def test_an_end_whose_ports_are_taken_says_so_and_no_other_process_is_ended_for_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = int(other.getsockname()[1])
        mine = (os.getpid(), start_time(os.getpid()) - 1)  # the number has been given again since
        with node_end(NodeEndSpec(SPEC.controller, (taken, 0), mine)) as (_, report):
            assert "Address already in use" in report.error


def test_who_does_not_reach_the_controller_says_so() -> None:
    words = [sys.executable, "-P", "-m", "jdist", "reach"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        wanted = ReachSpec("c0ffee", ("127.0.0.1",), int(other.getsockname()[1]))
        done = subprocess.run(words, input=msgspec.json.encode(wanted) + b"\n", stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"false\n"


def test_a_controller_is_reached_once_it_has_answered_at_one_address() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"k")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = int(server.sockets[0].getsockname()[1])
        with socket.create_server(("127.0.0.2", port)):  # takes connections, and answers none
            async with server, asyncio.timeout(2.0):
                assert await _reaches(ReachSpec("c0ffee", ("127.0.0.2", "127.0.0.1"), port))

    run(scenario)
