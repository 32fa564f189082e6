"""Read the facts of this node: its hardware and limits, its GPUs, and how many ranks it gets.

The number of ranks, the node rank and the launcher's task come from the command line or the launcher's environment. No
fact needs torch.

GPUs are read through NVML, the driver's library. NVML is called in a process of its own that has a deadline: if a GPU
has fallen off the bus, a call into the driver does not return and cannot be ended, and the agent holds the node's
ranks. (torch could answer as well, but creates a CUDA context, hundreds of MB of the GPU's memory.)
"""

import contextlib
import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import psutil
from msgspec import Struct

from jdist.agent.processes.starter import CreateTask, Starter
from jdist.core import launchers
from jdist.core.launchers import Environment, read_task
from jdist.core.messages.base import Message
from jdist.core.messages.membership import LauncherTask, NodeFacts
from jdist.core.messages.nodes import GpuUse
from jdist.wire.processes import die_with_parent, set_name
from jdist.wire.transport.invitations import Endpoint
from jdist.wire.transport.public_port import address_towards, own_addresses

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SLURM_GIVES = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")  # Slurm assigned GPUs to single tasks.


class JoinOptions(Struct, frozen=True):
    """What the agent asks the controller for."""

    nproc: int = 0  # Ranks on this node; 0: as the controller decides.
    node_rank: int = -1  # -1: any.
    task: LauncherTask | None = None  # If a launcher has started the agent together with others.
    launcher: dict[str, str] = {}  # The variables by which a process finds that launcher again.


def read_join_options(nproc: int, node_rank: int) -> JoinOptions:
    """The command line's options, or else the launcher's, whose variables are removed before anything inherits them."""
    task = read_task(os.environ) if node_rank < 0 else None
    if task is not None:
        task = msgspec.structs.replace(task, gpu=own_gpu(task, count_gpus(), os.environ))
    return JoinOptions(nproc, node_rank, task, launchers.strip(os.environ))


def own_gpu(task: LauncherTask, gpus: int, environ: Environment) -> int:
    """Index of the task's own GPU among the ``gpus`` that it sees; -1: none, or it shares them with other tasks.

    Where each task sees all GPUs of its host, the local rank is the index. Where it sees fewer GPUs than the host has
    tasks, they are its own only if the launcher assigned them to it.
    """
    if not gpus:
        return -1
    if task.local_rank < 0 or task.local_size <= 1:
        return 0
    if gpus >= task.local_size:
        return task.local_rank
    giving = _SLURM_GIVES if task.launcher == "srun" else ("CUDA_VISIBLE_DEVICES",)
    return task.local_rank % gpus if any(map(environ.get, giving)) else -1


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
        [sys.executable, "-P", "-m", "jdist.agent.node"],
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


class SendToController(Protocol):
    """Sends a message to the controller, together with others of this turn or of the next ``within`` seconds."""

    def __call__(self, message: Message, within: float = 0.0) -> None: ...


@dataclass(frozen=True)
class NodeContext:
    """The node, its place in the launch, and the agent's ways to act."""

    zmq_context: Any
    endpoint: Endpoint  # Where the controller is reached.
    options: JoinOptions
    facts: NodeFacts
    directory: Path  # Sockets, logs and connection files of this agent; removed at its end.
    starter: Starter
    send: SendToController
    create_task: CreateTask

    @property
    def data_port(self) -> tuple[str, int]:
        return self.endpoint.host, self.endpoint.data_port


def node_facts(controller: tuple[str, int], *, is_carried: bool = False) -> NodeFacts:
    """The node's facts for the agent's hello."""
    return NodeFacts(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        torch=_version("torch"),
        jdist=_version("jdist"),
        gpus=count_gpus(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        address=own_address() if is_carried else address_towards(controller),
        reached="" if is_carried else controller[0],
        network=_network(),
        launcher_name=os.environ.get("JDIST_HOST", ""),
        torch_build=_torch_build(),
        is_carried=is_carried,
    )


def own_address() -> str:
    """This node's address for other nodes, where no way to the controller shows it.

    It is that of the interface that the user has named to gloo or NCCL, else the one at which the agent's login has
    arrived, else that of the default route.
    """
    own, named = own_addresses(), [os.environ.get(v, "") for v in _INTERFACE_VARIABLES]
    found = [a.address for name in named for a in psutil.net_if_addrs().get(name, ()) if a.address in own]
    arrived = os.environ.get("SSH_CONNECTION", "").split()[2:3]  # client, its port, server, its port
    return str((*found, *(a for a in arrived if a in own), *own)[0])


def _network() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino:x}"
    except OSError:
        return ""


def interface_environment(address: str) -> dict[str, str]:
    """Variables that name the interface of ``address`` to gloo and NCCL, unless the user has set them."""
    # By default both take the interface that the host's own name resolves to, which other nodes may not reach.
    names = [n for n, found in psutil.net_if_addrs().items() if address in {a.address.partition("%")[0] for a in found}]
    return {v: names[0] for v in _INTERFACE_VARIABLES if names and v not in os.environ}


def _torch_build() -> str | None:
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return None
    try:
        return read_torch_build(Path(found.origin).with_name("version.py").read_text(encoding="utf-8"))
    except OSError:
        return None


def read_torch_build(text: str) -> str | None:
    """What torch was built for by its ``torch/version.py``; None for a text that does not say."""
    found = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(None|'[^'\n]+')$", text, re.MULTILINE))
    if "cuda" not in found:
        return None
    builds = {"CUDA": found["cuda"], "ROCm": found.get("hip", "None")}
    return next((f"{name} {version[1:-1]}" for name, version in builds.items() if version != "None"), "CPU")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
