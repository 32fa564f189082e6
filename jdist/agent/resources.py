"""Sample what the node, its workers and its GPUs use, and answer for now and for the last hour.

The kernel's counters give CPU and memory of processes with their descendants. Linux counts network traffic by interface
and not by process, so network rates exist for the node only.

A sample is taken every two seconds, every second while a client asks, and less often if sampling would otherwise cost
more than a hundredth of a core. Samples are taken and read on threads, so the agent's loop does not wait for them.
"""

import asyncio
import bisect
import contextlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
from msgspec import Struct

from jdist.agent.node import CudaVisibility, GpuReading, rank_use
from jdist.agent.processes.kernel import Kernel
from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.nodes import MOST_SECONDS, NodeResources, ReadResources, Series
from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import RankReply

_NODE = -1  # The key of the node's own series.
_PEAKS = ("memory", "gpu_memory")  # Quantities of which a point is the highest sample; of others it is the mean.
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_INFINIBAND_TYPE = "32"  # ARPHRD_INFINIBAND of linux/if_arp.h
_IB_WORD = 4  # Bytes in the unit of port_xmit_data and port_rcv_data (kernel: ABI/stable/sysfs-class-infiniband).


class ProcessUsage(Struct, frozen=True):
    """A process's counters."""

    parent: int
    cpu: float  # Seconds of CPU time, with those of the child processes that it has waited for.
    memory: int  # Bytes of its resident set.


class Usage(Struct, frozen=True):
    """What was used at one time, by quantity (see core/messages/resources); of processes by the key they were given."""

    node: dict[str, float]
    processes: dict[int, dict[str, float]]


class _UsageReading(Struct, frozen=True):
    """Counters that only grow; differences of two readings are rates."""

    at: float
    cpu: float
    received: int
    sent: int
    processes: dict[int, tuple[int, float]]  # Pid and CPU seconds, by key.


class UsageReader:
    """Reads what is used; rates are those since its last reading. Not safe for use by two threads at once."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys"), now: Callable[[], float] = time.monotonic):
        self._proc = proc
        self._sys = sys
        self._now = now
        self._cpus = sorted(os.sched_getaffinity(0))
        self._before: _UsageReading | None = None

    @property
    def cores(self) -> int:
        """The number of cores that processes of this node may use."""
        return len(self._cpus)

    def read(self, pids: Mapping[int, int]) -> Usage:
        """Of the node, and of the processes ``{key: pid}``. Rates are left out in the first reading."""
        found = read_processes(self._proc)
        trees = with_descendants(pids, found)
        cpu = {key: (pids[key], sum(found[pid].cpu for pid in tree)) for key, tree in trees.items()}
        received, sent = read_network(self._proc, self._sys)
        after = _UsageReading(self._now(), self._busy_seconds(), received, sent, cpu)
        memory = psutil.virtual_memory()
        node = {"memory": float(memory.total - memory.available)}
        processes = {key: {"memory": float(found[pids[key]].memory)} for key in trees}
        before, self._before = self._before, after
        if before is not None and (elapsed := after.at - before.at) > 0:
            node["cpu"] = _rate(before.cpu, after.cpu, elapsed)
            node["received"] = _rate(before.received, received, elapsed)
            node["sent"] = _rate(before.sent, sent, elapsed)
            for key, (pid, seconds) in cpu.items():
                earlier = before.processes.get(key)
                # One that was not there began since then, and so did its counter.
                spent = earlier[1] if earlier is not None and earlier[0] == pid else 0.0
                processes[key]["cpu"] = _rate(spent, seconds, elapsed)
        return Usage(node, processes)

    def _busy_seconds(self) -> float:
        """CPU seconds that the cores of this node have worked."""
        times = psutil.cpu_times(percpu=True)
        # psutil numbers the cores that are online from 0, so a number may be missing there.
        own = [times[i] for i in self._cpus if i < len(times)] or times
        return float(sum(t.user + t.nice + t.system + t.irq + t.softirq + t.steal for t in own))


def _rate(before: float, after: float, seconds: float) -> float:
    """A counter that has been reset, such as that of an interface, gives 0."""
    return max(0.0, after - before) / seconds


def read_processes(proc: Path = Path("/proc")) -> dict[int, ProcessUsage]:
    """All processes by pid. psutil would open several files of each, several times."""
    found = {}
    for name in os.listdir(proc):
        if not name.isdecimal():
            continue
        try:
            data = (proc / name / "stat").read_bytes()
        except OSError:  # it has ended
            continue
        fields = data.rpartition(b")")[2].split()  # proc(5): the third field comes first
        times = sum(map(int, fields[11:15]))
        found[int(name)] = ProcessUsage(int(fields[1]), times / _TICK, int(fields[21]) * _PAGE)
    return found


def with_descendants(pids: Mapping[int, int], found: Mapping[int, ProcessUsage]) -> dict[int, list[int]]:
    """``{key: pids}`` of each process that exists and all of its descendants."""
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    trees = {}
    for key, root in pids.items():
        if root in found:
            tree = trees[key] = [root]
            for pid in tree:  # grows meanwhile
                tree += children.get(pid, ())
    return trees


def read_network(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> tuple[int, int]:
    """Bytes received and sent over the network since the node started, RDMA included."""
    interfaces = _read_interfaces(proc)
    names = set(interfaces) - {"lo"}
    folder = sys / "class/net"
    # Bridges, bonds and pairs of virtual interfaces count what a device below them has counted.
    names = {name for name in names if (folder / name / "device").exists()} or names
    received, sent = _read_infiniband(sys)
    if received or sent:  # IP over InfiniBand is in those counters
        names = {name for name in names if _read(folder / name / "type") != _INFINIBAND_TYPE}
    return received + sum(interfaces[n][0] for n in names), sent + sum(interfaces[n][1] for n in names)


def _read_interfaces(proc: Path) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by interface of this process's network namespace."""
    found = {}
    for line in _read(proc / "self/net/dev").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        found[name.strip()] = int(fields[0]), int(fields[8])
    return found


