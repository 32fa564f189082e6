"""A real jupyter server with the extension, against real clusters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.lab.browser import Browser
from support.server.serving import Server


@pytest.fixture(scope="session")
def server(run_traces: object, runtime_directory: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir=runtime_directory) as bed:
        server = Server(Path(bed), runtime_directory)
        yield server
        assert psutil.pid_exists(server.process.pid), server.said()
        server.end()


@pytest.fixture
def browser(server: Server) -> Browser:
    return server.browser
