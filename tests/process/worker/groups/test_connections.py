"""Shutting down touches gloo's connections only."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from jdist.worker.groups.gloo import connections_to, end_reading, endpoint, own_listeners, release, shut_down


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname(), timeout=5) as near:
        far, _ = server.accept()
        with far:
            yield server, near, far


def test_own_listeners_has_listening_sockets_only(pair) -> None:
    server, near, _ = pair
    found = own_listeners()
    assert endpoint(server.getsockname()) in found
    assert endpoint(near.getsockname()) not in found


def test_shut_down_ends_the_connections_of_a_listener_and_leaves_it_listening(pair) -> None:
    server, near, far = pair
    at = endpoint(server.getsockname())
    assert shut_down({at}) >= 1
    assert near.recv(1) == b""
    assert far.recv(1) == b""
    with socket.create_connection(server.getsockname(), timeout=5):
        assert at in own_listeners()


def test_where_reading_is_ended_it_reads_the_end_and_can_still_be_written(pair) -> None:
    server, near, far = pair
    far.sendall(b"before")
    assert end_reading({endpoint(server.getsockname())}) == 2
    assert near.recv(6) == b"before"
    assert near.recv(1) == b""
    near.sendall(b"an answer to what was read before")
    near.close()
    far.sendall(b"no peer sees the end of what is held")
    assert end_reading({endpoint(server.getsockname())}) == 0, "once is enough"
    release()
    assert far.recv(100) == b"an answer to what was read before"


def test_shut_down_leaves_other_connections_alone(pair) -> None:
    _, near, far = pair
    assert shut_down({("127.0.0.1", 1), ("10.0.0.1", near.getpeername()[1])}) == 0
    near.sendall(b"x")
    assert far.recv(1) == b"x"


def test_shut_down_by_store_port_spares_connections_with_other_ends(pair) -> None:
    server, near, far = pair
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as spare:
        other, _ = server.accept()
        with other:
            assert {endpoint(near.getsockname()), endpoint(spare.getsockname())} <= connections_to(port)
            assert shut_down((), port, {endpoint(near.getsockname())}) == 1
            assert far.recv(1) == b""
            spare.sendall(b"y")
            assert other.recv(1) == b"y"


def test_mapped_addresses_are_the_same_endpoint() -> None:
    assert endpoint(("::ffff:127.0.0.1", 80, 0, 0)) == ("127.0.0.1", 80) == endpoint(("127.0.0.1", 80))


def test_connection_over_a_dual_stack_listener_is_shut_down() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no dual-stack sockets")
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with server, socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=5) as near:
        far, _ = server.accept()
        with far:
            assert shut_down({("127.0.0.1", server.getsockname()[1])}) == 2
            assert near.recv(1) == b""
