"""The client of the rendezvous store, whose connection may break between two uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from jdist.worker.gloo.connections import shut_down
from jdist.worker.groups.store_client import StoreClient
from support.waits import eventually

HOST = "127.0.0.1"
InThread = Callable[[Callable[[], None]], None]


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[InThread]:
    """Runs a function in a new thread, which looks names up as a worker does: once, for a second at most."""
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


def test_a_client_whose_connection_broke_is_replaced_and_so_is_the_spare(in_thread: InThread) -> None:
    def body() -> None:
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        client = StoreClient()
        first = client.get(HOST, store.port)
        first.set("a", "1")
        assert client.get(HOST, store.port) is first, "one client lasts"
        assert eventually(lambda: client._spare)
        shut_down((), store.port)
        second = client.get(HOST, store.port)
        assert second is not first
        assert second.get("a") == b"1"
        assert client.get(HOST, store.port) is second

    in_thread(body)


def test_disconnecting_ends_the_clients_connection_only(in_thread: InThread) -> None:
    def body() -> None:
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        client = StoreClient()
        first = client.get(HOST, store.port)
        other = dist.TCPStore(HOST, store.port, is_master=False, wait_for_workers=False)
        spare = eventually(lambda: client._spare)
        client.disconnect()
        other.set("a", "1")
        assert client.get(HOST, store.port) is spare[0] is not first
        assert spare[0].get("a") == b"1"

    in_thread(body)
