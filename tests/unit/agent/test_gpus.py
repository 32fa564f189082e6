"""GPUs: what NVML reports is understood as far as it goes, and a rank gets the facts of its own GPU or none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jdist.agent.node import CudaVisibility, GpuDevice, GpuReading, read_nvml, use_of
from jdist.core.messages.nodes import GpuUse
from support.gpus import MIB, FakeDriver, gpu

DEVICES = (
    GpuDevice(0, "GPU-aa11", "NVIDIA H200", 143771 * MIB, 1024 * MIB, 0.35),
    GpuDevice(1, "GPU-aa22", "NVIDIA H200", 143771 * MIB, 2048 * MIB, 0.97),
    GpuDevice(2, "GPU-bb33", "NVIDIA H200", 143771 * MIB, 0, 0.0),
)
GPUS = (
    gpu("GPU-aa11", used=1024, busy=35, mig=0),
    gpu("GPU-aa22", used=2048, busy=97, mig=0),
    gpu("GPU-bb33", used=0, busy=0, mig=0),
)

Read = Callable[..., GpuReading]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads what a driver reports."""
    driver = FakeDriver(tmp_path)
    spec = importlib.util.spec_from_file_location("pynvml", tmp_path / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)

    def read(*gpus: dict[str, Any], **state: Any) -> GpuReading:
        driver.reports(*gpus, **state)
        return read_nvml()

    return read


def test_each_gpu_of_the_driver(read: Read) -> None:
    assert read(*GPUS, driver="570.86.15") == GpuReading(DEVICES, {}, "570.86.15")


@pytest.mark.parametrize(
    ("gpu", "total", "used", "busy", "is_sliced"),
    [
        (gpu("GPU-a", total=81920, used=50, mig=1), 81920, 50, None, True),
        ({"uuid": "GPU-a", "name": "NVIDIA GB10", "busy": 12}, 0, 0, 0.12, False),
        (gpu("GPU-a", "GeForce", 8192, 3), 8192, 3, None, False),
        ({"uuid": "GPU-a", "name": "GeForce", "total": 8192 * MIB}, 0, 0, None, False),
        (gpu("GPU-a", "GeForce", 8192, 3, busy=255, mig=0), 8192, 3, 1.0, False),
    ],
)
def test_what_the_driver_does_not_know(
    read: Read, gpu: dict[str, Any], total: int, used: int, busy: float | None, is_sliced: bool
) -> None:
    (found,) = read(gpu).devices
    assert (found.total, found.used, found.busy, found.is_sliced) == (total * MIB, used * MIB, busy, is_sliced)


@pytest.mark.parametrize("is_old", [False, True])
def test_what_the_driver_reserves_is_not_used_unless_an_old_one_counts_it(read: Read, is_old: bool) -> None:
    (found,) = read(gpu("GPU-a", used=3, reserved=500 * MIB), is_old=is_old).devices
    assert found.used == (503 if is_old else 3) * MIB


@pytest.mark.parametrize("broken", [{"lost": True}, {"uuid": "GPU-x"}, {"name": "no UUID"}, {}])
def test_a_gpu_that_cannot_be_identified_costs_the_others_nothing(read: Read, broken: dict[str, Any]) -> None:
    found = read(GPUS[0], broken, GPUS[2])
    assert found.devices == (DEVICES[0], DEVICES[2])
    assert not found.error


@pytest.mark.parametrize(
    ("state", "error", "is_missing"),
    [
        ({"error": "Driver/library version mismatch"}, "Driver/library version mismatch", False),
        ({"error": "Driver Not Loaded"}, "Driver Not Loaded", False),
        ({"is_missing": True}, "NVML Shared Library Not Found", True),
    ],
)
def test_a_driver_that_fails_and_one_that_is_not_there(
    read: Read, state: dict[str, Any], error: str, is_missing: bool
) -> None:
    assert read(**state) == GpuReading(error=error, is_missing=is_missing)


def test_without_the_module_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml().is_missing


def test_processes(read: Read) -> None:
    found = read(
        gpu("GPU-aa11", processes={4001: 512, 4003: None}),
        gpu("GPU-aa22", processes={4001: 100, 4002: None}),
        gpu("GPU-cc33") | {"processes": None},
    )
    assert found.taken == {4001: {"GPU-aa11": 512 * MIB, "GPU-aa22": 100 * MIB}}
    assert len(found.devices) == 3


def test_processes_on_slices_are_those_of_the_gpu_counted_once(read: Read) -> None:
    slices = [[[4004, 30 * MIB]], [[4004, 12 * MIB], [4005, None]], [[4006, 7 * MIB]]]
    found = read(gpu("GPU-aa11", mig=1, slices=slices, processes={4004: 42}))
    assert found.taken == {4004: {"GPU-aa11": 42 * MIB}, 4006: {"GPU-aa11": 7 * MIB}}