def _read_infiniband(sys: Path) -> tuple[int, int]:
    ports = list((sys / "class/infiniband").glob("*/ports/*/counters"))
    return _words(p / "port_rcv_data" for p in ports), _words(p / "port_xmit_data" for p in ports)


def _words(counters: Iterable[Path]) -> int:
    texts = map(_read, counters)
    return _IB_WORD * sum(int(text) for text in texts if text.isdecimal())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


# ---------------------------------------------------------------- the last hour


class UsageHistory:
    """The last samples, ``capacity`` at least and less than twice as many; safe for use by threads.

    A sample takes 4 bytes for each quantity.
    """

    def __init__(self, capacity: int = 3600):
        self._capacity = capacity
        self._lock = threading.Lock()
        self._times = array("d")
        self._series: dict[tuple[int, str], array[float]] = {}

    def add(self, at: float, usage: Usage) -> None:
        """Add a sample that was taken at the time ``at``, later than all others."""
        with self._lock:
            values = {(_NODE, name): value for name, value in usage.node.items()}
            for key, quantities in usage.processes.items():
                values |= {(key, name): value for name, value in quantities.items()}
            for place in values.keys() - self._series.keys():
                self._series[place] = array("f", [math.nan]) * len(self._times)
            self._times.append(at)
            for place, series in self._series.items():
                series.append(values.get(place, math.nan))
            if len(self._times) >= 2 * self._capacity:
                self._drop_older_half()

    def _drop_older_half(self) -> None:
        del self._times[: self._capacity]
        for series in self._series.values():
            del series[: self._capacity]
        self._series = {place: s for place, s in self._series.items() if any(map(math.isfinite, s))}

    def read(self, now: float, seconds: float, points: int) -> tuple[tuple[float, ...], Series, dict[int, Series]]:
        """The last ``seconds`` as ``points`` at most: their ages, the node's series and those of each process.

        The limits between points stay where they are as time passes, so that a chart does not change its shape.
        """
        width = seconds / points
        with self._lock:
            first = bisect.bisect_left(self._times, now - seconds)
            times = self._times[first:]
            chosen = {place: series[first:] for place, series in self._series.items()}
        ends = [i for i in range(1, len(times)) if times[i] // width != times[i - 1] // width]
        spans = list(zip([0, *ends], [*ends, len(times)], strict=True))[-points:] if times else []
        node: Series = {}
        processes: dict[int, Series] = {}
        for (key, name), series in chosen.items():
            values = tuple(_merged(series[start:end], name in _PEAKS) for start, end in spans)
            if any(map(math.isfinite, values)):
                (node if key == _NODE else processes.setdefault(key, {}))[name] = values
        return tuple(max(0.0, now - times[end - 1]) for _, end in spans), node, processes


def _merged(samples: "array[float]", is_peak: bool) -> float:
    """One number for these samples; those that are unknown do not count."""
    known: Sequence[float] = samples
    total = sum(samples)
    if math.isnan(total):
        known = [value for value in samples if not math.isnan(value)]
        total = sum(known)
    if not known:
        return math.nan
    return max(known) if is_peak else total / len(known)


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
        self._command = command or (sys.executable, "-P", "-m", "jdist.agent.node", str(_INTERVAL))
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
