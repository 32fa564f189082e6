"""A real jupyter server with the extension, against real clusters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest

from support.lab.browser import Browser
from support.server.serving import Server
from support.waits import eventually


@pytest.fixture(scope="session")
def server(run_traces: object, runtime_directory: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(dir=runtime_directory) as bed:
        server = Server(Path(bed), runtime_directory)
        yield server
        assert psutil.pid_exists(server.process.pid), server.said()
        server.end()


@pytest.fixture
def browser(server: Server, request: pytest.FixtureRequest) -> Browser:
    """Talks to the server, which has attached to the shared cluster if the test uses that."""
    browser = server.browser
    if "cluster" in request.fixturenames:
        name = request.getfixturevalue("cluster").name
        assert eventually(lambda: _has_attached(browser, name)), f"the server has not attached to cluster {name}"
    return browser


def _has_attached(browser: Browser, name: str) -> bool:
    status, answer = browser.request("GET", f"jdist/clusters/{name}")
    return status == HTTPStatus.OK and bool(answer.get("ranks"))
