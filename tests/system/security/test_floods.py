"""Floods: whatever a peer with a valid key says, the controller's memory stays bounded and others are heard."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

import jdist
from jdist.client import find
from support import flood

MOST = 1400 << 20
"""Bytes: 16 messages ahead of at most 65 MiB, and a margin."""
SECONDS = 2.0
FLOOD = Path(flood.__file__)


@pytest.mark.timeout(240)
def test_a_flood_from_an_authenticated_peer(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(1)
    connection = find.connections()[cluster.name]
    controller = psutil.Process(connection.pid)
    for kind in ("large cells", "large rubbish", "surveys", "again"):
        with subprocess.Popen(
            [sys.executable, str(FLOOD), kind, str(SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as flood:
            assert flood.stdin is not None
            assert flood.stdout is not None
            flood.stdin.write(msgspec.json.encode(connection))
            flood.stdin.close()
            most = 0
            while flood.poll() is None:
                try:
                    most = max(most, controller.memory_info().rss)
                except psutil.NoSuchProcess:
                    log = find.directory() / f"jdist-{cluster.name}.log"
                    pytest.fail(f"the controller has ended: {log.read_text()[-3000:]}")
            sent = int(flood.stdout.read())
        print(f"{kind}: {sent >> 20} MiB said, controller at most {most >> 20} MiB")
        assert most < MOST, kind
        assert cluster.run("rank", timeout=60).values == {0: 0}, kind
    assert find.connections()[cluster.name].pid == connection.pid
