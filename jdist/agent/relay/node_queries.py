"""Node queries: each is answered in its own task from the system, the GPU driver and a fork; torch is not imported."""

import asyncio
import contextlib
import glob
import logging
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from jdist.agent.code_sync import CodeReceiver
from jdist.agent.node.facts import NodeContext, interface_environment
from jdist.agent.node.gpus import GpuReading, query
from jdist.agent.processes.helpers import start_reporter
from jdist.agent.processes.kernel import Kernel
from jdist.agent.resources.meter import ResourceMeter
from jdist.agent.starters.starter import Starter
from jdist.core.errors import JdistError, LaunchError
from jdist.core.messages import code, nodes
from jdist.core.messages.base import Progress, QueryFailed
from jdist.core.messages.membership import NodeFacts
from jdist.core.messages.nodes import ReadResources
from jdist.core.messages.protocol import NodeQuery, NodeReply, NodeReplyBody
from jdist.core.messages.values import DebugLog, GetDebugLog
from jdist.core.settings import TorchFactsSpec
from jdist.wire import log
from jdist.wire.bulk.probe import Listener, probe_path, resolve

_log = logging.getLogger("jdist.agent")

_LONGEST = 600.0  # Seconds that a listener may be asked for.
_NVML = 15.0  # Seconds for NVML, which waits for the driver to start where no GPU is in use.
_TORCH = 60.0  # Seconds for torch to be imported and to look for GPUs.


class NodeQueries:
    """Answers for this node."""

    def __init__(
        self, node: NodeContext, code_sync: CodeReceiver, resources: ResourceMeter, kernels: Mapping[int, Kernel]
    ):
        self._node = node
        self._facts = node.facts
        self._code_sync = code_sync
        self._resources = resources
        self._kernels = kernels
        self._reporting = asyncio.Lock()
        self._listeners: dict[str, Listener] = {}

    def handle_query(self, query: NodeQuery) -> None:
        """Answer a query from the controller: the time at once, everything else as soon as it is known."""
        if isinstance(query.op, nodes.ReadClock):
            self._reply(query, nodes.ClockReading(time.time()))
        else:
            self._node.create_task(self._answer(query))

    def _reply(self, query: NodeQuery, body: NodeReplyBody) -> None:
        self._node.send(NodeReply(query.request, query.nodes[0], body))

    async def _answer(self, query: NodeQuery) -> None:
        try:
            self._reply(query, await self._perform(query))
        except Exception as e:  # a failed query must not cost the node its ranks
            reason = str(e) if isinstance(e, OSError | JdistError) else repr(e)
            if not isinstance(e, OSError | JdistError):
                _log.exception("could not answer %s", type(query.op).__name__)
            self._reply(query, QueryFailed(f"{self._facts.hostname}: {reason}"))

    async def _perform(self, query: NodeQuery) -> NodeReplyBody:
        match op := query.op:
            case nodes.ReportNode(is_brief=True):
                lacks = next((kernel.lacks for kernel in self._kernels.values()), ())
                return msgspec.structs.replace(report_briefly(self._facts), lacks=lacks)
            case nodes.ReportNode():
                async with self._reporting:  # two clients at once share the report's socket
                    return await report_fully(self._facts, self._node.starter, self._node.directory)
            case nodes.Listen():
                return self._listen(op)
            case nodes.ProbePath():
                return await asyncio.to_thread(probe_path, op.hostname, (op.address, op.port), op.token, op.timeout)
            case nodes.ReadClock():
                return nodes.ClockReading(time.time())
            case ReadResources():
                return await self._resources.answer(op)
            case GetDebugLog():
                return DebugLog(log.newest(op.lines))
            case code.CompareTree() | code.StorePieces() | code.ApplyTree() | code.AdoptTree():
                loop = asyncio.get_running_loop()
                return await self._code_sync.answer(
                    op, lambda done: loop.call_soon_threadsafe(self._reply, query, Progress(done, 0))
                )

    def _listen(self, op: nodes.Listen) -> nodes.Listening:
        old = self._listeners.pop(op.token, None)
        if old is not None:
            old.close()
        if op.seconds <= 0:
            return nodes.Listening(0)
        self._listeners = {token: each for token, each in self._listeners.items() if not each.is_over}
        listener = self._listeners[op.token] = Listener(self._facts.address, op.token, min(op.seconds, _LONGEST))
        return nodes.Listening(listener.port)


def report_briefly(facts: NodeFacts) -> nodes.NodeReport:
    """The facts that are known at once."""
    chosen = interface_environment(facts.address)
    variable = "NCCL_SOCKET_IFNAME" if "NCCL_SOCKET_IFNAME" in os.environ else "GLOO_SOCKET_IFNAME"
    folders = (("working directory", os.getcwd()), ("temporary files", tempfile.gettempdir()), ("/dev/shm", "/dev/shm"))
    disks = []
    for what, path in folders:
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(path)
            disks.append(nodes.Disk(what, path, usage.total, usage.free))
    limits = [
        resource.getrlimit(r)[0] for r in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
    ]
    return nodes.NodeReport(
        hostname=facts.hostname,
        address=facts.address,
        python=facts.python,
        torch=facts.torch,
        jdist=facts.jdist,
        cpus=facts.cpus,
        memory=psutil.virtual_memory().total,
        disks=tuple(disks),
        limits=nodes.Limits(*(nodes.UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in limits)),
        interfaces=tuple(sorted(psutil.net_if_addrs())),
        chosen_interface=os.environ.get(variable) or chosen.get("GLOO_SOCKET_IFNAME", ""),
        is_users_choice=bool(os.environ.get(variable)),
        rdma=tuple(sorted(glob.glob("*", root_dir="/sys/class/infiniband"))),
        gpu_count=facts.gpus,
        now=time.time(),
    )


async def report_fully(facts: NodeFacts, starter: Starter, directory: Path) -> nodes.NodeReport:
    """The brief report and the facts that take longer. It names what could not be found out, and why."""
    trouble: list[str] = []
    reading = GpuReading()
    try:
        reading = await asyncio.to_thread(query, _NVML)
    except OSError as e:
        if facts.gpus or not isinstance(e, FileNotFoundError):
            trouble.append(f"NVML: {e}")
    gpus = tuple(nodes.Gpu(device.name, device.total, device.used) for device in reading.devices)
    torch: nodes.TorchFacts | None = None
    try:
        entry = "jdist.worker.torch_facts:main"
        _, report = await start_reporter(starter, directory, "facts", entry, TorchFactsSpec, _TORCH)
        torch = msgspec.json.decode(report, type=nodes.TorchFacts)
    except (OSError, LaunchError) as e:  # a timeout is one, and says nothing
        trouble.append(f"torch could not be asked: {str(e) or f'no answer within {_TORCH:.0f} s'}")
    own, unknown = await asyncio.to_thread(resolve, facts.hostname, 3.0)
    if not own:
        trouble.append(f"its own name {facts.hostname!r} cannot be looked up there: {unknown}")
    return msgspec.structs.replace(
        report_briefly(facts),
        gpus=gpus,
        driver=reading.driver,
        facts=torch,
        trouble=tuple(trouble),
        lacks=torch.lacks if torch else (),
    )
