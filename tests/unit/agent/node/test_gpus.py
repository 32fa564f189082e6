"""Devices: what nvidia-smi prints is understood as far as it goes, and a rank gets the facts of its own GPU or none."""

from __future__ import annotations

import pytest

from jdist.agent.node.gpus import CudaVisibility, GpuDevice, read_devices, read_processes, use_of
from jdist.core.messages.nodes import GpuUse

MIB = 1 << 20
GPUS = """\
0, GPU-aa11, NVIDIA H200, 143771, 1024, 35, Disabled
1, GPU-aa22, NVIDIA H200, 143771, 2048, 97, Disabled
2, GPU-bb33, NVIDIA H200, 143771, 0, 0, Disabled
"""
DEVICES = read_devices(GPUS)


def test_each_line_is_a_gpu() -> None:
    assert len(DEVICES) == 3
    assert DEVICES[1] == GpuDevice(1, "GPU-aa22", "NVIDIA H200", 143771 * MIB, 2048 * MIB, 0.97, is_sliced=False)


@pytest.mark.parametrize(
    ("line", "total", "used", "busy", "is_sliced"),
    [
        ("0, GPU-a, NVIDIA A100, 81920, 50, [N/A], Enabled", 81920, 50, None, True),
        ("0, GPU-a, NVIDIA A100, 81920, 50, N/A, Enabled", 81920, 50, None, True),
        ("0, GPU-a, NVIDIA GB10, [N/A], [N/A], 12, [N/A]", 0, 0, 0.12, False),
        ("0, GPU-a, GeForce, 8192, 3, [Not Supported], [Not Supported]", 8192, 3, None, False),
        ("0, GPU-a, GeForce, 8192, [Unknown Error], [GPU requires reset], [N/A]", 8192, 0, None, False),
        ("0,GPU-a,GeForce,8192,3,255,[N/A]", 8192, 3, 1.0, False),
    ],
)
def test_what_the_driver_does_not_know(line: str, total: int, used: int, busy: float | None, is_sliced: bool) -> None:
    (found,) = read_devices(line)
    assert (found.total, found.used, found.busy, found.is_sliced) == (total * MIB, used * MIB, busy, is_sliced)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest, ...",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Unable to determine the device handle for GPU0000:07:00.0: GPU is lost. Reboot the system to recover it",
        'Field "mig.mode.current" is not a valid field to query.',
        "1, GPU-aa22, NVIDIA H200, 1437",
        "1, GPU-aa22, NVIDIA H200, 143771, 2048, 97, Disabled, more",
        "x, GPU-aa22, NVIDIA H200, 143771, 2048, 97, Disabled",
        "1, [N/A], NVIDIA H200, 143771, 2048, 97, Disabled",
        "-1, GPU-aa22, NVIDIA H200, 143771, 2048, 97, Disabled",
        "\0\ufffd, , , , , , ",
    ],
)
def test_a_line_that_is_no_gpu_costs_the_others_nothing(line: str) -> None:
    assert read_devices(line) == ()
    assert read_devices(f"{GPUS}{line}\n") == DEVICES
    assert read_processes(line) == {}


def test_processes() -> None:
    said = """\
GPU-aa11, 4001, 512
GPU-aa22, 4001, 100
GPU-aa22, 4002, [N/A]
GPU-aa22, [N/A], 7
GPU-aa11, 4003, [Insufficient Permissions]
MIG-77, 4004, 30
MIG-77, 4004, 12
GPU-aa11, 40"""
    assert read_processes(said) == {
        4001: {"GPU-aa11": 512 * MIB, "GPU-aa22": 100 * MIB},
        4004: {"MIG-77": 42 * MIB},
    }


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
    mixed = read_devices(GPUS.replace("2, GPU-bb33, NVIDIA H200", "2, GPU-bb33, NVIDIA L4"))
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
    sliced = read_devices(GPUS.replace("0, Disabled", "[N/A], Enabled"))
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
        (None, {"MIG-77": 42}, GpuUse("a slice of a GPU", own=42 * MIB)),
        (None, {}, None),
    ],
)
def test_what_a_rank_has(bound: int | None, taken: dict[str, int], use: GpuUse | None) -> None:
    own = {5: {uuid: size * MIB for uuid, size in taken.items()}}
    assert use_of(5, None if bound is None else DEVICES[bound], DEVICES, own) == use


@pytest.mark.parametrize(("taken", "own"), [({"GPU-a": 5}, 5), ({}, None)])
def test_of_a_slice_only_the_ranks_own_is_known(taken: dict[str, int], own: int | None) -> None:
    (device,) = read_devices("0, GPU-a, NVIDIA A100, 81920, 50, [N/A], Enabled")
    found = use_of(5, device, (device,), {5: taken})
    assert found == (None if own is None else GpuUse("a slice of GPU 0 (NVIDIA A100)", own=own))


def test_a_gpu_of_which_nothing_is_known_is_not_shown() -> None:
    (device,) = read_devices("0, GPU-a, NVIDIA GB10, [N/A], [N/A], [N/A], [N/A]")
    assert use_of(5, device, (device,), {}) is None
    assert use_of(5, device, (device,), {5: {"GPU-a": 3}}) == GpuUse("GPU 0 (NVIDIA GB10)", own=3)
