"""Handover: this process speaks on the socket for names in the place of workers that fail, and of their successors."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jdist.agent.processes import handover
from jdist.agent.processes.exits import signal_of
from jdist.agent.processes.handover import OWN, HandoverServer
from jdist.agent.processes.kernel import Kernel
from jdist.core.messages.base import Message
from jdist.core.messages.membership import Handover, NamesLoaded, NamesSaved, RequestNames, SavingNames, WorkerFails
from jdist.wire.values.frames import Unpacker, pack
from jdist.worker.session.crash import connect

DEADLINE = 30.0
TEXT = b"Fatal Python error: Aborted\n"
_unpack: Unpacker[Any] = Unpacker(Handover)


class Bed:
    """A server for worker 10, whose first process is w-0 and whose second is w-1."""

    def __init__(self, folder: Path):
        self.path = str(folder / "names")
        self.failures: list[tuple[bytes, WorkerFails]] = []
        self.killed = asyncio.Event()
        self.kernels = {name: self._kernel(name) for name in (b"w-0", b"w-1")}
        self.tasks: set[asyncio.Task[None]] = set()
        self.server = HandoverServer(
            self.path,
            cast("Callable[[bytes], Kernel | None]", self.kernels.get),
            self._handle_failure,
            lambda work: self.tasks.add(asyncio.get_running_loop().create_task(work)),
        )

    def _kernel(self, identity: bytes) -> Any:
        async def explain_silence() -> str:
            return "C code held the interpreter lock at cell line 3"

        facts = {"worker": 10, "identity": identity, "fatal_text": "", "is_stuck": False}
        return SimpleNamespaceKernel(**facts, explain_silence=explain_silence, kill=self.killed.set)

    def _handle_failure(self, kernel: Kernel, message: WorkerFails) -> None:
        self.failures.append((kernel.identity, message))

    def end(self, identity: bytes) -> None:
        """Its process ends."""
        self.server.handle_exit(self.kernels[identity])


class SimpleNamespaceKernel(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def say(line: socket.socket, message: Message, fd: int = -1) -> None:
    socket.send_fds(line, [OWN + pack(message)], [fd] if fd >= 0 else [])


def saved(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def memories() -> int:
    """How many descriptors of such memory this process holds."""
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    return sum("memfd:test" in os.readlink(link) for link in links if os.path.islink(link))


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Bed], Any]], None]:
    def played(scene: Callable[[Bed], Any]) -> None:
        async def main() -> None:
            bed = Bed(tmp_path)
            try:
                async with asyncio.timeout(DEADLINE):
                    await scene(bed)
            finally:
                bed.server.close()

        asyncio.run(main())

    return played


async def until(is_so: Callable[[], Any]) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_names_are_kept_until_a_successor_has_loaded_them(play: Any) -> None:
    async def scene(bed: Bed) -> None:
        failing = connect(bed.path, "w-0")
        failing.send(TEXT)
        say(failing, WorkerFails(6, None))
        await until(lambda: bed.failures)
        assert bed.failures == [(b"w-0", WorkerFails(6, None))]
        for content in (b"old", b"names"):
            fd = saved(content)
            say(failing, NamesSaved(len(content)), fd)
            os.close(fd)
        failing.close()
        bed.end(b"w-0")  # what it had written is read before
        assert signal_of(bed.kernels[b"w-0"].fatal_text) == signal.SIGABRT
        assert bed.server.has_names(10)

        heir = connect(bed.path, "w-1")
        for expected in (NamesSaved(5), NamesSaved(5), SavingNames()):
            if isinstance(expected, SavingNames):
                say(heir, NamesLoaded())
            say(heir, RequestNames())
            data, fds, _, _ = await asyncio.to_thread(socket.recv_fds, heir, 1000, 1)
            assert _unpack(data[len(OWN) :]) == expected
            assert [os.pread(fd, 10, 0) for fd in fds] == ([b"names"] if isinstance(expected, NamesSaved) else [])
            for fd in fds:
                os.close(fd)
        assert not bed.server.has_names(10)
        heir.close()

    play(scene)


def test_a_process_that_falls_silent_as_it_fails_is_ended(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_SILENCE", 0.05)

    async def scene(bed: Bed) -> None:
        failing = connect(bed.path, "w-0")
        failing.send(TEXT)
        await bed.killed.wait()
        assert bed.kernels[b"w-0"].is_stuck
        failing.close()

    play(scene)


def test_nonsense_costs_nothing_and_no_descriptor_stays(play: Any) -> None:
    before = memories()

    async def scene(bed: Bed) -> None:
        unknown, failing = connect(bed.path, "w-77"), connect(bed.path, "w-0")
        fd = saved(b"names")
        say(unknown, NamesSaved(5), fd)
        failing.send(OWN + b"nonsense")
        say(failing, SavingNames(), fd)
        say(failing, NamesSaved(5))
        say(failing, NamesSaved(5), fd)
        os.close(fd)
        await until(lambda: bed.server.has_names(10))
        unknown.close()
        failing.close()

    play(scene)
    assert memories() == before == 0
