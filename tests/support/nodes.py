"""Nodes made up for the tables of findings."""

from __future__ import annotations

import string
from typing import Any

import msgspec

from jdist.client.doctor.findings import Examination, Finding, diagnose
from jdist.client.measure.timeline import Clock
from jdist.core.messages.nodes import UNLIMITED, Disk, Gpu, Limits, NetworkPath, NodeReport, TorchFacts

GIB = 1 << 30
H200 = Gpu("NVIDIA H200", 141 * GIB, 0)
A100 = Gpu("NVIDIA A100", 80 * GIB, 0)
CUDA = TorchFacts("2.13.0+cu128", "12.8", "2.27.3", 1)
SHM = Disk("/dev/shm", "/dev/shm", 64 * GIB, 60 * GIB)
DISKS = (
    Disk("working directory", "/home/me", 500 * GIB, 300 * GIB),
    Disk("temporary files", "/tmp", 99 * GIB, GIB * 9),
)

SOUND = NodeReport(
    hostname="a",
    address="10.0.0.1",
    python="3.11.7",
    torch="2.13.0",
    jdist="0.1.0",
    cpus=8,
    memory=64 * GIB,
    disks=(*DISKS, SHM),
    limits=Limits(65536, UNLIMITED, UNLIMITED),
    interfaces=("eth0", "lo"),
    chosen_interface="eth0",
    is_users_choice=False,
    rdma=(),
    gpu_count=0,
)


def node(number: int = 0, **changes: Any) -> NodeReport:
    own = {"hostname": string.ascii_lowercase[number], "address": f"10.0.0.{1 + number}"}
    return msgspec.structs.replace(SOUND, **{**own, **changes})


def gpu_node(number: int = 0, **changes: Any) -> NodeReport:
    fitted = {"gpu_count": 1, "gpus": (H200,), "driver": "570.1", "facts": CUDA}
    return node(number, **{**fitted, **changes})


def way(number: int, **changes: Any) -> NetworkPath:
    """The way to a node."""
    there = node(number)
    sound = NetworkPath(there.hostname, (there.address,), "", round_trip=0.0001)
    return msgspec.structs.replace(sound, **changes)


def seen(*reports: NodeReport, **rest: Any) -> Examination:
    """Nodes whose ways are sound, but for those in ``paths``."""
    numbers = range(len(reports))
    sound = {(a, b): way(b) for a in numbers for b in numbers if a != b}
    paths = {**sound, **rest.pop("paths", {})}
    clocks = rest.pop("clocks", {n: Clock(0.0, 0.001) for n in numbers})
    return Examination(dict(enumerate(reports)), clocks, paths, rest.pop("absent", {}), **{"world_size": 4, **rest})


def found(*reports: NodeReport, **rest: Any) -> tuple[Finding, ...]:
    return diagnose(seen(*reports, **rest)).findings
