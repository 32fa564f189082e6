"""Faults of the machine: each is a block, in which something of a cluster's surroundings is not as it should be."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

import jdist
from support import anatomy
from support.soak import programs

NOBODY = 65534


@dataclass
class Stage:
    """A cluster on folders of its own, each of them a small file system."""

    cluster: jdist.Cluster
    runtime: Path
    tmp: Path
    saves: Path
    shm: Path
    clock: Path
    """The file with the seconds by which the wall clocks of the controller and the agents are wrong."""
    usual: set[str]
    """What is always in ``tmp``."""

    def processes(self) -> list[int]:
        """All processes of the cluster, whatever has become of their parents."""
        mark = f"JUPYTER_RUNTIME_DIR={self.runtime}".encode()
        found = []
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found


Fault = Callable[[Stage, random.Random], AbstractContextManager[set[int]]]
"""The block; it returns the ranks that may lose their names."""


@contextlib.contextmanager
def frozen(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """SIGSTOP of one process, or of all."""
    pids = rng.choice([_some_process, lambda s, _: s.processes()])(stage, rng)
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    try:
        time.sleep(rng.choices([0.2, 2.0, 6.0, 20.0], [8, 4, 2, 1])[0])
        yield set()
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)


@contextlib.contextmanager
def full_disk(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """No room in one of the folders that jdist writes to."""
    hoard = rng.choice([stage.runtime, stage.tmp, stage.saves, stage.shm]) / "hoard"
    try:
        with contextlib.suppress(OSError), hoard.open("wb", 0) as f:
            while f.write(bytes(1 << 16)):
                pass
        with contextlib.suppress(OSError), hoard.open("ab", 0) as f:
            while f.write(b"."):
                pass
        yield set()
    finally:
        hoard.unlink()


@contextlib.contextmanager
def no_descriptors(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """A process that can open nothing more."""
    limits: dict[int, tuple[int, int]] = {}
    for pid in _some_process(stage, rng):
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds(), limits[pid][1]))
    try:
        yield set()
    finally:
        for pid, limit in limits.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


@contextlib.contextmanager
def clock_steps(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """The cluster's wall clock is wrong for a while."""
    stage.clock.write_text(str(rng.choice([-3600, -5, 5, 3600])))
    try:
        yield set()
    finally:
        stage.clock.write_text("0")


@contextlib.contextmanager
def another_user(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """Connections of another Unix user to every port, with what a peer would not send; they stay open."""
    ports = set()
    for pid in stage.processes():
        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(pid).net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    ports.add((each.laddr.ip.removeprefix("::ffff:"), each.laddr.port))
    data = rng.choice([b"x" * 200_000, b"\xff\0\0\0\0\0\0\0\x01\x7f" + bytes(54), b"GET / HTTP/1.0\r\n\r\n", b""])
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _bother(sorted(ports), data, reading, writing)
        finally:
            os._exit(0)
    os.close(reading)
    try:
        yield set()
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


def _bother(addresses: list[tuple[str, int]], data: bytes, reading: int, writing: int) -> None:
    os.close(writing)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    opened = []
    for address in addresses:
        for _ in range(5):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(address, 1))
                opened[-1].settimeout(0.2)
                opened[-1].sendall(data)
    os.read(reading, 1)  # until the other end is closed


@contextlib.contextmanager
def stale_files(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """Files of clusters that are gone, torn ones, and ones of another host."""
    real = stage.runtime / f"jdist-{stage.cluster.name}.json"
    name = f"old{rng.randrange(10**6)}"
    found = json.loads(real.read_text()) if real.exists() else {}
    found |= {"name": name, "pid": rng.choice([1, 2**22 - 1, os.getpid()])}
    text = json.dumps(found)
    path = stage.runtime / f"jdist-{name}.json"
    content = rng.choice([text, text[: len(text) // 2], "", json.dumps(found | {"host_id": "another"})])
    dead = stage.shm / f"jdist-{name}-{0:08x}{2**22 - 1:08x}{rng.getrandbits(64):016x}"
    try:
        with contextlib.suppress(OSError):  # the disk may be full already
            path.touch(0o600)
            path.write_text(content)
            dead.write_bytes(bytes(1000))
        yield set()
    finally:
        path.unlink(missing_ok=True)
        dead.unlink(missing_ok=True)


@contextlib.contextmanager
def killed_worker(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """kill -9 of a rank."""
    rank = rng.randrange(programs.WORLD)
    with contextlib.suppress(jdist.JdistError):
        _signal(anatomy.worker(stage.cluster, rank), signal.SIGKILL)
    yield {rank}


@contextlib.contextmanager
def killed_controller(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """kill -9 of the controller, which the client starts again."""
    _signal(anatomy.controller(stage.cluster), signal.SIGKILL)
    yield set()


@contextlib.contextmanager
def stolen_ports(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """The controller is killed, and something else that never answers takes its ports."""
    pid = anatomy.controller(stage.cluster)
    with contextlib.suppress(psutil.Error):
        ports = [c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        _signal(pid, signal.SIGKILL)
        psutil.Process(pid).wait(5)
        with contextlib.ExitStack() as stack:
            for ip, port in ports:
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_server((ip, port)))
            yield set()
        return
    yield set()


@contextlib.contextmanager
def saving(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """A save, which waits until the cell has ended."""
    with _meanwhile(lambda: stage.cluster.save(str(stage.saves / "run"), keep=1)):
        yield set()


@contextlib.contextmanager
def pulling(stage: Stage, rng: random.Random) -> Iterator[set[int]]:
    """A large value on its way to the client."""
    with _meanwhile(lambda: stage.cluster.pull("torch.zeros(5_000_000)", ranks=[rng.randrange(programs.WORLD)])):
        yield set()


@contextlib.contextmanager
def _meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Run it in a thread; a JdistError is an answer, too."""

    def act() -> None:
        with contextlib.suppress(jdist.JdistError):
            action()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield
    _LEFT.append(thread)


_LEFT: list[threading.Thread] = []  # Saves and pulls that were begun.


def waiting(seconds: float) -> int:
    """How many saves and pulls have not come to their end within these seconds."""
    end = time.monotonic() + seconds
    for thread in _LEFT:
        thread.join(max(0.0, end - time.monotonic()))
    left = [t for t in _LEFT if t.is_alive()]
    _LEFT.clear()
    return len(left)


def _some_process(stage: Stage, rng: random.Random) -> list[int]:
    """One of the controller, an agent and a rank; none where it has just ended."""
    kind, rank = rng.choice(["controller", "agent", "rank"]), rng.randrange(programs.WORLD)
    with contextlib.suppress(jdist.JdistError, psutil.Error, StopIteration):
        of = {
            "controller": lambda: anatomy.controller(stage.cluster),
            "agent": lambda: anatomy.agent(stage.cluster, rank % 2),
            "rank": lambda: anatomy.worker(stage.cluster, rank),
        }
        return [pid for pid in [of[kind]()] if pid]
    return []


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pid:  # 0: the rank has no process now; the system would take that for this process's own group
            os.kill(pid, number)


ALL: dict[Fault, int] = {
    frozen: 4,
    full_disk: 4,
    no_descriptors: 3,
    clock_steps: 2,
    another_user: 2,
    stale_files: 2,
    saving: 2,
    pulling: 2,
    killed_worker: 1,
    killed_controller: 1,
    stolen_ports: 1,
}
"""Each with how often it is chosen."""
