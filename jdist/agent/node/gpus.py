"""GPUs of a node, by NVML, the driver's library; and which of them is a rank's.

NVML is called in a process of its own that has a deadline: where a GPU has fallen off the bus a call into the driver
does not return and cannot be ended, and the agent holds the node's ranks. (Torch could be asked, too, but makes a CUDA
context, hundreds of MB of the GPU's memory.)
"""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from jdist.core.messages.nodes import GpuUse
from jdist.wire.processes import die_with_parent, set_name

T = TypeVar("T")


class GpuDevice(Struct, frozen=True):
    """A GPU. Sizes in bytes, 0 where the driver does not report them, as for a GPU that uses the host's memory."""

    index: int
    uuid: str
    name: str
    total: int = 0
    used: int = 0  # By all processes.
    busy: float | None = None  # Share of the last second or less in which it worked, 0 to 1.
    is_sliced: bool = False  # In MIG mode: each slice is a device to CUDA; the sizes are the whole GPU's.


class GpuReading(Struct, frozen=True):
    """What the driver reports at one time."""

    devices: tuple[GpuDevice, ...] = ()
    taken: dict[int, dict[str, int]] = {}  # `{pid: {GPU's UUID: bytes}}` for processes that the driver reports.
    driver: str = ""  # The driver's version.
    error: str = ""
    is_missing: bool = False  # The error is that there is no driver, or no GPU.


# ---------------------------------------------------------------- asking NVML


def count_gpus() -> int:
    """Visible NVIDIA GPUs, without touching CUDA (a forkserver must not)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(glob.glob("/dev/nvidia[0-9]*"))
    if visible is None:
        return there
    return min(there, len([v for v in visible.split(",") if v.strip() and v.strip() != "-1"]))


def query(seconds: float) -> GpuReading:
    """Ask NVML. Blocks, for ``seconds`` at most. Raises FileNotFoundError without GPUs, else OSError."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "jdist.agent.node.gpus"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        data, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
        process.returncode = -signal.SIGKILL  # the agent's reaper waits for it: it ends when the driver returns
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    if not data:
        lines = complaint.decode(errors="replace").strip().splitlines()
        raise OSError(lines[-1] if lines else f"ended with code {process.returncode}")
    reading = msgspec.msgpack.decode(data, type=GpuReading)
    if reading.error:
        raise (FileNotFoundError if reading.is_missing else OSError)(reading.error)
    return reading


def read_nvml() -> GpuReading:
    """All that NVML reports; a GPU that it cannot identify is left out."""
    try:
        import pynvml
    except ImportError as e:
        return GpuReading(error=str(e), is_missing=True)
    try:
        pynvml.nvmlInit()  # costs nothing from the second time on
        devices, taken = [], dict[int, dict[str, int]]()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # it is lost, or not permitted
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                device = _read_device(pynvml, index, handle)
                devices.append(device)
                for pid, size in _read_processes(pynvml, handle, is_sliced=device.is_sliced):
                    own = taken.setdefault(pid, {})
                    own[device.uuid] = own.get(device.uuid, 0) + size
        if not devices:
            return GpuReading(error="the driver knows no GPUs", is_missing=True)
        return GpuReading(tuple(devices), taken, pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as e:
        return GpuReading(error=str(e), is_missing=isinstance(e, pynvml.NVMLError_LibraryNotFound))


def _read_device(nvml: Any, index: int, handle: Any) -> GpuDevice:
    def read(function: Callable[[], T], default: T) -> T:
        try:
            return function()
        except nvml.NVMLError:
            return default

    # Version 2 does not count what the driver reserves for itself as used, but drivers before 510 lack it.
    memory = read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2), None)
    memory = memory or read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    total, used = (memory.total, memory.used) if memory else (0, 0)
    busy = read(lambda: min(nvml.nvmlDeviceGetUtilizationRates(handle).gpu, 100) / 100, None)
    is_sliced = read(lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE, default=False)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return GpuDevice(index, uuid, name, total, used, busy, is_sliced)


