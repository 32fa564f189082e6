"""Acceptor: takes connections at a listening socket on the running loop, and goes on after descriptors have run out."""

import asyncio
import logging
import socket
from collections.abc import Callable

_log = logging.getLogger("jdist.wire")

_PAUSE = 1.0  # Seconds until the next attempt after one that has failed: the socket stays readable.


class Acceptor:
    """``on_accept`` is called with each connection."""

    def __init__(self, listener: socket.socket, on_accept: Callable[[socket.socket], object]):
        self._listener = listener
        self._on_accept = on_accept
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._start()

    def _start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # whoever has dialled has ended
            return
        except OSError as e:
            _log.warning("a connection could not be accepted: %s", e)
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(_PAUSE, self._start)
        else:
            self._on_accept(sock)

    def close(self) -> None:
        """Close the listening socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
