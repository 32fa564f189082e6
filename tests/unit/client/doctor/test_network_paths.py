"""Ways between nodes: each trouble is told once, for the node that it is about, and not for every pair."""

from __future__ import annotations

from jdist.core.messages.nodes import NetworkPath
from support.nodes import found, node, way

DROPPED = {"kind": "timeout", "trouble": "no answer within 3 s: what is sent there is dropped on the way"}
REFUSED = {"kind": "refused", "trouble": "the connection is refused there"}
THREE = (node(0), node(1), node(2))


def test_a_node_that_nobody_reaches_is_one_finding() -> None:
    (finding,) = found(*THREE, paths={(0, 2): way(2, **DROPPED), (1, 2): way(2, **DROPPED)})
    assert finding.severity == "breaks"
    assert finding.text.startswith("node 2 (c) is not reached from nodes 0-1 at 10.0.0.3: no answer within 3 s")
    assert "the world cannot be formed, or hangs" in finding.text
    assert finding.nodes == (0, 1, 2)


def test_a_node_that_reaches_nobody_is_one_finding() -> None:
    (finding,) = found(*THREE, paths={(0, 1): way(1, **REFUSED), (0, 2): way(2, **REFUSED)})
    assert finding.text.startswith("node 0 (a) does not reach nodes 1-2: the connection is refused")


def test_each_of_two_pairs_that_have_no_node_in_common_is_said() -> None:
    blocked = {(0, 1): way(1, **DROPPED), (2, 3): way(3, **REFUSED)}
    first, second = found(*THREE, node(3), paths=blocked)
    assert first.text.startswith("node 1 (b) is not reached from node 0 (a) at 10.0.0.2: no answer")
    assert second.text.startswith("node 3 (d) is not reached from node 2 (c) at 10.0.0.4: the connection is refused")


def test_both_directions_of_two_nodes_are_said_each_with_its_reason() -> None:
    both = found(node(0), node(1), paths={(0, 1): way(1, **DROPPED), (1, 0): way(0, **REFUSED)})
    assert [f.text.partition(" at ")[0] for f in both] == [
        "node 1 (b) is not reached from node 0 (a)",
        "node 0 (a) is not reached from node 1 (b)",
    ]


def test_a_name_that_is_not_known_is_one_finding_for_all_who_ask() -> None:
    unknown = way(2, addresses=(), name_trouble="Name or service not known")
    (finding,) = found(*THREE, paths={(0, 2): unknown, (1, 2): unknown})
    assert finding.severity == "may break"
    assert "the name of node 2 (c) cannot be looked up (Name or service not known) on nodes 0-1" in finding.text
    assert "MASTER_ADDR=c" in finding.text


def test_a_name_that_means_another_address_is_said_with_both() -> None:
    (finding,) = found(*THREE, paths={(0, 1): way(1, addresses=("127.0.1.1",))})
    assert "the name of node 1 (b) means 127.0.1.1, not 10.0.0.2 on node 0" in finding.text


def test_names_that_several_nodes_share_are_nobodys_trouble() -> None:
    other = NetworkPath("x", ("127.0.1.1",), "", round_trip=0.0001, bandwidth=1e9)
    assert found(node(0, hostname="x"), node(1, hostname="x"), paths={(0, 1): other, (1, 0): other}) == ()


def test_a_far_node_is_said_with_its_round_trip() -> None:
    (finding,) = found(*THREE, paths={(1, 2): way(2, round_trip=0.051)})
    assert "a round trip takes 51 ms from node 1 (b) to node 2 (c)" in finding.text


def test_a_way_that_is_slower_than_the_others_is_said() -> None:
    (finding,) = found(*THREE, paths={(1, 2): way(2, bandwidth=1e8)})
    assert "only 100 MB/s from node 1 (b) to node 2 (c), the others usually 1.0 GB/s" in finding.text
    assert "100 MB of gradients take 1.0 s" in finding.text


def test_two_nodes_on_a_slow_network_are_told_what_it_costs() -> None:
    slow = {(0, 1): way(1, bandwidth=1e6), (1, 0): way(0, bandwidth=1.1e6)}
    (finding,) = found(node(0), node(1), paths=slow)
    assert "only 1.0 MB/s from node 0 (a) to node 1 (b): 100 MB of gradients take 100.0 s" in finding.text


def test_where_nothing_was_sent_no_bandwidth_is_judged() -> None:
    assert found(node(0), node(1), paths={(0, 1): way(1, bandwidth=0.0), (1, 0): way(0, bandwidth=0.0)}) == ()
