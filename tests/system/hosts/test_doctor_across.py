"""The doctor across hosts: ports that are blocked, names that mean nothing, clocks and memory of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

import jdist
from jdist.client.doctor.examine import examine_beforehand
from jdist.client.doctor.findings import Diagnosis
from jdist.client.threads import bridge
from support.hosts.namespaces import Bed, Node


@contextlib.contextmanager
def deaf_to(node: Node, other: Node) -> Iterator[None]:
    """What the other sends to the node arrives, and no answer leaves: to the other it is dropped."""
    node.run("ip", "route", "add", "blackhole", f"{other.address}/32")
    try:
        yield
    finally:
        node.run("ip", "route", "del", "blackhole", f"{other.address}/32")


@contextlib.contextmanager
def not_knowing(node: Node, other: Node) -> Iterator[None]:
    """The other's name is not in the node's hosts file."""
    before = node.run("cat", "/etc/hosts")
    lines = [line for line in before.splitlines() if other.name not in line.split()]
    node.run("sh", "-c", 'printf "%s\\n" "$1" > /etc/hosts', "sh", "\n".join(lines))
    try:
        yield
    finally:
        node.run("sh", "-c", 'printf "%s" "$1" > /etc/hosts', "sh", before)


def beforehand(hosts: Bed, nnodes: int) -> Diagnosis:
    work = examine_beforehand(1, nnodes, launcher="namespaces", bind_host=hosts.head, backend="gloo")
    return bridge().call(work)


@pytest.fixture
def checked(traces: object, hosts: Bed) -> Bed:
    return hosts


def test_sound_hosts_are_told_apart_and_reach_each_other(checked: Bed) -> None:
    diagnosis = beforehand(checked, 3)
    seen = diagnosis.examination
    assert {n: (r.hostname, r.address) for n, r in seen.nodes.items()} == {
        n: (node.name, node.address) for n, node in enumerate(checked.nodes)
    }
    assert len(seen.paths) == 6
    for (_, to), path in seen.paths.items():
        assert path.trouble == ""
        assert path.addresses == (checked.nodes[to].address,)
    assert seen.trouble == ""
    assert diagnosis.is_well, diagnosis


def test_a_blocked_port_and_an_unknown_name_are_found_on_a_running_cluster(
    across: Callable[..., jdist.Cluster], hosts: Bed
) -> None:
    own = across()
    first, second, _ = hosts.nodes
    with deaf_to(second, first), not_knowing(first, second):
        diagnosis = own.doctor()
    paths = diagnosis.examination.paths
    assert {pair: path.kind for pair, path in paths.items()} == {(0, 1): "timeout", (1, 0): "unreachable"}
    assert paths[0, 1].name_trouble
    assert paths[1, 0].addresses == (first.address,)
    blocked, backwards, name = [f.text for f in diagnosis.findings]
    assert blocked.startswith(f"node 1 ({second.name}) is not reached from node 0 ({first.name}) at {second.address}: ")
    assert "dropped on the way" in blocked
    assert "there is no way to it" in backwards
    assert f"the name of node 1 ({second.name}) cannot be looked up" in name
    after = own.doctor()
    assert after.findings == (), after


def test_before_a_start_a_blocked_port_is_found_where_no_world_could_be_formed(checked: Bed) -> None:
    first, second, third = checked.nodes
    with deaf_to(third, first), deaf_to(third, second):
        diagnosis = beforehand(checked, 3)
    blocked = [f for f in diagnosis.findings if "is not reached from" in f.text]
    assert blocked[0].text.startswith(f"node 2 ({third.name}) is not reached from nodes 0-1 at {third.address}")
    assert blocked[0].severity == "breaks"
    assert set(diagnosis.examination.nodes) == {0, 1, 2}
