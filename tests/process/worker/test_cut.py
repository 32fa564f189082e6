"""Cutting touches gloo's connections only; ``where`` sees what the main thread waits in."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from jdist.worker.gloo.connections import connections_to, cut, endpoint, let_go, own_listeners, quiet
from support.ranks import Ranks


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


def test_cut_ends_the_connections_of_a_listener_and_leaves_it_listening(pair) -> None:
    server, near, far = pair
    at = endpoint(server.getsockname())
    assert cut({at}) >= 1
    assert near.recv(1) == b""
    assert far.recv(1) == b""
    with socket.create_connection(server.getsockname(), timeout=5):
        assert at in own_listeners()


def test_what_is_quiet_reads_its_end_and_can_still_be_written(pair) -> None:
    server, near, far = pair
    far.sendall(b"before")
    assert quiet({endpoint(server.getsockname())}) == 2
    assert near.recv(6) == b"before"
    assert near.recv(1) == b""
    near.sendall(b"an answer to what was read before")
    near.close()
    far.sendall(b"nobody is told of an end that is held")
    assert quiet({endpoint(server.getsockname())}) == 0, "once is enough"
    let_go()
    assert far.recv(100) == b"an answer to what was read before"


def test_cut_leaves_other_connections_alone(pair) -> None:
    _, near, far = pair
    assert cut({("127.0.0.1", 1), ("10.0.0.1", near.getpeername()[1])}) == 0
    near.sendall(b"x")
    assert far.recv(1) == b"x"


def test_cut_by_store_port_spares_what_is_kept(pair) -> None:
    server, near, far = pair
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as spare:
        other, _ = server.accept()
        with other:
            assert {endpoint(near.getsockname()), endpoint(spare.getsockname())} <= connections_to(port)
            assert cut((), (port,), keep={endpoint(spare.getsockname())}) == 1
            assert far.recv(1) == b""
            spare.sendall(b"y")
            assert other.recv(1) == b"y"


def test_mapped_addresses_are_the_same_endpoint() -> None:
    assert endpoint(("::ffff:127.0.0.1", 80, 0, 0)) == ("127.0.0.1", 80) == endpoint(("127.0.0.1", 80))


def test_connection_over_a_dual_stack_listener_is_cut() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no dual-stack sockets")
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with server, socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=5) as near:
        far, _ = server.accept()
        with far:
            assert cut({("127.0.0.1", server.getsockname()[1])}) == 2
            assert near.recv(1) == b""


WAITS = {
    "dist.all_reduce(torch.ones(4))": "at.op == 'all_reduce' and not at.in_store_wait",
    "\n\ndist.recv(torch.ones(4))": "at.op == 'recv' and at.in_recv_any and at.line == 3",
    "dist.recv(torch.ones(4), 0)": "at.op == 'recv' and not at.in_recv_any",
    "dist.new_group([0, 1])": "at.op == 'new_group' and at.in_store_wait and at.line == 1",
    "dist.all_gather_object([None] * 2, 1)": "at.op == 'all_gather_object'",
    "while True: pass": "at.op is None and at.line == 1 and at.function == '<module>'",
}


def test_where_names_what_the_main_thread_waits_in() -> None:
    world = Ranks(2)
    try:
        for code, claim in WAITS.items():
            world.form()
            world.ask(1, "run", code)
            world.until(1, claim)
            assert world.interrupt() < 3.0
            world.answer(1, "done")
        world.form()
        port = "_ = G.store_ports[0]"
        world.ask(1, "run", "import torch.distributed as d\nd.distributed_c10d._get_default_store().wait(['never'])")
        world.until(1, f"at.in_store_wait and at.op == 'store.wait' and at.store_port == {world.side(1, port)}")
        assert world.interrupt() < 3.0
        world.until(1, "at.line is None")
    finally:
        world.close()


def test_a_store_of_the_cells_own_is_let_go() -> None:
    world = Ranks(1)
    try:
        world.form()
        world.run("mine = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)")
        world.ask(0, "run", "mine.wait(['never'])")
        world.until(0, "at.in_store_wait")
        assert world.interrupt() < 3.0  # torch looks the peer's name up for its message; a name server may time out
        assert world.answer(0, "done")[0] in {"KeyboardInterrupt", "DistNetworkError", "DistStoreError"}
        world.form()
        assert world.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [1.0]
    finally:
        world.close()
