"""Answer queries to this node, and pass on queries to its ranks.

Each query to the node is answered in a task of its own, from the system, the GPU driver and a fork; torch is not
imported. If a worker does not answer what it is doing, the agent answers from outside the process: a worker that is
stopped, or in which a thread holds the GIL, cannot answer, but the operating system knows something about it.
"""

import asyncio
import contextlib
import glob
import logging
import os
import resource
import shutil
import socket
import tempfile
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from jdist.agent.code_sync import CodeReceiver
from jdist.agent.node import GpuReading, NodeContext, interface_environment, query
from jdist.agent.processes.helpers import start_reporter
from jdist.agent.processes.kernel import Kernel
from jdist.agent.processes.starter import Starter
from jdist.agent.processes.workers import Workers
from jdist.agent.relay.iopub import RankLogs
from jdist.agent.resources import ResourceMeter
from jdist.core.errors import JdistError, LaunchError
from jdist.core.messages import base, code, nodes, observation, values
from jdist.core.messages.base import Progress, QueryFailed
from jdist.core.messages.membership import NodeFacts
from jdist.core.messages.nodes import ReadResources
from jdist.core.messages.observation import Activity
from jdist.core.messages.protocol import NodeQuery, NodeReply, NodeReplyBody, RankQuery, RankReply, RankReplyBody
from jdist.core.messages.values import DebugLog, GetDebugLog
from jdist.core.settings import TorchFactsSpec
from jdist.wire import log
from jdist.wire.bulk.probe import Listener, probe_path, resolve
from jdist.wire.transport.dialing import get_segment
from jdist.wire.values.segments import Segment, shares_memory

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
        is_carried=facts.is_carried,
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
        entry = "jdist.worker.compat.features:main"
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


_PATIENCE = 0.5  # Seconds that a worker has to answer what it is doing.
_REMEMBERED = 1000  # Number of answers given in a worker's place that are remembered, as its own may still come.
_BUSY = 0.5  # Share of a core above which a process counts as computing.
_NO_PROCESS = "this rank has no process now; the status of the cluster says why"
_UNABLE_TO_ANSWER = {
    psutil.STATUS_STOPPED: "stopped by a signal (SIGSTOP); kill -CONT {pid} lets it go on",
    psutil.STATUS_TRACING_STOP: "stopped by a debugger",
    psutil.STATUS_DISK_SLEEP: "in uninterruptible I/O, as of a disk or a network file system that does not answer",
    psutil.STATUS_ZOMBIE: "its process has ended",
    psutil.STATUS_DEAD: "its process has ended",
}


