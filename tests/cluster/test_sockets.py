"""What listens is in the table of docs/security.md, and another user of the host gets nowhere with any of it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import jdist
from support import anatomy
from support.cells import ALL_REDUCE

TABLE = Path(__file__).parents[2] / "docs" / "security.md"
NOBODY = 65534
LARGE = 200_000  # Bytes of a message with which another user might fill a pipe.
LISTENS = " 00010000 "  # The flag of a listening socket in /proc/net/unix.


@pytest.fixture
def own(fresh_cluster: Callable[..., jdist.Cluster]) -> jdist.Cluster:
    found = fresh_cluster(2)
    found.run("group = dist.new_group([0, 1]); dist.all_reduce(torch.ones(1), group=group); kept = rank + 1")
    return found


def processes(cluster: jdist.Cluster) -> dict[int, str]:
    """Each process of the cluster, and what the table calls it."""
    known = {anatomy.controller(cluster): "controller", anatomy.agent(cluster, 0): "agent"}
    known[anatomy.store(cluster)] = "store"
    known |= {anatomy.worker(cluster, rank): "rank" for rank in (0, 1)}
    others = [child.pid for pid in list(known) for child in psutil.Process(pid).children(recursive=True)]
    return dict.fromkeys(others, "another") | known


def listening(pid: int) -> Iterator[tuple[str, str]]:
    """Each socket at which the process listens: its kind, and its address."""
    process = psutil.Process(pid)
    for each in process.net_connections("inet"):
        if each.status == psutil.CONN_LISTEN or each.type == socket.SOCK_DGRAM:
            yield "TCP", f"{each.laddr.ip.removeprefix('::ffff:')}:{each.laddr.port}"
    waiting = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if LISTENS in line}
    for unix in process.net_connections("unix"):
        if unix.laddr and unix.laddr in waiting:
            yield "Unix", str(unix.laddr)


def rows() -> set[tuple[str, str]]:
    """The table's processes, and the kinds of their sockets."""
    text = TABLE.read_text().split("## What listens")[1].split("\n## ")[0]
    return {(found[1], found[2]) for found in re.finditer(r"^\| (\w+) \| (TCP|Unix),", text, re.MULTILINE)}


def test_the_table_has_what_listens(own: jdist.Cluster) -> None:
    found = set()
    for pid, kind in processes(own).items():
        with contextlib.suppress(psutil.NoSuchProcess):  # a forkserver whose place a warm one has just taken
            found |= {(kind, family, address) for family, address in listening(pid)}
    assert {(kind, family) for kind, family, _ in found} == rows()
    assert all(address.startswith("127.0.0.1:") for _, family, address in found if family == "TCP")
    assert len([1 for kind, family, _ in found if (kind, family) == ("controller", "TCP")]) == 2
    groups = 2  # The world, and the cell's own: each has a listener on each rank.
    assert len([1 for kind, family, _ in found if (kind, family) == ("rank", "TCP")]) == 2 * groups


def as_nobody(action: Callable[[], str]) -> str:
    """What the action returns in a process of another user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        text = "it has ended"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            text = action()
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        finally:
            os.write(writing, text.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def send_all(addresses: list[tuple[str, int]]) -> str:
    """Connect to each, and send what might fill, freeze or crash it; what was answered."""
    heard, opened = b"", []
    for address in addresses:
        for data in (b"x" * LARGE, b"\xff\0\0\0\0\0\0\0\x01\x7f" + b"\0" * 54, b"GET / HTTP/1.0\r\n\r\n"):
            with contextlib.suppress(OSError):
                sock = socket.create_connection(address, 2)
                sock.settimeout(1)
                opened.append(sock)
                sock.sendall(data)
                with contextlib.suppress(TimeoutError):
                    heard += sock.recv(4096)
    return repr(heard[:200])


def connect(address: str) -> str:
    """What is heard at a Unix socket."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.settimeout(30)
            try:
                sock.connect(address)
            except OSError as e:
                if e.errno == errno.EPROTOTYPE:
                    continue
                raise
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(b"jdist " * 100)
            return repr(sock.recv(100))
    return "no kind fits"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_gets_nowhere(own: jdist.Cluster) -> None:
    found = [(kind, *each) for pid, kind in processes(own).items() for each in listening(pid)]
    ports = [address.rsplit(":", 1) for kind, family, address in found if family == "TCP" and kind == "controller"]
    said = as_nobody(lambda: send_all([(host, int(port)) for host, port in ports]))
    assert "Error" not in said, said
    for kind, family, address in found:
        if family == "Unix" and address.startswith("@"):
            text = as_nobody(lambda address=address: connect("\0" + address[1:]))  # type: ignore[misc]
            assert text == "b''" or text.startswith("ConnectionResetError"), text
        elif family == "Unix":
            assert kind in ("agent", "rank")
            text = as_nobody(lambda address=address: connect(address))  # type: ignore[misc]
            assert text.startswith("PermissionError"), (address, text)
            assert stat.S_IMODE(Path(address).parent.stat().st_mode) == 0o700
    assert own.run(f"{ALL_REDUCE}, kept", timeout=30).values == {0: (2.0, 1), 1: (2.0, 2)}
    assert own.facts.phase == "ready"
