"""What tests of the debugger share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jdist
from support.waits import eventually


@pytest.fixture
def left_running(cluster: jdist.Cluster) -> Iterator[None]:
    """A test that fails leaves no rank of the shared cluster paused."""
    yield
    if cluster.status().runs:
        cluster.interrupt()
        assert eventually(lambda: not cluster.status().runs)
