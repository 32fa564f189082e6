"""The bed itself: what tests on it take for granted."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

from support.hosts.namespaces import Bed, Node
from support.waits import eventually

CONNECT = "import socket, sys; s = socket.socket(); s.settimeout(2); print(s.connect_ex((sys.argv[1], 9)))"


def reaches(node: Node, there: str) -> bool:
    """Whether a host says that nothing listens at its port 9."""
    return int(node.run(sys.executable, "-c", CONNECT, there)) == errno.ECONNREFUSED


def test_nodes_are_hosts_of_their_own_that_reach_each_other_by_name(bed: Bed) -> None:
    first, second, third = bed.nodes
    assert [n.run("hostname").strip() for n in bed.nodes] == [first.name, second.name, third.name]
    assert third.run("getent", "hosts", first.name).split()[0] == first.address
    assert first.run("getent", "hosts", bed.head_name).split()[0] == bed.head
    found = subprocess.run(bed.command(["getent", "hosts", second.name]), capture_output=True, text=True, check=True)
    assert found.stdout.split()[0] == second.address
    assert eventually(lambda: reaches(first, second.name))
    assert eventually(lambda: reaches(first, bed.head))


def test_nodes_share_neither_temporary_files_nor_memory(bed: Bed) -> None:
    first, second, _ = bed.nodes
    for folder, inside in (("/tmp", first.tmp), ("/dev/shm", first.shm)):
        first.run("touch", f"{folder}/there")
        assert (inside / "there").exists()
        assert not Path(folder, "there").exists()
        assert "there" not in second.run("ls", folder).split()
        (inside / "there").unlink()


def test_a_nodes_own_name_may_be_on_the_loopback(bed: Bed) -> None:
    node, other, _ = bed.nodes
    with node.own_name_on_loopback():
        assert node.run("getent", "hosts", node.name).split()[0] == "127.0.1.1"
        assert other.run("getent", "hosts", node.name).split()[0] == node.address
    assert node.run("getent", "hosts", node.name).split()[0] == node.address


def test_a_cable_that_is_pulled_carries_nothing_until_it_is_mended(hosts: Bed) -> None:
    hosts.cut(1)
    assert not reaches(hosts.nodes[0], hosts.nodes[1].address)
    hosts.mend()
    assert eventually(lambda: reaches(hosts.nodes[0], hosts.nodes[1].address), 20)
