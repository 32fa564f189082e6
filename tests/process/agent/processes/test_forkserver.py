"""The preforked child: its child becomes what it is asked to be, or something says that it did not."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jdist.agent.processes import forkserver as module
from jdist.agent.processes.forkserver import PreforkedChild
from support.waits import eventually


def fork(life: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            life()
        finally:
            os._exit(0)
    return pid


@pytest.fixture
def became(tmp_path: Path) -> Path:
    return tmp_path / "became"


@pytest.fixture
def filled(became: Path) -> Iterator[tuple[PreforkedChild, int]]:
    pids: list[int] = []

    def remembered(life: Callable[[], None]) -> int:
        pids.append(fork(life))
        return pids[-1]

    preforked = PreforkedChild(remembered, lambda request, fds: became.write_bytes(request))
    preforked.fill()
    yield preforked, pids[0]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_it_becomes_what_it_is_told_to_be(filled: tuple[PreforkedChild, int], became: Path) -> None:
    preforked, pid = filled
    assert preforked.assign(b"a rank", []) == pid
    assert eventually(lambda: became.exists() and became.read_bytes() == b"a rank")
    assert preforked.is_empty
    assert preforked.assign(b"another", []) == 0


def test_one_that_is_killed_before_it_has_heard_is_none(
    filled: tuple[PreforkedChild, int], became: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preforked, pid = filled
    os.kill(pid, signal.SIGSTOP)  # what is sent now is taken for it, and never read
    os.waitpid(pid, os.WUNTRACED)
    send = socket.send_fds

    def send_and_kill(*args: Any) -> int:
        sent = send(*args)
        os.kill(pid, signal.SIGKILL)
        return sent

    monkeypatch.setattr(socket, "send_fds", send_and_kill)
    assert preforked.assign(b"a rank", []) == 0
    assert not became.exists()


def test_one_that_answers_too_late_becomes_nothing(
    filled: tuple[PreforkedChild, int], became: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER", 0.2)
    preforked, pid = filled
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert preforked.assign(b"a rank", []) == 0
    os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")
    assert not became.exists()


def test_a_child_that_cannot_be_forked_is_reported_and_makes_no_second_forkserver(
    monkeypatch: pytest.MonkeyPatch, became: Path
) -> None:
    """The intermediate process, where `fork` fails, must not go on as what it was forked from."""
    original, parent = os.fork, os.getpid()

    def fork_once() -> int:
        if os.getpid() != parent:
            raise BlockingIOError("no more processes")
        return original()

    monkeypatch.setattr(os, "fork", fork_once)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with pytest.raises(OSError, match="before it forked"):
            module._fork_twice(theirs, parent, became.touch)
        theirs.close()
        ours.settimeout(10)
        assert ours.recv(1) == b"", "nobody else holds the socket"
    assert not became.exists()
