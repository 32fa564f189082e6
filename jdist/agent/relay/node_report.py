"""Node report: what is found on this node without importing torch: from the system, the GPU driver and a fork."""

import asyncio
import contextlib
import glob
import os
import resource
import shutil
import tempfile
from pathlib import Path

import msgspec
import psutil

from jdist.agent.node.gpus import GpuReading, query
from jdist.agent.processes.helpers import start_reporter
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
    folders = (("working directory", os.getcwd()), ("temporary files", tempfile.gettempdir()), ("/dev/shm", "/dev/shm"))
    disks = []
    for what, path in folders:
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(path)
            disks.append(Disk(what, path, usage.total, usage.free))
    limits = [
        resource.getrlimit(r)[0] for r in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
    ]
    return NodeReport(
        hostname=facts.hostname,
        address=facts.address,
        python=facts.python,
        torch=facts.torch,
        jdist=facts.jdist,
        cpus=facts.cpus,
        memory=psutil.virtual_memory().total,
        disks=tuple(disks),
        limits=Limits(*(UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in limits)),
        interfaces=tuple(sorted(psutil.net_if_addrs())),
        chosen_interface=os.environ.get(variable) or chosen.get("GLOO_SOCKET_IFNAME", ""),
        is_users_choice=bool(os.environ.get(variable)),
        rdma=tuple(sorted(glob.glob("*", root_dir="/sys/class/infiniband"))),
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
        entry = "jdist.worker.torch_facts:main"
        _, report = await start_reporter(starter, directory, "facts", entry, TorchFactsSpec, _TORCH)
        torch = msgspec.json.decode(report, type=TorchFacts)
    except (OSError, LaunchError) as e:  # a timeout is one, and says nothing
        trouble.append(f"torch could not be asked: {str(e) or f'no answer within {_TORCH:.0f} s'}")
    own, unknown = await asyncio.to_thread(resolve, facts.hostname, 3.0)
    if not own:
        trouble.append(f"its own name {facts.hostname!r} cannot be looked up there: {unknown}")
    return msgspec.structs.replace(brief, gpus=gpus, driver=reading.driver, facts=torch, trouble=tuple(trouble))
