"""The ports of a controller that is started again: taken by another controller, by another program, or free again."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import cast

import pytest

from jdist.controller import main
from jdist.controller.server import Server
from jdist.core.errors import LaunchError
from jdist.core.settings import Settings
from jdist.wire.processes import host_id
from jdist.wire.transport import keys

CHARTER = keys.Charter(
    Settings(name="again"), "c0ffee", "1", "here", host_id(), 4321, 4322, *([keys.KeyPair.make()] * 2)
)


class Ports:
    """They are taken at the first attempts to listen."""

    def __init__(self, taken: int):
        self.taken = taken
        self.attempts = 0

    def listen(self) -> Server:
        self.attempts += 1
        if self.attempts <= self.taken:
            raise OSError(errno.EADDRINUSE, "taken")
        return cast("Server", self)


def listen(ports: Ports, path: Path) -> object:
    return asyncio.run(main._listen(ports.listen, CHARTER, path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The connection file of the controller that has died."""
    found = keys.connection_path(tmp_path, "again")
    keys.write_keys(found, CHARTER.connection(2**22 - 1), replace=False)
    return found


def test_ports_that_are_taken_for_a_while(path: Path) -> None:
    ports = Ports(3)
    assert listen(ports, path) is ports


def test_ports_that_are_taken_for_good(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_PORTS", 0.2)
    with pytest.raises(LaunchError, match="taken"):
        listen(Ports(1000), path)


def test_a_controller_that_another_client_has_started(path: Path) -> None:
    keys.write_keys(path, CHARTER.connection(os.getpid()), replace=True)
    ports = Ports(1000)
    with pytest.raises(main._Running):
        listen(ports, path)
    assert ports.attempts == 1
