"""Attaching while another client starts the controller again: the connection is that of the new one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from jdist.client.lifecycle.lifecycle import renewed
from jdist.wire.transport.keys import Connection, KeyPair, connection_path, new_cluster_id, write_keys


def connection(cluster: str, pid: int) -> Connection:
    return Connection("c", cluster, "127.0.0.1", 1, 1, KeyPair.make().public, KeyPair.make(), pid, "1")


@pytest.mark.parametrize("is_same", [True, False])
def test_the_file_of_the_new_controller_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    old = connection(new_cluster_id(), 1)
    new = msgspec.structs.replace(old, pid=2) if is_same else connection(new_cluster_id(), 2)
    path = connection_path(tmp_path, "c")
    write_keys(path, old, replace=True)

    async def main() -> Connection:
        asyncio.get_running_loop().call_later(0.05, lambda: write_keys(path, new, replace=True))
        return await renewed(old)

    assert asyncio.run(main()) == (new if is_same else old)


def test_without_a_new_file_the_old_connection_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("jdist.client.lifecycle.lifecycle._RENEWED", 0.05)
    old = connection(new_cluster_id(), 1)
    assert asyncio.run(renewed(old)) == old
    write_keys(connection_path(tmp_path, "c"), old, replace=True)
    assert asyncio.run(renewed(old)) == old
