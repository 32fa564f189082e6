"""Nodes without ranks: agents in one process that speak the real protocol over real sockets and run nothing.

    python -m measuring.nodes NODES NPROC        with the join line on standard input

Each enrols, joins, and answers for its ranks at once: a cell of ``lines N`` says so many lines, the same on every rank,
as an agent passes them on; in ``hang`` the last rank ends, and all others wait for it in a collective; any other cell
ends without a word.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from functools import partial
from typing import Any

import jdist
from jdist.agent.link import ControllerLink, enrol
from jdist.agent.node import node_facts
from jdist.core.messages.base import PROTOCOL, Message, QueryFailed
from jdist.core.messages.membership import (
    AgentHello,
    FormWorld,
    LivenessRenewed,
    Rejected,
    Shutdown,
    StartStore,
    StoreUp,
    Welcome,
    WorkerUp,
    WorldFormed,
)
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, Observe, Stalled
from jdist.core.messages.protocol import RankQuery, RankReply, ToAgent
from jdist.core.messages.runs import AbortRun, ExecuteCell, Output, RankDone, Text
from jdist.core.settings import BEAT
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.sockets import new_context
from jdist.wire.values.frames import Unpacker

_AT_ONCE = 16
"""Nodes that enrol side by side."""
_CHUNK = 100
"""Lines that an agent gathers before it sends them on, as of a loop that prints as fast as it can."""

_MISSED = Call("all_reduce", "0", 8, ((16,),), ("float32",), line=1)
"""The collective that the last rank does not enter."""
_WAITS = Activity("collective", "all_reduce", 1, seconds=1.0, calls=(_MISSED,))

_unpack: Unpacker[Any] = Unpacker(ToAgent)


class Node:
    """One agent and its ranks."""

    def __init__(self, context: Any, way: Any, number: int, nproc: int):
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._number = number
        self._nproc = nproc
        self._first = 0
        self._world: tuple[int, ...] = ()
        self._generation = 0
        self._waiting: set[int] = set()  # Ranks in the collective that the last rank does not enter.
        self._facts = node_facts((way.host, way.control_port))
        self._link = ControllerLink(context, way, self._end)
        self._link.open(self._hello, self._on_message)

    def _hello(self) -> Message:
        return AgentHello(PROTOCOL, jdist.__version__, self._facts, self._nproc, self._number)

    def _end(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    def beat(self) -> None:
        self._link.beat()

    def close(self) -> None:
        self._link.close(linger=0.2)

    def _on_message(self, data: bytes) -> None:
        message = _unpack(data)
        match message:
            case Welcome():
                self._settle(message)
            case LivenessRenewed():
                self._link.dial_liveness(message.name)
            case StartStore():
                self._link.send(StoreUp("127.0.0.1", 29500))
            case FormWorld():
                self._form(message)
            case ExecuteCell():
                self._run(message)
            case AbortRun():
                self._waiting.clear()
                for worker in message.workers:
                    self._link.send(RankDone(message.run, worker, "interrupted"))
            case RankQuery():
                for worker in message.ranks:
                    self._link.send(RankReply(message.request, worker, self._answer(worker, message.op)))
            case Rejected():
                self._end(message.reason)
            case Shutdown():
                self._end("")

    def _settle(self, welcome: Welcome) -> None:
        self._workers = {each.worker for each in welcome.workers}
        self._link.grace = welcome.agent_grace
        self._link.dial_liveness(welcome.liveness_name)
        for n, each in enumerate(welcome.workers):
            self._link.send(WorkerUp(each.worker, 1000 + n, each.incarnation))

    def _form(self, form: FormWorld) -> None:
        self._generation = form.generation
        self._world = tuple(range(form.world_size))
        for worker in self._workers.intersection(form.workers):
            self._link.send(WorldFormed(worker, form.generation, "cpu", (("127.0.0.1", 30000 + worker),)))

    def _run(self, cell: ExecuteCell) -> None:
        words = cell.spec.code.split()
        for begin in range(0, int(words[1]) if words[:1] == ["lines"] else 0, _CHUNK):
            text = "".join(f"step {n} loss {n / 7}\n" for n in range(begin, begin + _CHUNK))
            self._link.send(Output(cell.run, (Text(cell.workers, "stdout", text),)))
        if words == ["hang"]:
            self._waiting = set(cell.workers) - {self._world[-1]}
        for worker in cell.workers:
            is_over = worker not in self._waiting
            self._link.send(RankDone(cell.run, worker, "value", 0.001) if is_over else Stalled(worker, cell.run))

    def _answer(self, worker: int, op: object) -> Any:
        if not isinstance(op, Observe):
            return QueryFailed("this rank is made up")
        if worker in self._waiting:
            return Observation("cpu", _WAITS, 100_000_000, (GroupProgress.of("0", self._world, 8, 7, "world"),))
        groups = (GroupProgress.of("0", self._world, 7, 7, "world"),)
        return Observation("cpu", Activity("idle", seconds=1.0, cpu=0.0), 100_000_000, groups)


async def serve(line: JoinLine, nodes: int, nproc: int) -> None:
    """Until the cluster is over. Raises RuntimeError when a node was refused."""
    context = new_context()
    context.max_sockets = 4 * nodes + 1024  # zmq's own limit is 1023
    limit = asyncio.Semaphore(_AT_ONCE)

    async def join(number: int) -> Node:
        async with limit:
            return Node(context, await enrol(context, line), number, nproc)

    here = await asyncio.gather(*map(join, range(nodes)))
    over = asyncio.gather(*(node.over for node in here))
    while not over.done():
        for node in here:
            node.beat()
        await asyncio.wait([over], timeout=BEAT)
    reasons = {reason for reason in over.result() if reason}
    for node in here:
        node.close()
    await asyncio.sleep(0.3)
    if reasons:
        raise RuntimeError("; ".join(sorted(reasons)))


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    nodes, nproc = map(int, sys.argv[1:3])
    read = partial(sys.stdin.readline)
    asyncio.run(serve(JoinLine.decode(read()), nodes, nproc))


if __name__ == "__main__":
    main()
