"""The cradle: one child that is forked before it is asked for, so that a rank's place is taken again without a fork.

Half of what a fresh rank takes is the two forks of a process with torch's pages. The child waits with nothing but a
socket to the forkserver; it ends with that, or with the agent, and becomes whatever it is told to be.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

Become = Callable[[bytes, list[int]], None]
"""What a child does with the request that it is given and the descriptors that came with it; never returns."""
_HEARD = b"."
_ANSWER = 5.0
"""Seconds for the child to say that it has heard."""


class Cradle:
    """Holds the next child. In the forkserver, which is single-threaded."""

    def __init__(self, fork_twice: Callable[[Callable[[], None]], int], adopted: Callable[[], None], become: Become):
        """``fork_twice`` runs a function in a new process and returns its pid; ``adopted`` waits there until that is
        the agent's child.
        """
        self._fork_twice = fork_twice
        self._adopted = adopted
        self._become = become
        self._socket: socket.socket | None = None
        self._pid = 0

    @property
    def is_empty(self) -> bool:
        return self._socket is None

    def fill(self) -> None:
        """Fork the next child. Where that fails it is tried again when it is needed, and told then."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.suppress(OSError):
            self._pid = self._fork_twice(lambda: self._wait(ours, theirs))
            self._socket = ours
            return
        ours.close()

    def take(self, request: bytes, fds: list[int]) -> int:
        """Have the child become what ``request`` says; its pid, or 0 if there is none.

        A request can be sent to a child that is being killed, so only one that answers has heard it. One that does not
        answer in time finds that it cannot any more, and ends: another has become meanwhile what it was to be.
        """
        if self._socket is None:
            return 0
        heard = b""
        with self._socket as sock, contextlib.suppress(OSError):
            self._socket = None
            sock.settimeout(_ANSWER)
            socket.send_fds(sock, [request], fds)
            try:
                heard = sock.recv(1)
            except TimeoutError:
                sock.shutdown(socket.SHUT_RDWR)
                heard = sock.recv(1)
        return self._pid if heard else 0

    def _wait(self, ours: socket.socket, theirs: socket.socket) -> None:
        ours.close()
        self._adopted()
        out = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # it is nobody yet
        os.close(null)
        with theirs:
            request, fds, _, _ = socket.recv_fds(theirs, 1 << 20, 1)
            if request:
                try:
                    theirs.send(_HEARD)
                except OSError:
                    return
        os.dup2(out, 1)
        os.close(out)
        if request:
            self._become(request, fds)
