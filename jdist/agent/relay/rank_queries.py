"""Rank queries: routes them to this node's ranks, and answers those that the agent can answer itself.

For a worker that does not answer what it is doing, its agent answers from outside the process: one that is stopped, or
in which something holds the GIL, cannot answer, but what the operating system knows of it is reported all the same.
"""

import asyncio
import logging
import socket
from collections import OrderedDict

import msgspec
import psutil

from jdist.agent.node.facts import NodeContext
from jdist.agent.processes.workers import Workers
from jdist.agent.relay.rank_logs import RankLogs
from jdist.agent.resources.meter import ResourceMeter
from jdist.core.errors import JdistError
from jdist.core.messages import base, observation, values
from jdist.core.messages.protocol import RankQuery, RankReply, RankReplyBody
from jdist.core.observation import Activity
from jdist.wire.transport.dialing import get_segment
from jdist.wire.values.segments import Segment, shares_memory

_log = logging.getLogger("jdist.agent")

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