def test_of_slices_that_may_not_be_read_the_gpu_may_know_the_processes(read: Read) -> None:
    assert read(gpu("GPU-aa11", mig=1, processes={4004: 42})).taken == {4004: {"GPU-aa11": 42 * MIB}}


@pytest.mark.parametrize(
    ("visible", "number", "index"),
    [
        (None, 0, 0),
        (None, 2, 2),
        (None, 3, None),
        ("2,0", 0, 2),
        ("2,0", 1, 0),
        ("2,0", 2, None),
        (" 1 , 2 ", 1, 2),
        ("7", 0, None),
        ("GPU-bb33,GPU-aa11", 0, 2),
        ("GPU-bb33,GPU-aa11", 1, 0),
        ("GPU-b", 0, 2),
        ("GPU-aa", 0, None),
        ("GPU-cc", 0, None),
        ("GPU-aa11,1", 1, 1),
        ("MIG-5d0c-1", 0, None),
        ("MIG-GPU-aa22/3/0", 0, 1),
        ("", 0, None),
        ("-1", 0, None),
        ("NoDevFiles", 0, None),
    ],
)
def test_which_gpu_cuda_shows(visible: str | None, number: int, index: int | None) -> None:
    found = CudaVisibility(visible).find(number, DEVICES)
    assert (None if found is None else found.index) == index


@pytest.mark.parametrize(("visible", "is_blind"), [("", True), ("-1", True), ("NoDevFiles", True), (" ", True)])
def test_where_ranks_are_to_see_none(visible: str, is_blind: bool) -> None:
    assert CudaVisibility(visible).is_blind is is_blind


@pytest.mark.parametrize("visible", [None, "0", "GPU-a", "MIG-5d0c", "MIG-GPU-aa22/3/0"])
def test_where_ranks_see_some(visible: str | None) -> None:
    assert not CudaVisibility(visible).is_blind


def test_numbers_are_cudas_own_where_gpus_differ() -> None:
    mixed = (*DEVICES[:2], msgspec.structs.replace(DEVICES[2], name="NVIDIA L4"))
    assert CudaVisibility("1").find(0, mixed) is None, (
        "the fastest comes first, and which that is CUDA says only to who asks it"
    )
    found = CudaVisibility("1", "PCI_BUS_ID").find(0, mixed)
    assert found is not None
    assert found.index == 1
    by_uuid = CudaVisibility("GPU-bb").find(0, mixed)
    assert by_uuid is not None
    assert by_uuid.name == "NVIDIA L4"


def test_numbers_say_nothing_where_a_gpu_is_in_slices() -> None:
    sliced = (*DEVICES[:2], msgspec.structs.replace(DEVICES[2], busy=None, is_sliced=True))
    assert CudaVisibility("1").find(0, sliced) is None
    assert CudaVisibility(None).find(0, sliced) is None


H200 = "GPU 1 (NVIDIA H200)"


@pytest.mark.parametrize(
    ("bound", "taken", "use"),
    [
        (1, {"GPU-aa22": 512}, GpuUse(H200, 143771 * MIB, 2048 * MIB, 512 * MIB, 0.97)),
        (1, {}, GpuUse(H200, 143771 * MIB, 2048 * MIB, None, 0.97)),
        # another process that has this number on the host
        (1, {"GPU-aa11": 512}, GpuUse(H200, 143771 * MIB, 2048 * MIB, None, 0.97)),
        # a rank of gloo's that uses GPUs all the same
        (None, {"GPU-aa22": 512, "GPU-bb33": 9}, GpuUse(H200, 143771 * MIB, 2048 * MIB, 512 * MIB, 0.97)),
        (None, {}, None),
    ],
)
def test_what_a_rank_has(bound: int | None, taken: dict[str, int], use: GpuUse | None) -> None:
    own = {5: {uuid: size * MIB for uuid, size in taken.items()}}
    assert use_of(5, None if bound is None else DEVICES[bound], DEVICES, own) == use


@pytest.mark.parametrize(("taken", "own"), [({"GPU-a": 5}, 5), ({}, None)])
def test_of_a_slice_only_the_ranks_own_is_known(taken: dict[str, int], own: int | None) -> None:
    device = GpuDevice(0, "GPU-a", "NVIDIA A100", 81920 * MIB, 50 * MIB, is_sliced=True)
    use = None if own is None else GpuUse("a slice of GPU 0 (NVIDIA A100)", own=own)
    assert use_of(5, device, (device,), {5: taken}) == use
    assert use_of(5, None, (device,), {5: taken}) == use, "by the process's own memory"


def test_a_gpu_of_which_nothing_is_known_is_not_shown() -> None:
    device = GpuDevice(0, "GPU-a", "NVIDIA GB10")
    assert use_of(5, device, (device,), {}) is None
    assert use_of(5, device, (device,), {5: {"GPU-a": 3}}) == GpuUse("GPU 0 (NVIDIA GB10)", own=3)
