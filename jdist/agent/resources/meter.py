"""Resource meter: samples what the node and its workers use, as long as the agent lives, and answers for the last hour.

A sample is taken every two seconds, every second while a client asks, and less often where one takes so long that it
would cost more than a hundredth of a core. Samples are taken and read on threads; the agent's loop does not wait.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping

import psutil

from jdist.agent.node.gpus import CudaVisibility, rank_use
from jdist.agent.processes.kernel import Kernel
from jdist.agent.resources.gpu_stream import GpuStream
from jdist.agent.resources.history import UsageHistory
from jdist.agent.resources.usage import Usage, UsageReader
from jdist.core.errors import UsageError
from jdist.core.messages.resources import MOST_SECONDS, NodeResources, ReadResources

_log = logging.getLogger("jdist.agent")

_INTERVAL = 2.0  # Seconds between samples,
_WATCHED_INTERVAL = 1.0  # and while a client asks.
_WATCHED = 15.0  # Seconds after a question for which that counts.
_MOST_SHARE = 0.01  # Of a core, for sampling by all agents of the node.
_MOST_POINTS = 2000


class ResourceMeter:
    """The meter of one agent, of ``agents`` on this node.

    ``gpu_count``: how many GPUs the node's ranks see; without any, no driver is asked.
    """

    def __init__(
        self,
        kernels: Mapping[int, Kernel],
        visibility: CudaVisibility,
        gpu_count: int,
        gpus: GpuStream | None = None,
        agents: int = 1,
    ):
        self._kernels = kernels
        self._visibility = visibility
        self._gpu_count = gpu_count
        self._most_share = _MOST_SHARE / agents
        self._reader = UsageReader()
        self._history = UsageHistory()
        if gpus is None and gpu_count and not visibility.is_blind:
            gpus = GpuStream(_INTERVAL)
        self._gpus = gpus
        self._gpu_memory = 0
        self._watched_until = -math.inf
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Take samples until cancelled. What cannot be read ends this, and not the agent."""
        try:
            while True:
                self._asked.clear()
                cost = await self._sample()
                is_watched = time.monotonic() < self._watched_until
                pause = max(_WATCHED_INTERVAL if is_watched else _INTERVAL, cost / self._most_share)
                if is_watched:
                    await asyncio.sleep(pause)
                    continue
                try:
                    async with asyncio.timeout(pause):
                        await self._asked.wait()
                except TimeoutError:
                    pass
        except Exception:  # a kernel without these files must not cost the node its ranks
            _log.exception("what this node uses cannot be read; it is not recorded any more")

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()

    async def answer(self, ask: ReadResources) -> NodeResources:
        """What was used during the last ``ask.seconds``. Raises UsageError for a question that makes no sense."""
        if not (0 < ask.seconds <= MOST_SECONDS and 0 < ask.points <= _MOST_POINTS):
            raise UsageError(f"seconds: up to {MOST_SECONDS}; points: 1 to {_MOST_POINTS}")
        self._watched_until = time.monotonic() + _WATCHED
        self._asked.set()
        ages, node, ranks = await asyncio.to_thread(self._history.read, time.monotonic(), ask.seconds, ask.points)
        total = psutil.virtual_memory().total
        return NodeResources(ages, node, ranks, self._reader.cores, total, self._gpu_count, self._gpu_memory)

    async def _sample(self) -> float:
        """Take a sample; the seconds of CPU time that it took."""
        kernels = {kernel.worker: kernel for kernel in self._kernels.values() if kernel.pid and not kernel.has_ended}
        return await asyncio.to_thread(self._take, kernels)

    def _take(self, kernels: Mapping[int, Kernel]) -> float:
        began = time.thread_time()
        usage = self._reader.read({worker: kernel.pid for worker, kernel in kernels.items()})
        if self._gpus is not None:
            self._add_gpus(usage, kernels)
        self._history.add(time.monotonic(), usage)
        return time.thread_time() - began

    def _add_gpus(self, usage: Usage, kernels: Mapping[int, Kernel]) -> None:
        """Add what the driver reports, of the node's GPUs and of each worker's."""
        reading = self._gpus.newest() if self._gpus is not None else None
        if reading is None:
            return
        found = [self._visibility.find(number, reading.devices) for number in range(self._gpu_count)]
        seen = [device for device in found if device is not None] or list(reading.devices)
        self._gpu_memory = sum(device.total for device in seen)
        if loads := [device.busy for device in seen if device.busy is not None]:
            usage.node["gpu"] = sum(loads) / len(loads)
        if self._gpu_memory:
            usage.node["gpu_memory"] = float(sum(device.used for device in seen))
        for worker, kernel in kernels.items():
            use = rank_use(kernel.device, kernel.gpu_index, kernel.pid, self._visibility, reading)
            if use is None or worker not in usage.processes:
                continue
            if use.busy is not None:
                usage.processes[worker]["gpu"] = use.busy
            if use.own is not None or use.total:
                usage.processes[worker]["gpu_memory"] = float(use.used if use.own is None else use.own)
