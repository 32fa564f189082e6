"""Questions: Asks on their way to this node's ranks, and those that the agent answers itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

import msgspec

from jdist.agent.processes.kernel import Kernel
from jdist.agent.relay.gpu_meter import Meter
from jdist.agent.relay.iopub import Relay
from jdist.agent.relay.unresponsive import Silence
from jdist.core.errors import JdistError
from jdist.core.messages.base import Message, Progress, QueryFailed
from jdist.core.messages.introspection import Console, ConsoleAt, Logs, LogText
from jdist.core.messages.observation import Observe
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.messages.values import BindNames, Evaluate
from jdist.wire.transport.dialing import get_segment
from jdist.wire.transport.invitations import Endpoint
from jdist.wire.values.segments import Probe, Segment

_NO_PROCESS = "this rank has no process now; the status of the cluster says why"


class Questions:
    """Routes each question; brings a pushed value's bytes to this node once for all its ranks."""

    def __init__(
        self,
        way: Endpoint,
        relay: Relay,
        kernels: Mapping[int, Kernel],
        meter: Meter,
        to_worker: Callable[[int, Message], bool],
    ):
        self._way = way
        self._relay = relay
        self._kernels = kernels
        self._send = meter.pass_on
        self._meter = meter
        self._to_worker = to_worker
        self._silence = Silence(meter.pass_on)
        self._brought: dict[str, tuple[Segment, set[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, ask: RankQuery) -> None:
        """Route a question from the controller."""
        op = ask.op
        if isinstance(op, BindNames) and op.path and not _is_here(op):
            task = asyncio.get_running_loop().create_task(self._bring(ask, op))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if isinstance(op, Evaluate) and op.probe is not None and not _is_here(op):
            op = msgspec.structs.replace(op, probe=None)
        if isinstance(op, Observe) and op.with_gpu:
            self._meter.want(ask.request)
        for rank in ask.ranks:
            match op:
                case Logs():
                    text = self._relay.read_log(rank, op.lines)
                    self._send(RankReply(ask.request, rank, LogText(text, str(self._relay.log_path(rank)))))
                case Console():
                    self._send(RankReply(ask.request, rank, self._console(rank)))
                case _:
                    self._forward(rank, RankQuery(ask.request, (rank,), op))

    def is_late(self, message: Message) -> bool:
        """Whether this is an answer that the agent has given in the rank's place."""
        return isinstance(message, RankReply) and self._silence.is_late(message)

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Ranks have other numbers, ``{old: new}``."""
        self._silence.forget()
        for request, (segment, ranks) in list(self._brought.items()):
            self._brought[request] = segment, {numbers[r] for r in ranks if r in numbers}

    def note(self, message: Message) -> None:
        """An answer passes on its way up: a value that was brought for these ranks may go when all have it."""
        if (
            not isinstance(message, RankReply)
            or message.request not in self._brought
            or isinstance(message.body, Progress)
        ):
            return
        segment, ranks = self._brought[message.request]
        ranks.discard(message.rank)
        if not ranks:
            del self._brought[message.request]
            segment.unlink()

    def _console(self, rank: int) -> ConsoleAt | QueryFailed:
        kernel = self._kernels.get(rank)
        if kernel is None:
            return QueryFailed(_NO_PROCESS)
        return ConsoleAt(socket.gethostname(), str(kernel.place.connection_file))

    def _forward(self, rank: int, ask: RankQuery) -> None:
        if not self._to_worker(rank, ask):
            answer = RankReply(ask.request, rank, QueryFailed(_NO_PROCESS))
            self.note(answer)
            self._send(answer)
        elif isinstance(ask.op, Observe) and rank in self._kernels:
            self._silence.expect(ask.request, rank, self._kernels[rank].pid)

    async def _bring(self, ask: RankQuery, put: BindNames) -> None:
        port = (self._way.host, self._way.data_port)
        loop = asyncio.get_running_loop()

        def say(done: int) -> None:
            progress = RankReply(ask.request, ask.ranks[0], Progress(done, put.nbytes))
            loop.call_soon_threadsafe(self._send, progress)

        try:
            segment = await asyncio.to_thread(get_segment, port, put.transfer, self._way.cluster, put.nbytes, say)
        except (OSError, JdistError) as e:
            for rank in ask.ranks:
                self._send(
                    RankReply(ask.request, rank, QueryFailed(f"the value did not reach {socket.gethostname()}: {e}"))
                )
            return
        segment.close()
        self._brought[ask.request] = (segment, set(ask.ranks))
        for rank in ask.ranks:
            self._forward(rank, RankQuery(ask.request, (rank,), msgspec.structs.replace(put, path=segment.path)))


def _is_here(op: Evaluate | BindNames) -> bool:
    return op.probe is not None and Probe(op.probe.path, op.probe.nonce).is_here()
