"""Handover: keeps the names that a worker's process has saved in the end, for the process that takes its place.

Each worker connects to a Unix socket when it starts, and stays connected. If it fails, faulthandler writes there first;
a `WorkerFails` follows if Python can still run. One that the agent has asked for its names answers with `SavingNames`.
Then the worker sends the descriptor of anonymous memory that holds its names, so nothing is left behind if this agent
dies. A process that stops reporting progress in between is killed.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from jdist.agent.processes.kernel import Kernel
from jdist.agent.processes.starter import CreateTask
from jdist.core.errors import ProtocolError
from jdist.core.messages.base import Message
from jdist.core.messages.membership import Handover, NamesLoaded, NamesSaved, RequestNames, SavingNames, WorkerFails
from jdist.wire.transport.public_port import Acceptor
from jdist.wire.values.frames import Unpacker, pack

_log = logging.getLogger("jdist.agent")

OWN = b"\0"  # The first byte of messages; anything else is faulthandler's text.
_SILENCE = 10.0  # Seconds without progress after which a process that fails is ended.
_ANSWER = 5.0  # Seconds in which one that is asked for its names begins to save them, or is ended.
_PACKET = 1 << 20
_MOST_GIVEN = 8  # Processes that end as they load the names, before these are given up.

_unpack: Unpacker[Any] = Unpacker(Handover)


class HandoverServer:
    """Listens at ``path`` on the running loop.

    ``kernel_of(identity)`` is the kernel that has this identity; ``on_failure(kernel, message)`` is called once for a
    kernel whose process is about to end.
    """

    def __init__(
        self,
        path: str,
        kernel_of: Callable[[bytes], Kernel | None],
        on_failure: Callable[[Kernel, WorkerFails], None],
        create_task: CreateTask,
    ):
        self._create_task = create_task
        self._kernel_of = kernel_of
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._saved: dict[int, tuple[int, int]] = {}  # By worker: the memory's descriptor, and its size.
        self._given: dict[int, int] = {}  # By worker: how many processes have been given the names.
        self._deadlines: dict[Kernel, asyncio.TimerHandle] = {}
        self._connections: dict[socket.socket, bytes] = {}  # Each with the identity of its worker, once that is known.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen(64)
        self._acceptor = Acceptor(listener, self._handle_connection)

    def has_names(self, worker: int) -> bool:
        """Whether the last process of this worker has handed its names over."""
        return worker in self._saved

    def forget(self, worker: int) -> None:
        """Drop what the last process of this worker has saved."""
        self._given.pop(worker, None)
        if worker in self._saved:
            os.close(self._saved.pop(worker)[0])

    def handle_exit(self, kernel: Kernel) -> None:
        """The kernel's process has ended: read what it has written in the end."""
        for sock in [s for s, identity in self._connections.items() if identity == kernel.identity]:
            while self._receive(sock):
                pass
        if kernel in self._deadlines:
            self._deadlines.pop(kernel).cancel()

    def await_answer(self, kernel: Kernel) -> None:
        """The kernel's process has been asked to hand its names over: kill it if it does not begin to in time."""
        self._await(kernel, _ANSWER)

    def close(self) -> None:
        for worker in list(self._saved):
            self.forget(worker)
        for timer in self._deadlines.values():
            timer.cancel()
        self._acceptor.close()
        for sock in self._connections:
            self._loop.remove_reader(sock)
            sock.close()

    def _handle_connection(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._connections[sock] = b""
        self._loop.add_reader(sock, self._receive, sock)

    def _receive(self, sock: socket.socket) -> bool:
        """Read one packet, the first of which is the worker's identity; returns whether there was one."""
        try:
            data, fds, _, _ = socket.recv_fds(sock, _PACKET, 1)
        except BlockingIOError:
            return False
        except OSError:
            data, fds = b"", []
        if not data:
            self._loop.remove_reader(sock)
            del self._connections[sock]
            sock.close()
            return False
        kernel = self._kernel_of(self._connections[sock])
        if not self._connections[sock]:
            self._connections[sock] = data
        elif kernel is not None:
            fds = self._handle(kernel, sock, data, fds)
        for fd in fds:
            os.close(fd)
        return True

    def _handle(self, kernel: Kernel, sock: socket.socket, data: bytes, fds: list[int]) -> list[int]:
        """Handle a worker's packet; returns the descriptors that are to be closed."""
        if not data.startswith(OWN):
            kernel.fatal_text += data.decode(errors="replace")
            self._await(kernel)
            return fds
        try:
            message = _unpack(data[len(OWN) :])
        except ProtocolError as e:
            _log.warning("worker %d: %s", kernel.worker, e)
            return fds
        match message:
            case WorkerFails():
                self._await(kernel)
                self._on_failure(kernel, message)
            case SavingNames():
                self._await(kernel)
            case NamesSaved() if fds:
                self._await(kernel)
                self.forget(kernel.worker)
                self._saved[kernel.worker] = fds[0], message.nbytes
                return fds[1:]
            case RequestNames():
                self._give(kernel.worker, sock)
            case NamesLoaded():
                self.forget(kernel.worker)
        return fds

    def _give(self, worker: int, sock: socket.socket) -> None:
        """Hand the names to the process that asks for them. They are kept until it has loaded them.

        If it ends before that, because a name's own code ends it, its successor leaves that name out.
        """
        self._given[worker] = self._given.get(worker, 0) + 1
        if self._given[worker] > _MOST_GIVEN:
            self.forget(worker)
        fd, nbytes = self._saved.get(worker, (-1, 0))
        answer: Message = NamesSaved(nbytes) if fd >= 0 else SavingNames()
        with contextlib.suppress(OSError):  # it has ended
            socket.send_fds(sock, [OWN + pack(answer)], [fd] if fd >= 0 else [])

    def _await(self, kernel: Kernel, seconds: float | None = None) -> None:
        """Kill the process if it neither reports progress in time nor ends by itself."""
        if kernel in self._deadlines:
            self._deadlines[kernel].cancel()
        self._deadlines[kernel] = self._loop.call_later(seconds or _SILENCE, self._end, kernel)

    def _end(self, kernel: Kernel) -> None:
        del self._deadlines[kernel]
        self._create_task(self._end_stuck(kernel))

    async def _end_stuck(self, kernel: Kernel) -> None:
        kernel.why_stuck = await kernel.explain_silence()
        _log.warning("worker %d got stuck as it handed its names over; ending it: %s", kernel.worker, kernel.why_stuck)
        kernel.is_stuck = True
        kernel.kill()
