"""Node report: what is found on this node without importing torch: from the system, the GPU driver and a fork."""

import asyncio
import os
import resource
import shutil
import tempfile
from pathlib import Path

import msgspec
import psutil

from jdist.agent.node.gpus import GpuReading, query
from jdist.agent.processes.reports import start_reporter
from jdist.agent.starters.prewarm import Starter
from jdist.core.errors import LaunchError
from jdist.core.messages.membership import NodeFacts
from jdist.core.messages.nodes import UNLIMITED, Disk, Gpu, Limits, NodeReport, TorchFacts
from jdist.core.settings import TorchFactsSpec
from jdist.wire.bulk.probe import resolve

_NVML = 15.0  # Seconds for NVML, which waits for the driver to start where no GPU is in use.
_TORCH = 60.0  # Seconds for torch to be imported and to look for GPUs.


def report_briefly(facts: NodeFacts, chosen: dict[str, str]) -> NodeReport:
    """The facts that are known at once. ``chosen``: the interface variables that the agent gives its workers."""
    variable = "NCCL_SOCKET_IFNAME" if "NCCL_SOCKET_IFNAME" in os.environ else "GLOO_SOCKET_IFNAME"
    return NodeReport(
        hostname=facts.hostname,
        address=facts.address,
        python=facts.python,
        torch=facts.torch,
        jdist=facts.jdist,
        cpus=facts.cpus,
        memory=psutil.virtual_memory().total,
        disks=_disks(),
        limits=_limits(),
        interfaces=tuple(sorted(psutil.net_if_addrs())),
        chosen_interface=os.environ.get(variable) or chosen.get("GLOO_SOCKET_IFNAME", ""),
        is_users_choice=bool(os.environ.get(variable)),
        rdma=_rdma(),
        gpu_count=facts.gpus,
    )


async def report_fully(facts: NodeFacts, chosen: dict[str, str], starter: Starter, directory: Path) -> NodeReport:
    """The brief report and the facts that take longer. It names what could not be found out, and why."""
    brief = report_briefly(facts, chosen)
    trouble: list[str] = []
    reading = GpuReading()
    try:
        reading = await asyncio.to_thread(query, _NVML)
    except OSError as e:
        if facts.gpus or not isinstance(e, FileNotFoundError):
            trouble.append(f"NVML: {e}")
    gpus = tuple(Gpu(device.name, device.total, device.used) for device in reading.devices)
    torch: TorchFacts | None = None
    try:
        torch = await _ask_torch(starter, directory)
    except (OSError, LaunchError) as e:  # a timeout is one, and says nothing
        trouble.append(f"torch could not be asked: {str(e) or f'no answer within {_TORCH:.0f} s'}")
    own, unknown = await asyncio.to_thread(resolve, facts.hostname, 3.0)
    if not own:
        trouble.append(f"its own name {facts.hostname!r} cannot be looked up there: {unknown}")
    return msgspec.structs.replace(brief, gpus=gpus, driver=reading.driver, facts=torch, trouble=tuple(trouble))


def _disks() -> tuple[Disk, ...]:
    places = (("working directory", os.getcwd()), ("temporary files", tempfile.gettempdir()), ("/dev/shm", "/dev/shm"))
    found = []
    for what, path in places:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            continue
        found.append(Disk(what, path, usage.total, usage.free))
    return tuple(found)


def _limits() -> Limits:
    def soft(which: int) -> int:
        value = resource.getrlimit(which)[0]
        return UNLIMITED if value == resource.RLIM_INFINITY else value

    return Limits(soft(resource.RLIMIT_NOFILE), soft(resource.RLIMIT_MEMLOCK), soft(resource.RLIMIT_NPROC))


def _rdma() -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir("/sys/class/infiniband")))
    except OSError:
        return ()


async def _ask_torch(starter: Starter, directory: Path) -> TorchFacts:
    _, report = await start_reporter(
        starter, directory, "facts", "jdist.worker.torch_facts:main", TorchFactsSpec, _TORCH
    )
    return msgspec.json.decode(report, type=TorchFacts)
