"""Accepting: without descriptors it waits, and takes what has come once there are some again."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from jdist.wire.transport import public_port
from jdist.wire.transport.public_port import Acceptor


class Listener(socket.socket):
    """A listening socket that cannot accept while ``full`` is set."""

    full = False
    attempts = 0

    def accept(self):  # type: ignore[no-untyped-def]
        self.attempts += 1
        if self.full:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_it_does_not_spin_while_there_are_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_port, "_PAUSE", 0.1)

    async def main() -> None:
        listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(tmp_path / "s"))
        listener.listen(8)
        taken: asyncio.Queue[socket.socket] = asyncio.Queue()
        accepting = Acceptor(listener, taken.put_nowait)
        listener.full = True
        with socket.socket(socket.AF_UNIX) as dialled:
            dialled.connect(str(tmp_path / "s"))
            await asyncio.sleep(0.5)
            assert listener.attempts <= 6
            listener.full = False
            (await asyncio.wait_for(taken.get(), 30)).close()
        accepting.close()

    asyncio.run(main())
