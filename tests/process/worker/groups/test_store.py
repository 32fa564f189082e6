"""The client of the rendezvous store, whose connection may break between two uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from jdist.core.errors import LaunchError
from jdist.worker.groups.gloo import shut_down
from jdist.worker.groups.store import StoreClient
from support.ports import free_port
from support.waits import eventually

HOST = "127.0.0.1"
WANTED = threading.Event()
"""Of a formation that nobody abandons."""
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
        first = client.get(HOST, store.port, WANTED)
        first.set("a", "1")
        assert client.get(HOST, store.port, WANTED) is first, "one client lasts"
        assert eventually(lambda: client._spare)
        shut_down((), store.port)
        second = client.get(HOST, store.port, WANTED)
        assert second is not first
        assert second.get("a") == b"1"
        assert client.get(HOST, store.port, WANTED) is second

    in_thread(body)


def test_disconnecting_ends_the_clients_connection_only(in_thread: InThread) -> None:
    def body() -> None:
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        client = StoreClient()
        first = client.get(HOST, store.port, WANTED)
        other = dist.TCPStore(HOST, store.port, is_master=False, wait_for_workers=False)
        spare = eventually(lambda: client._spare)
        client.disconnect()
        other.set("a", "1")
        assert client.get(HOST, store.port, WANTED) is spare[0] is not first
        assert spare[0].get("a") == b"1"

    in_thread(body)


def test_a_dead_store_holds_up_no_later_one(in_thread: InThread) -> None:
    """A world that is formed while its store dies is given up for the next, which meets at another one."""
    dead = free_port()
    client, abandoned = StoreClient(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(client.get, HOST, dead, abandoned)
        assert eventually(lambda: client.port == dead)

        def body() -> None:
            store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
            client.disconnect()
            abandoned.set()
            with pytest.raises(LaunchError, match="cannot be reached"):
                earlier.result(60)
            client.get(HOST, store.port, WANTED).set("a", "1")
            assert eventually(lambda: client._spare)

        in_thread(body)


def test_a_store_that_listens_a_moment_later_is_waited_for(in_thread: InThread) -> None:
    port = free_port()

    def body() -> None:
        client = StoreClient()
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(client.get, HOST, port, WANTED)
            assert eventually(lambda: client.port == port)
            store = dist.TCPStore(HOST, port, is_master=True, wait_for_workers=False)
            connecting.result(60).set("a", "1")
            assert store.get("a") == b"1"

    in_thread(body)
