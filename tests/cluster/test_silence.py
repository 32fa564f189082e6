"""Silence: neither one's own pause nor the end of a connection is taken for the death of another process."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pytest

import jdist
from jdist.client.lifecycle.start import Progress
from jdist.client.threads import bridge
from jdist.wire.processes import has_ended
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.streams import unknown
from support import anatomy
from support.cells import ALL_REDUCE
from support.waits import eventually

Start = Callable[..., jdist.Cluster]

_PAUSE = 8.0
_GRACE = 5.0  # Less than the pause, and more than a heartbeat, also on a busy machine.


def pause(pids: Iterable[int]) -> None:
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(_PAUSE)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


OF: dict[str, Callable[[jdist.Cluster], list[int]]] = {
    "the controller": lambda c: [anatomy.controller(c)],
    "everything": lambda c: [
        anatomy.controller(c),
        *(anatomy.agent(c, node) for node in (0, 1)),
        *(anatomy.worker(c, rank) for rank in (0, 1)),
        anatomy.store(c),
    ],
}


@pytest.mark.parametrize("of", OF)
def test_a_pause_costs_no_rank_its_names(fresh_cluster: Start, of: str) -> None:
    own = fresh_cluster(1, 2, node_grace=_GRACE, agent_grace=_GRACE)
    own.run("kept = rank + 1")
    told: list[str] = []
    own.asynchronous.watch(lambda m: told.append(getattr(m, "text", "")))
    pause(OF[of](own))
    assert eventually(lambda: own.facts.phase == "ready")
    assert own.run(ALL_REDUCE, timeout=30).values == {0: 2.0, 1: 2.0}
    assert own.run("kept", timeout=30).values == {0: 1, 1: 2}
    assert not [text for text in told if "lost" in text and "nothing was lost" not in text]
    assert [rank.fresh for rank in own.status().ranks] == [False, False]


def test_an_interrupt_continues_a_rank_that_was_stopped(fresh_cluster: Start) -> None:
    own = fresh_cluster(2)
    own.run("kept = rank + 1")
    run = own.run("while True: pass", background=True)
    assert eventually(lambda: run.state == "running")
    os.kill(anatomy.worker(own, 1), signal.SIGSTOP)
    run.cancel()
    assert run.wait(30)
    assert {outcome.kind for outcome in run.outcomes.values()} == {"interrupted"}
    assert own.run("kept", timeout=30).values == {0: 1, 1: 2}


class Proxy:
    """Passes on what comes to a TCP port; ``close_all`` ends its connections in order, as one does that were idle."""

    def __init__(self, port: int):
        self._to = port
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.opened = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                self.opened += 1
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError), here:
            while data := here.recv(65536):
                there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)

    def close_all(self) -> None:
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self.close_all()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def behind_a_proxy(fresh_cluster: Start) -> Iterator[tuple[jdist.Cluster, Proxy]]:
    """A cluster whose node reaches the controller's data port through a proxy."""
    shown: queue.SimpleQueue[Progress] = queue.SimpleQueue()
    made: list[jdist.Cluster] = []
    options = {"launcher": "join", "on_progress": shown.put}
    starting = threading.Thread(target=lambda: made.append(fresh_cluster(1, 1, **options)))
    starting.start()
    line = None
    while line is None:
        line = re.search(r"jdist1\.\S+", getattr(shown.get(timeout=30), "text", ""))
    told = JoinLine.decode(line[0])
    proxy = Proxy(told.data_port)
    line_there = msgspec.structs.replace(told, hosts=("127.0.0.1",), data_port=proxy.port).encode()
    joining = subprocess.Popen(
        [sys.executable, "-m", "jdist", "join", "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert joining.stdin is not None
    with joining.stdin:
        joining.stdin.write(line_there)
    starting.join(60)
    yield made[0], proxy
    made[0].stop()
    joining.wait(30)
    proxy.close()


def test_a_proxy_that_closes_an_idle_connection_costs_nothing(behind_a_proxy: tuple[jdist.Cluster, Proxy]) -> None:
    own, proxy = behind_a_proxy
    own.run("kept = 7")
    for _ in range(3):
        before = proxy.opened
        proxy.close_all()
        assert eventually(lambda before=before: proxy.opened > before), "the agent has dialled again"
        assert own.run(f"{ALL_REDUCE}, kept", timeout=30).values == {0: (1.0, 7)}
    assert [rank.fresh for rank in own.status().ranks] == [False]


def test_the_death_of_an_agent_is_seen_at_once_all_the_same(fresh_cluster: Start) -> None:
    own = fresh_cluster(1, 2, node_grace=60.0)
    run = own.run("import time; time.sleep(100) if rank == 0 else dist.recv(torch.ones(1), 0)", background=True)
    assert eventually(lambda: run.state == "running")
    os.kill(anatomy.agent(own, 1), signal.SIGKILL)
    assert run.wait(20)
    assert run.outcomes[1].kind == "lost"


def test_a_cluster_that_has_dropped_this_client_is_stopped_all_the_same(fresh_cluster: Start) -> None:
    """The controller drops a client that takes nothing of what it is sent, such as one that was stopped for long."""
    own = fresh_cluster(1)
    own.run("kept = 1")
    link, controller = own.asynchronous.link, anatomy.controller(own)
    bridge().loop.call_soon_threadsafe(link._on_frames, unknown(1))
    assert eventually(lambda: link.lost)
    with pytest.raises(jdist.ConnectionLost, match=r"does not know this client any more.*attach"):
        own.run("1")
    assert not has_ended(controller)
    own.stop()
    assert eventually(lambda: has_ended(controller))