class RankQueries:
    """Routes each query; brings a pushed value's bytes to this node once for all its ranks."""

    def __init__(self, node: NodeContext, workers: Workers, logs: RankLogs, resources: ResourceMeter):
        self._node = node
        self._workers = workers
        self._logs = logs
        self._resources = resources
        self._fetched: dict[str, tuple[Segment, set[int]]] = {}  # Values fetched for workers, by request.
        # By request and worker: those whose answer is awaited, and those that the agent has answered.
        self._awaited: dict[tuple[str, int], asyncio.TimerHandle] = {}
        self._answered: OrderedDict[tuple[str, int], None] = OrderedDict()

    def handle_query(self, query: RankQuery) -> None:
        op = query.op
        if isinstance(op, values.BindNames) and op.path and not shares_memory(op.probe):
            self._node.create_task(self._fetch(query, op))
            return
        if isinstance(op, values.Evaluate | observation.ReadProfile):
            probe = op.probe if op.probe is not None and shares_memory(op.probe) else None
            op = msgspec.structs.replace(op, probe=probe)
        if isinstance(op, observation.Observe) and op.with_gpu:
            self._resources.watch_gpus()
        for worker in query.ranks:
            match op:
                case values.Logs():
                    log = values.LogText(self._logs.read(worker, op.lines), str(self._logs.path(worker)))
                    self._reply(query, worker, log)
                case values.Console():
                    kernel = self._workers.kernels.get(worker)
                    console = kernel and values.ConsoleAt(socket.gethostname(), str(kernel.connection_file))
                    self._reply(query, worker, console or base.QueryFailed(_NO_PROCESS))
                case _:
                    self._forward(worker, RankQuery(query.request, (worker,), op))

    def record_reply(self, message: base.Message) -> bool:
        """Record what a worker has sent; False if it is an answer that the agent has given in the worker's place."""
        if not isinstance(message, RankReply):
            return True
        key = (message.request, message.rank)
        if key in self._awaited:
            self._awaited.pop(key).cancel()
        if message.request in self._fetched and not isinstance(message.body, base.Progress):
            segment, workers = self._fetched[message.request]
            workers.discard(message.rank)
            if not workers:  # all of them have the value
                del self._fetched[message.request]
                segment.unlink()
        return self._answered.pop(key, ()) is not None

    def _reply(self, query: RankQuery, worker: int, body: RankReplyBody) -> None:
        self._node.send(self._resources.with_gpu(RankReply(query.request, worker, body)))

    def _forward(self, worker: int, query: RankQuery) -> None:
        if not self._workers.send(worker, query):
            answer = RankReply(query.request, worker, base.QueryFailed(_NO_PROCESS))
            self.record_reply(answer)
            self._node.send(answer)
        elif isinstance(query.op, observation.Observe):
            loop, pid = asyncio.get_running_loop(), self._workers.kernels[worker].pid
            timer = loop.call_later(_PATIENCE, self._answer_for, query, worker, pid, _cpu_seconds(pid), loop.time())
            self._awaited[query.request, worker] = timer

    def _answer_for(self, query: RankQuery, worker: int, pid: int, cpu: float, at: float) -> None:
        """Answer in the place of a worker that had used so many seconds of CPU time when it was asked."""
        del self._awaited[query.request, worker]
        self._answered[query.request, worker] = None
        while len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        share = max(0.0, _cpu_seconds(pid) - cpu) / (asyncio.get_running_loop().time() - at)
        self._node.create_task(self._reply_for(query, worker, pid, share))

    async def _reply_for(self, query: RankQuery, worker: int, pid: int, share: float) -> None:
        state, rss = _process_state(pid)
        kernel = self._workers.kernels.get(worker)
        if not state:
            place = await kernel.find_place() if kernel is not None and kernel.pid == pid else ""
            at = f" at {place}" if place else ""
            if share >= _BUSY:
                state = f"C code holds the interpreter lock{at}; {share * 100:.0f} % of a core"
            else:
                state = f"C code holds the interpreter lock{at} and waits, or the machine is overloaded"
        self._reply(query, worker, observation.Observation("", Activity("silent", cpu=share, state=state), rss))

    async def _fetch(self, query: RankQuery, op: values.BindNames) -> None:
        loop, node = asyncio.get_running_loop(), self._node

        def report(done: int) -> None:
            loop.call_soon_threadsafe(self._reply, query, query.ranks[0], base.Progress(done, op.nbytes))

        try:
            cluster = node.endpoint.cluster
            segment = await asyncio.to_thread(get_segment, node.data_port, op.transfer, cluster, op.nbytes, report)
        except Exception as e:  # a failed query must not cost the node its ranks
            reason = str(e) if isinstance(e, OSError | JdistError) else repr(e)
            if not isinstance(e, OSError | JdistError):
                _log.exception("a value did not reach this node")
            failed = base.QueryFailed(f"the value did not reach {socket.gethostname()}: {reason}")
            for worker in query.ranks:
                self._reply(query, worker, failed)
            return
        segment.close()
        self._fetched[query.request] = (segment, set(query.ranks))
        for worker in query.ranks:
            self._forward(worker, RankQuery(query.request, (worker,), msgspec.structs.replace(op, path=segment.path)))


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _process_state(pid: int) -> tuple[str, int]:
    """The process's state in words, "" if it could run, and its resident bytes."""
    try:
        process = psutil.Process(pid)
        status, rss = process.status(), int(process.memory_info().rss)
    except psutil.Error:
        return "its process is gone", 0
    if status in _UNABLE_TO_ANSWER:
        return _UNABLE_TO_ANSWER[status].format(pid=pid), rss
    return "", rss