def _read_processes(nvml: Any, handle: Any, *, is_sliced: bool) -> list[tuple[int, int]]:
    """(pid, bytes) of the processes on a GPU; of one in slices, those on each slice."""
    handles = []
    if is_sliced:
        for n in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError):  # there are fewer slices
                handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, n))
    found = []
    for each in handles or [handle]:
        with contextlib.suppress(nvml.NVMLError):
            found += nvml.nvmlDeviceGetComputeRunningProcesses_v3(each)
    return [(process.pid, process.usedGpuMemory) for process in found if process.usedGpuMemory is not None]


# ---------------------------------------------------------------- what is a rank's


class CudaVisibility(Struct, frozen=True):
    """How CUDA shows GPUs to this node's ranks: the variables of their environment."""

    visible: str | None  # CUDA_VISIBLE_DEVICES; None: unset.
    order: str = ""  # CUDA_DEVICE_ORDER.

    @property
    def is_blind(self) -> bool:
        """Ranks see no GPU: to CUDA the first word that names no device ends the list."""
        first = "0" if self.visible is None else self._tokens[0]
        return not first.isdecimal() and not first.startswith(("GPU-", "MIG-"))

    @property
    def _tokens(self) -> list[str]:
        return [] if self.visible is None else [token.strip() for token in self.visible.split(",")]

    def find(self, number: int, devices: Sequence[GpuDevice]) -> GpuDevice | None:
        """The GPU that CUDA calls device ``number``; None where that is not certain.

        CUDA's guide, "CUDA Environment Variables": each is an index in CUDA's own order, the beginning of a UUID, or a
        slice: ``MIG-`` with a UUID of its own, before driver 470 with its GPU's and two numbers.
        """
        tokens = self._tokens
        if self.visible is None:
            tokens = [str(device.index) for device in devices]
        token = tokens[number] if 0 <= number < len(tokens) else ""
        if token.isdecimal():
            # CUDA's index is the driver's? By default the fastest come first; of a GPU in slices CUDA sees one.
            is_ordered = self.order == "PCI_BUS_ID" or len({d.name for d in devices}) == 1
            is_ordered = is_ordered and not any(d.is_sliced for d in devices)
            return next((d for d in devices if is_ordered and d.index == int(token)), None)
        if token.startswith("MIG-GPU-"):
            token = token.removeprefix("MIG-").partition("/")[0]
        found = [d for d in devices if token and d.uuid.startswith(token)]
        return found[0] if len(found) == 1 else None


def use_of(
    pid: int, bound: GpuDevice | None, devices: Sequence[GpuDevice], taken: Mapping[int, Mapping[str, int]]
) -> GpuUse | None:
    """The process's share of its GPU; None where nothing is known of any.

    ``bound`` is the rank's device. Where it has none, or that is not known, the process's own memory shows which GPU it
    uses. In a container the driver may report no process, or number processes as its host does.
    """
    own = taken.get(pid, {})
    if bound is None:
        bound = max((d for d in devices if d.uuid in own), key=lambda d: own[d.uuid], default=None)
    if bound is None:
        return None
    mine = own.get(bound.uuid)
    name = f"GPU {bound.index} ({bound.name})"
    if bound.is_sliced:
        return None if mine is None else GpuUse(f"a slice of {name}", own=mine)
    if not bound.total and mine is None and bound.busy is None:
        return None
    return GpuUse(name, bound.total, bound.used, mine, bound.busy)


def rank_use(device: str, gpu_index: int, pid: int, visibility: CudaVisibility, reading: GpuReading) -> GpuUse | None:
    """A rank's share of its GPU: ``device`` is what the rank reported, ``gpu_index`` where it has reported none."""
    kind, _, index = device.partition(":")
    number = int(index) if index.isdecimal() else gpu_index
    bound = visibility.find(number, reading.devices) if kind == "cuda" else None
    return use_of(pid, bound, reading.devices, reading.taken)


def _write_readings(interval: float) -> None:
    """Write a reading every ``interval`` seconds, a line of JSON each, until one fails."""
    error = ""
    while not error:
        reading = read_nvml()
        error = reading.error
        sys.stdout.buffer.write(msgspec.json.encode(reading) + b"\n")
        sys.stdout.buffer.flush()
        time.sleep(interval)


if __name__ == "__main__":
    die_with_parent()
    set_name("jdist-gpus")
    if len(sys.argv) > 1:
        _write_readings(float(sys.argv[1]))
    else:
        sys.stdout.buffer.write(msgspec.msgpack.encode(read_nvml()))
