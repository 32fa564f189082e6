"""Tests in this folder have a real JupyterHub with its users, one for the session, or skip with the reason why not.

One of its users is a Unix user of his own where the tests may have two; what jdist adds to what the Hub does is tested.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.hub.jupyterhubs import PROXY, Hub, Server
from support.lacking import lacking

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def hub(run_traces: object) -> Iterator[Hub]:
    """Ends with all of its servers, of which nothing may be left."""
    if find_spec("jupyterhub") is None:
        lacking("there is no jupyterhub here: pip install jupyterhub")
    if find_spec("jupyterhub_idle_culler") is None:
        lacking("there is no jupyterhub-idle-culler here: pip install jupyterhub-idle-culler")
    if shutil.which("node") is None:
        lacking("JupyterHub's proxy needs Node.js (nodejs, npm)")
    if not PROXY.exists():
        lacking(f"JupyterHub's proxy is not installed: npm ci --prefix {PROXY.parents[2]}")
    home = Path(tempfile.mkdtemp(prefix="jh-", dir="/tmp"))  # in it are sockets, whose paths may have 107 characters
    hub = Hub(home)
    try:
        hub.up()
        for user in ("alice", "bob"):
            hub.begin(user)
        yield hub
    finally:
        left = hub.down()
        shutil.rmtree(home, ignore_errors=True)
    assert not left, f"of the Hub's servers this was left: {left}"


@pytest.fixture(scope="session")
def alice(hub: Hub) -> Iterator[Server]:
    """Her servers may start servers and use them."""
    server = hub.serve("alice")
    yield server
    server.close()


@pytest.fixture(scope="session")
def bob(hub: Hub) -> Iterator[Server]:
    """His servers may do what is usual."""
    server = hub.serve("bob")
    yield server
    server.close()
