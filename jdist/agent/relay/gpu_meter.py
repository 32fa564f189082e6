"""Metering: what the node's ranks have of its GPUs, measured while somebody asks, and added to the ranks' answers.

A rank says what it does by itself; of its GPU the driver's tool says more, without the rank, which may be stuck. That
takes some tenths of a second, or hangs: so it is asked on a thread, once for all ranks and all who want to know, by one
process at a time. Answers pass at once with what is known, or wait a moment for what is not: while cells run and are
watched, what is told is a second old; where a cell has ended since, it is measured anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from jdist.agent.node import nvidia
from jdist.agent.node.gpus import (
    DEVICES,
    PROCESSES,
    CudaVisibility,
    GpuDevice,
    GpuMemory,
    read_devices,
    read_processes,
    use_of,
)
from jdist.agent.processes.kernel import Kernel
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import RankReply

_TOOL = 5.0
"""Seconds for the tool."""
_PATIENCE = 1.0
"""Seconds for which an answer waits for it; who asks waits for longer than that and a rank's silence together."""
_BETWEEN = 1.0
"""Seconds from one measurement to the next, unless a cell has ended."""
_RECENT = 3.0
"""Seconds for which a measurement is told at once, while the next is made."""
_OLD = 10.0
"""Seconds after which it is not told any more."""
_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0
"""Seconds until a tool that has failed is asked again, the first time, and the last: twice as long each time."""
_REMEMBERED = 1000
"""Questions that may still be answered."""


class GpuReading(Struct, frozen=True):
    """One measurement."""

    devices: tuple[GpuDevice, ...]
    taken: GpuMemory


def measure() -> GpuReading:
    """Ask the driver. Blocks, for ten seconds at most. Raises OSError."""
    devices = read_devices(nvidia.query("gpu", DEVICES, _TOOL))
    if not devices:
        raise OSError("no GPUs")
    return GpuReading(devices, read_processes(nvidia.query("compute-apps", PROCESSES, _TOOL)))


class GpuMeter:
    """Passes ranks' answers on to ``send``. On the agent's loop; ``ask`` is called on a thread.

    ``gpus``: how many devices are seen on the node without the driver's help. Where none is, the tool gets one chance.
    """

    def __init__(
        self,
        kernels: Mapping[int, Kernel],
        sight: CudaVisibility,
        gpus: int,
        send: Callable[[Message], object],
        ask: Callable[[], GpuReading] = measure,
    ):
        self._kernels = kernels
        self._sight = sight
        self._gpus = gpus
        self._send = send
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._held: list[RankReply] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reading: GpuReading | None = None
        self._began = float("-inf")
        """When what is known was asked for."""
        self._under_way: float | None = None
        """When the measurement under way began."""
        self._is_due = False
        """Another is to follow at once: a cell has ended meanwhile."""
        self._changed = float("-inf")
        """When a cell has ended last."""
        self._pause = _PAUSE
        self._next = float("inf") if sight.is_blind or not nvidia.is_there() else float("-inf")

    def request(self, request: str) -> None:
        """The answers of this name are to tell of GPUs."""
        now = self._loop.time()
        if now < self._next:
            return
        self._wanted[request] = None
        while len(self._wanted) > _REMEMBERED:
            self._wanted.popitem(last=False)
        if self._under_way is not None:
            self._is_due = self._under_way <= self._changed
        elif self._is_outdated or now - self._began >= _BETWEEN:
            self._begin()

    def record_cell_end(self) -> None:
        """A cell has ended: what was measured before may be wrong."""
        self._changed = self._loop.time()

    def forward(self, message: Message) -> None:
        """Send what a rank says, or its agent in its place; what waits for the driver, later."""
        if not isinstance(message, RankReply) or not isinstance(message.body, Observation):
            self._send(message)
            return
        kernel = self._kernels.get(message.rank)
        if kernel is not None and message.body.device:
            kernel.device = message.body.device
        if message.request not in self._wanted:
            self._send(message)
        elif self._under_way is None or self._is_recent:
            self._send(self._filled(message))
        else:
            self._held.append(message)
            if self._timer is None:
                self._timer = self._loop.call_later(_PATIENCE, self.flush)

    def flush(self) -> None:
        """Send what waits, with what is known now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        for answer in held:
            self._send(self._filled(answer))

    # ------------------------------------------------------------ measuring

    @property
    def _is_outdated(self) -> bool:
        return self._began <= self._changed

    @property
    def _is_recent(self) -> bool:
        return self._reading is not None and not self._is_outdated and self._loop.time() - self._began <= _RECENT

    def _begin(self) -> None:
        """On a thread that nobody waits for: its process may be one that cannot be ended."""
        self._under_way = self._loop.time()
        threading.Thread(target=self._run, name="jdist-meter", daemon=True).start()

    def _run(self) -> None:
        try:
            reading: GpuReading | None = self._ask()
        except OSError:  # no driver, no permission, no answer: then nothing is told, which is all there is to say
            reading = None
        with contextlib.suppress(RuntimeError):  # the agent has ended
            self._loop.call_soon_threadsafe(self._take, reading)

    def _take(self, reading: GpuReading | None) -> None:
        began, self._under_way = self._under_way or 0.0, None
        if reading is None:
            self._reading = None
            self._next = self._loop.time() + self._pause if self._gpus else float("inf")
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._wanted.clear()
        else:
            self._reading, self._began, self._pause = reading, began, _PAUSE
        is_due, self._is_due = self._is_due and reading is not None, False
        if is_due:
            self._begin()
        else:
            self.flush()

    def _filled(self, answer: RankReply) -> RankReply:
        kernel, reading, looked = self._kernels.get(answer.rank), self._reading, answer.body
        is_old = self._loop.time() - self._began > _OLD
        if kernel is None or reading is None or is_old or not isinstance(looked, Observation):
            return answer
        number = _number(kernel)
        bound = None if number is None else self._sight.find(number, reading.devices)
        gpu = use_of(kernel.pid, bound, reading.devices, reading.taken)
        return msgspec.structs.replace(answer, body=msgspec.structs.replace(looked, gpu=gpu))


def _number(kernel: Kernel) -> int | None:
    """CUDA's number of the GPU that is the rank's; None: it has none, or has not said."""
    kind, _, number = kernel.device.partition(":")
    if kind != "cuda":
        return None
    return int(number) if number.isdecimal() else kernel.place.gpu_index
