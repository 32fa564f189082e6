"""The data gateway opens connections to the controller's data port for workers, which never open any themselves.

A worker connects to a Unix socket here, names a transfer, and gets a connected and introduced TCP socket handed over;
it then writes a tensor's own memory into it, with no copy in between.
"""

import asyncio
import contextlib
import socket

from jdist.wire.transport.acceptor import Acceptor
from jdist.wire.transport.dialing import dial_data

_NAME_LIMIT = 128


class DataGateway:
    """Listens at ``path`` on the running loop, and hands over in threads."""

    def __init__(self, path: str, data_port: tuple[str, int]):
        self._data_port = data_port
        self._loop = asyncio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(64)
        self._acceptor = Acceptor(listener, lambda sock: self._loop.run_in_executor(None, self._hand_over, sock))

    def _hand_over(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):  # the worker has ended
            sock.settimeout(10.0)
            try:
                name = sock.recv(_NAME_LIMIT).decode().strip()
                with dial_data(self._data_port, "PUT", name) as data:
                    data.setblocking(True)
                    socket.send_fds(sock, [b"ok"], [data.fileno()])
            except OSError as e:
                sock.sendall(f"{self._data_port[0]}:{self._data_port[1]}: {e}".encode())

    def close(self) -> None:
        self._acceptor.close()
