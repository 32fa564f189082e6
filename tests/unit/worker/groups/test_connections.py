"""Connections of this process: a socket that another thread connects at that moment is no connection from nowhere."""

from __future__ import annotations

import pytest

from jdist.worker.groups import gloo


class Connecting:
    """A socket that is connected once something has been asked of it."""

    def __init__(self) -> None:
        self._is_connected = False

    def getsockname(self) -> tuple[str, int]:
        was_connected, self._is_connected = self._is_connected, True
        return ("127.0.0.1", 5000) if was_connected else ("::", 0)

    def getpeername(self) -> tuple[str, int]:
        was_connected, self._is_connected = self._is_connected, True
        if not was_connected:
            raise OSError("not connected")
        return ("127.0.0.1", 6000)


def test_a_socket_that_is_just_being_connected_has_no_wrong_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Connecting()
    monkeypatch.setattr(gloo, "_inet_sockets", lambda **_: iter([made]))
    assert list(gloo.connections()) == []
    assert [(here, there) for _, here, there in gloo.connections()] == [(("127.0.0.1", 5000), ("127.0.0.1", 6000))]
