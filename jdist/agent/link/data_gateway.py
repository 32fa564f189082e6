"""The data gateway opens connections to the controller's data port for workers, which never open any themselves.

A worker connects to a Unix socket here, names a transfer, and gets a connected and introduced TCP socket handed over;
it then writes a tensor's own memory into it, with no copy in between.
"""

import asyncio
import socket

from jdist.wire.transport.dialing import dial_data

_NAME_LIMIT = 128


class DataGateway:
    """Listens at ``path`` on the running loop."""

    def __init__(self, path: str, data_port: tuple[str, int]):
        self.path = path
        self._data_port = data_port
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._accept())
        self._handing: set[asyncio.Task[None]] = set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            task = loop.create_task(asyncio.to_thread(self._hand_over, sock))
            self._handing.add(task)
            task.add_done_callback(self._handing.discard)

    def _hand_over(self, sock: socket.socket) -> None:
        with sock:
            sock.setblocking(True)
            sock.settimeout(10.0)
            try:
                name = sock.recv(_NAME_LIMIT).decode().strip()
                with dial_data(self._data_port, "PUT", name) as data:
                    data.setblocking(True)
                    socket.send_fds(sock, [b"ok"], [data.fileno()])
            except OSError as e:
                try:
                    sock.sendall(f"{self._data_port[0]}:{self._data_port[1]}: {e}".encode())
                except OSError:
                    return  # the worker has ended

    def close(self) -> None:
        self._task.cancel()
        self._listener.close()
