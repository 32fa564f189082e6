"""Findings: what differs between nodes is said once, with what it breaks; nothing is said of sound ones.

Each trouble of a path is said once, for the node that it is about, and not for every pair.
"""

from __future__ import annotations

from typing import Any

import pytest

from jdist.client.doctor.findings import Diagnosis, Finding
from jdist.client.measure.timeline import Clock
from jdist.core.messages.nodes import UNLIMITED, Disk, Gpu, Lack, Limits, NetworkPath, NodeReport, TorchFacts
from support.nodes import A100, CUDA, DISKS, GIB, H200, found, gpu_node, node, seen, way

DROPPED = {"kind": "timeout", "trouble": "no answer within 3 s: what is sent there is dropped on the way"}
REFUSED = {"kind": "refused", "trouble": "the connection is refused there"}
THREE = (node(0), node(1), node(2))


@pytest.mark.parametrize(
    "reports",
    [
        (node(),),
        (node(0), node(1)),
        (gpu_node(0), gpu_node(1), gpu_node(2)),
        (node(0, hostname="x"), node(1, hostname="x")),
    ],
)
def test_of_sound_nodes_nothing_is_said(reports: tuple[NodeReport, ...]) -> None:
    assert found(*reports) == ()


TABLE: list[tuple[str, tuple[NodeReport, ...], str, list[str], tuple[int, ...]]] = [
    (
        "Python",
        (node(0), node(1), node(2, python="3.12.1")),
        "breaks",
        ["Python differs: 3.11 on nodes 0-1; 3.12 on node 2", "cannot travel"],
        (2,),
    ),
    ("torch", (node(0), node(1, torch="2.12.0")), "breaks", ["torch differs: 2.13.0 on node 0; 2.12.0"], (1,)),
    (
        "names that torch lacks",
        (node(0, lacks=(Lack("flying", ("torch._wings",)), Lack("swimming", ("torch._fins",)))), node(1)),
        "may break",
        ["torch on node 0 lacks", "flying (torch._wings); swimming (torch._fins)", "install one of these"],
        (0,),
    ),
    ("no torch", (node(0), node(1, torch="")), "breaks", ["node 1 (b) has no torch"], (1,)),
    ("jdist", (node(0), node(1, jdist="0.2.0")), "breaks", ["jdist differs", "refuses"], (1,)),
    (
        "a node without GPUs",
        (gpu_node(0), node(1)),
        "may break",
        ["GPUs on node 0 and none on node 1", "nccl needs one for every rank", "--backend gloo"],
        (1,),
    ),
    (
        "a CPU build",
        (gpu_node(facts=TorchFacts("2.13.0+cpu", "", "", 0)),),
        "may break",
        ["node 0 (a) has a GPU, but its torch 2.13.0+cpu is a CPU build"],
        (0,),
    ),
    (
        "an old driver",
        (gpu_node(driver="470.1", facts=TorchFacts("2.13.0", "13.0", "2.27", 0, "The NVIDIA driver is too old")),),
        "breaks",
        ["torch cannot use its GPUs", "CUDA 13.0, driver 470.1", "driver is too old"],
        (0,),
    ),
    (
        "NCCL",
        (gpu_node(0), gpu_node(1, facts=TorchFacts("2.13.0+cu128", "12.8", "2.21.5", 1))),
        "breaks",
        ["NCCL differs: 2.27.3 on node 0; 2.21.5 on node 1", "--backend gloo"],
        (1,),
    ),
    (
        "CUDA",
        (gpu_node(0), gpu_node(1, facts=TorchFacts("2.13.0+cu126", "12.6", "2.27.3", 1))),
        "may break",
        ["CUDA (in torch) differs: 12.8"],
        (1,),
    ),
    ("driver", (gpu_node(0), gpu_node(1, driver="560.2")), "note", ["NVIDIA driver differs"], (1,)),
    (
        "GPU model",
        (gpu_node(0), gpu_node(1, gpus=(A100,))),
        "may break",
        ["GPUs differs: NVIDIA H200 on node 0; NVIDIA A100", "slowest"],
        (1,),
    ),
    (
        "GPU memory",
        (gpu_node(0), gpu_node(1, gpus=(Gpu(H200.name, 96 * GIB, 0),))),
        "may break",
        ["GPU memory differs: 141 GiB on node 0; 96 GiB", "runs out first"],
        (1,),
    ),
    (
        "a full /dev/shm",
        (node(disks=(*DISKS, Disk("/dev/shm", "/dev/shm", 64 << 20, 10 << 20))),),
        "breaks",
        ["10 MiB of 64 MiB free in /dev/shm", "bus error", "--shm-size"],
        (0,),
    ),
    (
        "docker's /dev/shm",
        (node(disks=(*DISKS, Disk("/dev/shm", "/dev/shm", 64 << 20, 64 << 20))),),
        "may break",
        ["64 MiB of 64 MiB free in /dev/shm"],
        (0,),
    ),
    (
        "a small /dev/shm",
        tuple(node(n, disks=(*DISKS, Disk("/dev/shm", "/dev/shm", GIB // 2, GIB // 2))) for n in range(2)),
        "may break",
        ["/dev/shm is only 512 MiB on nodes 0-1"],
        (0, 1),
    ),
    ("no /dev/shm", (node(disks=DISKS),), "breaks", ["has no /dev/shm"], (0,)),
    (
        "a full disk",
        (node(disks=(Disk("working directory", "/home/me", 9 * GIB, 5 << 20), DISKS[1], node().disks[2])),),
        "may break",
        ["5 MiB free for the working directory (/home/me)", "checkpoints"],
        (0,),
    ),
    (
        "open files",
        (node(0, limits=Limits(256, UNLIMITED, UNLIMITED)), node(1)),
        "may break",
        ["ulimit -n is 256 on node 0", "Too many open files", "4096"],
        (0,),
    ),
    (
        "processes",
        (node(limits=Limits(65536, UNLIMITED, 100)),),
        "may break",
        ["ulimit -u is 100 on node 0 (a)", "Resource temporarily unavailable"],
        (0,),
    ),
    (
        "locked memory",
        (node(rdma=("mlx5_0",), limits=Limits(65536, 64 << 10, UNLIMITED)),),
        "may break",
        ["ulimit -l is 64 KiB on node 0 (a), which has mlx5_0", "unlimited"],
        (0,),
    ),
    (
        "an interface that is not there",
        (node(chosen_interface="ib0", is_users_choice=True),),
        "breaks",
        ["ib0 is set for gloo or NCCL, and there is only eth0, lo"],
        (0,),
    ),
    ("what could not be looked at", (node(trouble=("NVML: no devices",)),), "may break", ["NVML: no"], (0,)),
]


@pytest.mark.parametrize(("reports", "severity", "says", "nodes"), [t[1:] for t in TABLE], ids=[t[0] for t in TABLE])
def test_what_is_amiss_is_said_once(
    reports: tuple[NodeReport, ...], severity: str, says: list[str], nodes: tuple[int, ...]
) -> None:
    (finding,) = found(*reports)
    for part in says:
        assert part in finding.text
    assert (finding.severity, finding.nodes) == (severity, nodes)


@pytest.mark.parametrize(
    ("reports", "rest"),
    [
        ((node(limits=Limits(1024, 64 << 10, UNLIMITED)),), {}),  # no RDMA: nothing wants locked memory
        ((node(limits=Limits(1024, UNLIMITED, UNLIMITED)),), {"world_size": 8}),
        ((node(chosen_interface="eth", is_users_choice=True),), {}),  # NCCL takes it for a beginning
        ((node(chosen_interface="^docker0", is_users_choice=True),), {}),
        ((gpu_node(0), gpu_node(1)), {"backend": "nccl"}),
        ((node(0), node(1)), {"clocks": {0: Clock(0.6, 0.2), 1: Clock(0.0, 0.2)}}),  # within what is known
    ],
)
def test_what_is_no_trouble_is_not_said(reports: tuple[NodeReport, ...], rest: dict[str, Any]) -> None:
    assert found(*reports, **rest) == ()


def test_few_files_are_enough_for_a_small_world_and_not_for_a_large_one() -> None:
    limited = node(limits=Limits(1024, UNLIMITED, UNLIMITED))
    assert found(limited, world_size=8) == ()
    (finding,) = found(limited, world_size=512)
    assert "in a world of 512" in finding.text


def test_with_nccl_a_node_without_gpus_breaks_the_start() -> None:
    (finding,) = found(gpu_node(0), node(1), backend="nccl")
    assert finding.severity == "breaks"


def test_clocks_that_are_apart_name_both_and_by_how_much() -> None:
    (finding,) = found(
        node(0), node(1), node(2), clocks={0: Clock(0.0, 0.01), 1: Clock(-7.5, 0.01), 2: Clock(0.1, 0.01)}
    )
    assert "the clock of node 2 (c) is 7.6 s ahead of that of node 1 (b)" in finding.text
    assert finding.nodes == (2, 1)


def test_clocks_that_agree_among_themselves_are_only_noted() -> None:
    (finding,) = found(node(0), node(1), clocks={0: Clock(-60.0, 0.01), 1: Clock(-60.1, 0.01)})
    assert finding.severity == "note"
    assert "60.1 s behind this machine's" in finding.text


def test_nodes_that_did_not_come_and_a_world_that_did_not_form_are_said_first() -> None:
    all_found = found(node(0, trouble=("x",)), absent={1: "its agent ended"}, trouble="a timeout")
    assert [f.severity for f in all_found] == ["breaks", "breaks", "may break"]
    assert "node 1 could not be examined: its agent ended" in all_found[0].text
    assert "the world could not be formed: a timeout" in all_found[1].text


def test_the_worst_is_said_first() -> None:
    all_found = found(gpu_node(0), gpu_node(1, driver="1", torch="2.0", gpus=(A100,)))
    assert [f.severity for f in all_found] == ["breaks", "may break", "note"]


def test_a_diagnosis_as_text() -> None:
    assert str(Diagnosis(seen(node(0), node(1)), ())) == "nothing found: 2 nodes examined"
    assert str(Diagnosis(seen(node()), ())) == "nothing found: 1 node examined"
    bad = Diagnosis(seen(node()), (Finding("breaks", "it is broken"), Finding("note", "by the way")))
    assert str(bad) == "breaks: it is broken\nnote: by the way"
    assert not bad.is_well
    assert Diagnosis(seen(node()), bad.findings[1:]).is_well


def test_the_made_up_build_is_one_for_cuda() -> None:
    assert found(gpu_node(0, facts=CUDA)) == ()


def test_a_carried_node_whose_address_is_the_loopback_is_said_unless_it_is_alone() -> None:
    carried = node(1, address="127.0.0.1", is_carried=True)
    (finding,) = found(node(0), carried, paths={(0, 1): way(1, addresses=("127.0.0.1",)), (1, 0): way(0)})
    assert finding.severity == "breaks"
    assert finding.text.startswith("node 1 (b) has no address but 127.0.0.1")
    assert found(carried) == ()


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
    other = NetworkPath("x", ("127.0.1.1",), "", round_trip=0.0001)
    assert found(node(0, hostname="x"), node(1, hostname="x"), paths={(0, 1): other, (1, 0): other}) == ()


def test_a_far_node_is_said_with_its_round_trip() -> None:
    (finding,) = found(*THREE, paths={(1, 2): way(2, round_trip=0.051)})
    assert "a round trip takes 51 ms from node 1 (b) to node 2 (c)" in finding.text
