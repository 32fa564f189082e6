"""Interfaces: ranks meet over the network that reaches the controller, whatever else a host has, or says of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

import jdist
from jdist.launch.base import Launcher
from jdist.launch.join import LocalLauncher
from support.hosts.namespaces import Bed, call

Start = Callable[..., jdist.Cluster]
MEET = """
import os, socket, psutil
t = torch.ones(1) * rank
dist.all_reduce(t)
if rank == world_size - 1:
    dist.recv(t, 0)
elif rank == 0:
    dist.send(t, world_size - 1)
links = psutil.Process().net_connections("tcp")
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
mine = {c.laddr.ip for c in links if c.status == "ESTABLISHED" and c.raddr.port != store.port}
t.item(), os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"], sorted(mine)
"""
"""What an all_reduce gives, which interfaces were chosen, and at which of its addresses the rank meets the others."""
OTHER = "192.168.77"
"""A second network, which the controller is not in."""


@pytest.fixture
def second_network(hosts: Bed) -> Iterator[list[str]]:
    """The first two nodes have a cable of their own, whose addresses their names resolve to there."""
    nodes = hosts.nodes[:2]
    addresses = [f"{OTHER}.{n + 1}" for n in range(2)]
    ends = ("dev", "aaa0", "netns", str(nodes[0].held.pid)), ("aaa0", "netns", str(nodes[1].held.pid))
    call("ip", "link", "add", "aaa0", *ends[0][2:], "type", "veth", "peer", "name", *ends[1])
    before = [(n.directory / "hosts").read_text() for n in nodes]
    try:
        for node, address in zip(nodes, addresses, strict=True):
            node.run("ip", "addr", "add", f"{address}/24", "dev", "aaa0")
            node.run("ip", "link", "set", "aaa0", "up")
            lines = [line for line in before[0].splitlines() if node.name not in line.split()]
            (node.directory / "hosts").write_text("\n".join([*lines, f"{address} {node.name}", ""]))
        yield addresses
    finally:
        nodes[0].run("ip", "link", "del", "aaa0")
        for node, text in zip(nodes, before, strict=True):
            (node.directory / "hosts").write_text(text)


def test_of_two_networks_the_one_is_used_that_reaches_the_controller(
    hosts: Bed, second_network: list[str], fresh_cluster: Start
) -> None:
    own = fresh_cluster("2,1", 2, launcher="namespaces", bind_host=hosts.head)
    values = own.run(MEET, timeout=30).values
    first, second = (n.address for n in hosts.nodes[:2])
    assert values == {
        0: (3.0, "eth0", "eth0", [first]),
        1: (3.0, "eth0", "eth0", [first]),
        2: (3.0, "eth0", "eth0", [second]),
    }


def test_the_users_choice_of_an_interface_is_kept_and_a_name_on_the_loopback_is_not_believed(
    hosts: Bed, second_network: list[str], fresh_cluster: Start
) -> None:
    """Gloo would ask for the host's own name, and meet nobody at 127.0.1.1; the user says where to meet instead."""
    with hosts.nodes[0].own_name_on_loopback():
        chosen = {"GLOO_SOCKET_IFNAME": "aaa0"}
        own = fresh_cluster(1, 2, launcher="namespaces", bind_host=hosts.head, env=chosen)
        values = own.run(MEET, timeout=30).values
    assert values == {r: (1.0, "aaa0", "eth0", [second_network[r]]) for r in range(2)}


@contextlib.contextmanager
def only_ipv6(bed: Bed, count: int) -> Iterator[str]:
    """The first nodes lose their IPv4 addresses and get others; the controller's."""
    bridge = bed.bridge
    call("ip", "-6", "addr", "add", "fd77::1/64", "dev", bridge, "nodad")
    try:
        for n, node in enumerate(bed.nodes[:count]):
            node.run("ip", "-4", "addr", "flush", "dev", "eth0")
            node.run("ip", "-6", "addr", "add", f"fd77::{11 + n}/64", "dev", "eth0", "nodad")
        yield "fd77::1"
    finally:
        call("ip", "-6", "addr", "del", "fd77::1/64", "dev", bridge)
        for n, node in enumerate(bed.nodes[:count]):
            node.run("ip", "-6", "addr", "del", f"fd77::{11 + n}/64", "dev", "eth0")
            node.run("ip", "addr", "add", f"{node.address}/24", "dev", "eth0")


def test_a_network_may_speak_ipv6_only(hosts: Bed, fresh_cluster: Start) -> None:
    with only_ipv6(hosts, 2) as head:
        own = fresh_cluster(1, 2, launcher="namespaces", bind_host=head)
        values = own.run(MEET, timeout=30).values
        own.push(block=b"x" * 3_000_000)
        assert own.run("len(block)", timeout=20).values == {0: 3_000_000, 1: 3_000_000}
        own.stop()
    assert values == {r: (1.0, "eth0", "eth0", [f"fd77::{11 + r}"]) for r in range(2)}


class HeadLauncher(LocalLauncher):
    """Starts the first node's agent on the controller's own host, and the other in the bed."""

    is_remote = True
    bed: ClassVar[Bed]

    def command(self, node_rank: int) -> list[str]:
        command = super().command(node_rank)
        return self.bed.nodes[node_rank].command(command) if node_rank else command


def test_a_node_on_the_controllers_host_is_met_where_the_others_reach_the_controller(
    hosts: Bed, offer: Callable[[str, type[Launcher]], None], fresh_cluster: Start
) -> None:
    HeadLauncher.bed = hosts
    offer("head", HeadLauncher)
    own = fresh_cluster(1, 2, launcher="head")
    assert own.run(MEET, timeout=30).values == {
        0: (1.0, hosts.bridge, hosts.bridge, [hosts.head]),
        1: (1.0, "eth0", "eth0", [hosts.nodes[1].address]),
    }


class ContainerLauncher(LocalLauncher):
    """Starts agents as containers would have them: under one host name, where neither home nor folder can be used."""

    bed: ClassVar[Bed]

    def command(self, node_rank: int) -> list[str]:
        inside = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname box; cd /proc; exec "$@"',
            "sh",
            *super().command(node_rank),
        ]
        return self.bed.nodes[node_rank].command(inside)


def test_agents_need_neither_a_home_nor_a_folder_nor_a_name_of_their_own(
    hosts: Bed, offer: Callable[[str, type[Launcher]], None], fresh_cluster: Start
) -> None:
    ContainerLauncher.bed = hosts
    offer("containers", ContainerLauncher)
    nowhere = {"HOME": "/proc/nonexistent", "TMPDIR": "/proc/nonexistent"}
    own = fresh_cluster(1, 2, launcher="containers", bind_host=hosts.head, env=nowhere)
    assert own.nodes == ["box", "box"]
    assert own.run(MEET, timeout=30).values == {r: (1.0, "eth0", "eth0", [hosts.nodes[r].address]) for r in range(2)}
    assert own.run("os.path.expanduser('~'), os.getcwd(), node_rank").values == {
        r: ("/proc/nonexistent", "/proc", r) for r in range(2)
    }
    own.push(block=b"x" * 3_000_000)
    assert own.run("len(block)", timeout=20).values == {0: 3_000_000, 1: 3_000_000}
