"""The list of clusters: one that never answers keeps no other from being found."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

import pytest
from msgspec import structs

from jdist.server.cluster_list import ClusterEvent, ClusterList
from jdist.server.starts import Policy
from jdist.wire.processes import host_id
from jdist.wire.transport.keys import Connection, KeyPair, connection_path, write_keys

LONG = 30.0
_KEYS = KeyPair.make()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where connection files are looked for."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_cluster_that_goes_before_it_has_answered_is_left(directory: Path) -> None:
    """As when a server finds a cluster that is just ending: nothing answers there any more."""
    events: list[ClusterEvent] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        connection = Connection(
            "c1", "0" * 32, "127.0.0.1", port, port, _KEYS.public, _KEYS, os.getpid(), "1", host_id=host_id()
        )

        async def scenario() -> None:
            clusters = ClusterList(
                Policy(0, (), {}), events.append, lambda: True, lambda: None, logging.getLogger(__name__)
            )
            for name, gone in (("c1", ""), ("c2", "c1")):
                write_keys(connection_path(directory, name), structs.replace(connection, name=name), replace=False)
                if gone:
                    connection_path(directory, gone).unlink()
                async with asyncio.timeout(LONG):
                    while [each.name for each in await clusters.list()] != [name]:  # noqa: ASYNC110 — an event comes later than what it tells
                        await asyncio.sleep(0.02)
            async with asyncio.timeout(LONG):
                await clusters.close()

        asyncio.run(scenario())
    assert [e.name for e in events if e.action == "gone"] == ["c1"]
