"""Resource meter: samples what the node, its workers and its GPUs use, and answers for now and for the last hour.

A sample is taken every two seconds, every second while a client asks, and less often where one takes so long that it
would cost more than a hundredth of a core. Samples are taken and read on threads; the agent's loop does not wait.
"""

import asyncio
import contextlib
import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import psutil

from jdist.agent.node.gpus import CudaVisibility, GpuReading, rank_use
from jdist.agent.processes.kernel import Kernel
from jdist.agent.resources.usage import Usage, UsageHistory, UsageReader
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.nodes import MOST_SECONDS, NodeResources, ReadResources
from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import RankReply

_log = logging.getLogger("jdist.agent")

_INTERVAL = 2.0  # Seconds between samples,
_WATCHED_INTERVAL = 1.0  # and while a client asks.
_WATCHED = 15.0  # Seconds after a question for which that counts.
_MOST_SHARE = 0.01  # Of a core, for sampling by all agents of the node.
_MOST_POINTS = 2000
_OLD = 10.0  # Seconds after which a reading of the GPUs is not used any more.
_STUCK = 60.0  # Seconds without a reading after which the process is ended.
_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0  # First and longest pause in seconds before a failed driver is asked again.

AnyMessage = TypeVar("AnyMessage", bound=Message)


class GpuStream:
    """The driver's readings of this node's GPUs, one after another, by a process of its own, until ``close``.

    A process for each reading, as jdist/agent/node/gpus starts one for a single question, would take some tenths of a
    second of CPU time each. The driver may never return from a call: then there are no readings, and nothing else
    waits. ``is_patient``: a driver that is missing is asked again, too.
    """

    def __init__(self, command: Sequence[str] = (), *, is_patient: bool = True):
        self._command = command or (sys.executable, "-P", "-m", "jdist.agent.node.gpus", str(_INTERVAL))
        self._is_patient = is_patient
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: GpuReading | None = None
        self._read_at = time.monotonic()
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="jdist-gpu-stream", daemon=True).start()

    def newest(self) -> GpuReading | None:
        """The newest reading; None if there is none that is recent."""
        age = time.monotonic() - self._read_at
        if age > _STUCK:
            self._kill()
        return self._reading if age <= _OLD else None

    def close(self) -> None:
        """End the process. The thread is not waited for: the process may be one that cannot be ended."""
        self._closing.set()
        self._kill()

    def _run(self) -> None:
        pause = _PAUSE
        while not self._closing.is_set():
            started = time.monotonic()
            last = self._follow()
            if last.is_missing and not self._is_patient:
                return
            if not self._closing.is_set():
                error = last.error or "the driver was not heard from"
                _log.info("GPUs: %s; they are asked again in %.0f s", error, pause)
            if time.monotonic() - started > _LONGEST_PAUSE:
                pause = _PAUSE
            self._closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _follow(self) -> GpuReading:
        """Read until the process ends; its last reading, which says what has failed."""
        reading = GpuReading()
        with self._lock:
            if self._closing.is_set():
                return reading
            self._read_at = time.monotonic()
            self._process = process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(msgspec.DecodeError):  # half a line of a process that was killed
                    reading = msgspec.json.decode(line, type=GpuReading)
                    if not reading.error:
                        self._reading, self._read_at = reading, time.monotonic()
        process.wait()
        return reading

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()


class ResourceMeter:
    """The meter of one agent, of ``agents`` on this node.

    ``gpu_count``: how many GPUs the node's ranks see; without any, the driver is asked once, if a client wants to know.
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
        self._gpus = gpus
        if gpu_count:
            self.watch_gpus()
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

    def watch_gpus(self) -> None:
        """Have the driver asked from now on, unless ranks are to see no GPU."""
        if self._gpus is None and not self._visibility.is_blind:
            self._gpus = GpuStream(is_patient=self._gpu_count > 0)

    def with_gpu(self, message: AnyMessage) -> AnyMessage:
        """Add what is known of the rank's GPU to its answer about what it does."""
        if not isinstance(message, RankReply) or not isinstance(message.body, Observation):
            return message
        kernel, observation = self._kernels.get(message.rank), message.body
        if kernel is not None and observation.device:
            kernel.device = observation.device
        reading = self._gpus.newest() if self._gpus is not None else None
        if kernel is None or reading is None:
            return message
        gpu = rank_use(kernel.device, kernel.gpu_index, kernel.pid, self._visibility, reading)
        return msgspec.structs.replace(message, body=msgspec.structs.replace(observation, gpu=gpu))

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
