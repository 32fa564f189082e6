"""Reach: a port that is open is measured; one that is not says in which way."""

from __future__ import annotations

import socket
import threading

import pytest

from jdist.wire.bulk.probe import Listener, probe_path, resolve
from support.waits import eventually

HERE = "127.0.0.1"


@pytest.fixture
def listener() -> Listener:
    return Listener(HERE, "token", 30.0)


def test_an_open_port_is_measured(listener: Listener) -> None:
    path = probe_path("localhost", (HERE, listener.port), "token", 5.0)
    assert path.trouble == ""
    assert 0 < path.round_trip < 5
    assert HERE in path.addresses
    listener.close()


def test_who_does_not_know_the_token_gets_nothing(listener: Listener) -> None:
    path = probe_path("localhost", (HERE, listener.port), "other", 5.0)
    assert (path.kind, path.round_trip) == ("broken", 0.0)
    listener.close()


def test_a_port_at_which_nobody_listens_is_refused() -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    path = probe_path("localhost", (HERE, port), "token", 5.0)
    assert path.kind == "refused"
    assert "refused" in path.trouble


def test_a_port_that_swallows_what_is_sent_is_a_timeout() -> None:
    full = socket.create_server((HERE, 0), backlog=0)
    port = full.getsockname()[1]
    waiting = [socket.socket() for _ in range(4)]  # more than the queue holds: the next one's greeting is dropped
    try:
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex((HERE, port))
        path = probe_path("localhost", (HERE, port), "token", 0.3)
        assert path.kind == "timeout"
        assert "no answer within 0.3 s" in path.trouble
    finally:
        for sock in (*waiting, full):
            sock.close()


def test_an_address_to_which_no_way_leads_is_unreachable() -> None:
    assert probe_path("localhost", ("255.255.255.255", 9), "token", 5.0).kind == "unreachable"


def test_a_name_that_means_nothing_says_so() -> None:
    addresses, why = resolve("no-such-host.invalid", 10.0)
    assert addresses == ()
    assert why
    assert resolve("a" * 300, 10.0)[1]


def test_a_closed_listener_is_gone_and_so_is_its_thread() -> None:
    before = threading.active_count()
    listener = Listener(HERE, "token", 30.0)
    listener.close()
    assert eventually(lambda: probe_path("localhost", (HERE, listener.port), "token", 5.0).kind == "refused")
    assert eventually(lambda: threading.active_count() <= before)
    assert listener.is_over


def test_a_listener_ends_by_itself() -> None:
    listener = Listener(HERE, "token", 0.05)
    assert eventually(lambda: probe_path("localhost", (HERE, listener.port), "token", 5.0).kind == "refused")
