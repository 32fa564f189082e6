"""The GPU meter: the ranks' shares of the node's GPUs, measured while they are asked for and added to ranks' answers.

A rank reports what it does by itself; of its GPU the driver reports more, without the rank, which may be stuck. That
takes some tenths of a second, or hangs: so it is measured on a thread, once for all ranks and clients, one measurement
at a time. Answers pass at once with what is known, or wait a moment for what is not: while cells run and are watched,
a measurement is at most seconds old; where a cell has ended since, it is repeated.
"""

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from jdist.agent.node.gpus import CudaVisibility, GpuReading, query, rank_use
from jdist.agent.processes.kernel import Kernel
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Observation
from jdist.core.messages.protocol import RankReply

_DEADLINE = 10.0  # Seconds for one measurement.
_PATIENCE = 1.0  # Seconds for which an answer waits for the reading; clients have more patience than that.
_BETWEEN = 1.0  # Seconds from one measurement to the next, unless a cell has ended.
_RECENT = 3.0  # Seconds for which a measurement is used at once, while the next is made.
_OLD = 10.0  # Seconds after which it is not used any more.
_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0  # First and longest pause in seconds before a failed driver is asked again.
_REMEMBERED = 1000  # Requests that may still be answered.


class GpuMeter:
    """Passes ranks' answers on to ``send``. On the agent's loop; ``measure`` (within so many seconds) on a thread.

    ``gpus``: how many devices are seen on the node without the driver's help. Where none is, the driver is asked once,
    and no answer waits for it.
    """

    def __init__(
        self,
        kernels: Mapping[int, Kernel],
        visibility: CudaVisibility,
        gpus: int,
        send: Callable[[Message], object],
        measure: Callable[[float], GpuReading] = query,
    ):
        self._kernels = kernels
        self._visibility = visibility
        self._gpus = gpus
        self._send = send
        self._measure = measure
        self._loop = asyncio.get_running_loop()
        self._requested: OrderedDict[str, None] = OrderedDict()
        self._waiting: list[RankReply] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reading: GpuReading | None = None
        self._measured_at = float("-inf")  # When the last measurement began.
        self._measuring_since: float | None = None  # When the present measurement began.
        self._is_due = False  # Another is to follow at once because a cell has ended in the meantime.
        self._last_cell_end = float("-inf")
        self._pause = _PAUSE
        self._next = float("inf") if visibility.is_blind else float("-inf")

    def request(self, request: str) -> None:
        """Answers to this request are to include GPUs."""
        now = self._loop.time()
        if now < self._next:
            return
        self._requested[request] = None
        while len(self._requested) > _REMEMBERED:
            self._requested.popitem(last=False)
        if self._measuring_since is not None:
            self._is_due = self._measuring_since <= self._last_cell_end
        elif self._is_outdated or now - self._measured_at >= _BETWEEN:
            self._begin()

    def record_cell_end(self) -> None:
        """A cell has ended: what was measured before may be wrong."""
        self._last_cell_end = self._loop.time()

    def forward(self, message: Message) -> None:
        """Send a rank's message; an answer that waits for the driver, later."""
        if not isinstance(message, RankReply) or not isinstance(message.body, Observation):
            self._send(message)
            return
        kernel = self._kernels.get(message.rank)
        if kernel is not None and message.body.device:
            kernel.device = message.body.device
        if message.request not in self._requested:
            self._send(message)
        elif self._measuring_since is None or self._is_recent or not (self._gpus or self._reading):
            self._send(self._with_gpu(message))
        else:
            self._waiting.append(message)
            if self._timer is None:
                self._timer = self._loop.call_later(_PATIENCE, self._send_waiting)

    def _send_waiting(self) -> None:
        """Send the answers that wait, with what is known now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            self._send(self._with_gpu(answer))

    # ------------------------------------------------------------ measuring

    @property
    def _is_outdated(self) -> bool:
        return self._measured_at <= self._last_cell_end

    @property
    def _is_recent(self) -> bool:
        return self._reading is not None and not self._is_outdated and self._loop.time() - self._measured_at <= _RECENT

    def _begin(self) -> None:
        """On a thread that is never joined: its process may be one that cannot be ended."""
        self._is_due, self._measuring_since = False, self._loop.time()
        threading.Thread(target=self._run, args=(self._measuring_since,), name="jdist-meter", daemon=True).start()

    def _run(self, began: float) -> None:
        try:
            reading: GpuReading | None = self._measure(_DEADLINE)
        except OSError:  # no driver, no permission, no answer: then nothing is reported
            reading = None
        with contextlib.suppress(RuntimeError):  # the agent has ended
            self._loop.call_soon_threadsafe(self._handle_reading, reading, began)

    def _handle_reading(self, reading: GpuReading | None, began: float) -> None:
        self._reading, self._measuring_since = reading, None
        if reading is None:
            self._next = self._loop.time() + self._pause if self._gpus else float("inf")
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._requested.clear()
        else:
            self._measured_at, self._pause = began, _PAUSE
            if self._is_due:
                self._begin()
                return
        self._send_waiting()

    def _with_gpu(self, answer: RankReply) -> RankReply:
        kernel, reading, observation = self._kernels.get(answer.rank), self._reading, answer.body
        is_old = self._loop.time() - self._measured_at > _OLD
        if kernel is None or reading is None or is_old or not isinstance(observation, Observation):
            return answer
        gpu = rank_use(kernel.device, kernel.gpu_index, kernel.pid, self._visibility, reading)
        return msgspec.structs.replace(answer, body=msgspec.structs.replace(observation, gpu=gpu))
