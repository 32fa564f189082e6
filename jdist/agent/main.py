"""The agent's life: dial the controller, start this node's workers, pass messages both ways, end when told or orphaned.

States, and who changes them: *gathering* (workers starting) → *serving*, by the workers' hellos; *ended* by Quit, a
refusal, SIGTERM, or an uplink that has given the controller up. A second welcome comes from a controller that was
started again, and keeps the workers; or this agent was given up in between: its workers are void, and fresh ones take
their places. A worker's own state is the controller's to know; the agent reports only up, down and done, and describes
what it holds to a controller that does not know.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import shutil
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec

from jdist.agent.code.sync import Syncing
from jdist.agent.link.controller_link import Uplink
from jdist.agent.link.data_gateway import Gateway
from jdist.agent.link.enrolment import enrol
from jdist.agent.link.leave_reason import why_terminated
from jdist.agent.node.facts import node_facts
from jdist.agent.node.gpus import Sight
from jdist.agent.node.join_options import Wish, read_wish
from jdist.agent.processes.kernel import Kernel, Starter
from jdist.agent.processes.store_keeper import StoreKeeper, watch_end
from jdist.agent.processes.workers import House, Workers, under_its_rank
from jdist.agent.recovery_ledger import Holdings
from jdist.agent.relay.gpu_meter import Meter
from jdist.agent.relay.iopub import KernelMessage, Relay, read_request
from jdist.agent.relay.node_queries import NodeAnswers
from jdist.agent.relay.rank_queries import Questions
from jdist.agent.starters.fork import Nursery
from jdist.agent.starters.spawn import FreshInterpreter
from jdist.agent.starters.warming import Warming
from jdist.core import __version__
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.code import CodeSynced
from jdist.core.messages.groups import FormWorld, StartStore
from jdist.core.messages.membership import (
    AgentHello,
    AgentLeaving,
    LivenessRenewed,
    Rejected,
    Renumber,
    Renumbered,
    ReplaceWorker,
    Shutdown,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from jdist.core.messages.protocol import NodeQuery, RankQuery, ToAgent
from jdist.core.messages.runs import AbortRun, ExecuteCell, InputReply, InputRequest, RankDone
from jdist.core.ranks import RankSet
from jdist.core.settings import BEAT, OUTPUT_DELAY
from jdist.core.topology import Topology
from jdist.wire.processes import become_subreaper
from jdist.wire.transport import directories
from jdist.wire.transport.invitations import JOINED, REFUSED, Endpoint, JoinLine
from jdist.wire.transport.sockets import new_context
from jdist.wire.values.frames import Unpacker, pack
from jdist.wire.values.segments import sweep, sweep_dead

_LAST_WORDS = 0.5
"""Seconds for the last messages to leave."""

_from_controller: Unpacker[Any] = Unpacker(ToAgent)
_done: Unpacker[RankDone] = Unpacker(RankDone)


class Agent:
    """One node's agent; or a task's, which is one rank."""

    def __init__(self, context: Any, way: Endpoint, starter: Starter, wish: Wish):
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._begin_leaving)  # before there is a folder
        self._way = way
        self._starter = starter
        self._wish = wish
        self._directory = directories.make(way.cluster)
        self._warming = Warming(starter, self._keep)
        self._relay = Relay(self._send, self._directory)
        self._flush_handle: asyncio.TimerHandle | None = None
        self._facts = node_facts((way.host, way.control_port))
        self._address = self._facts.address
        """At which the other nodes reach this one."""
        self._welcome: Welcome | None = None
        self._is_leaving = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._store = StoreKeeper(starter, self._directory, self._send, self._keep)
        self._holdings = Holdings()
        self._gateway: Gateway | None = None
        self._uplink = Uplink(context, way, self._hello, self._on_controller, self._give_up)
        house = House(context, self._directory, way.cluster, starter, wish, self._facts.gpus)
        self._workers = Workers(house, self, self._keep)
        sight = Sight(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER", ""))
        self._meter = Meter(self._workers.kernels, sight, self._facts.gpus, self._send)
        self._questions = Questions(way, self._relay, self._workers.kernels, self._meter, self._workers.send)
        self._syncing = Syncing(way, self._to_workers)
        self._node_answers = NodeAnswers(self._facts, starter, self._directory, self._send, self._keep, self._syncing)

    async def run(self) -> int:
        """Serve until the end; the exit code."""
        self._uplink.greet()
        self._keep(self._beat())  # also while other nodes are still missing
        try:
            return await self._over
        finally:
            self._end()

    def _hello(self) -> Message:
        welcome = self._welcome
        wish = self._wish
        place = wish.node_rank if welcome is None else welcome.node_rank
        held = None if welcome is None else self._holdings.describe(self._workers.kernels, self._store.address)
        return AgentHello(PROTOCOL, __version__, self._facts, wish.nproc, place, held, wish.task)

    def _send(self, message: Message) -> None:
        self._uplink.send(message)

    def _give_up(self, reason: str) -> None:
        print(f"jdist agent: {reason}; ending this node's workers", file=sys.stderr)
        self._finish_with(1)

    def end_with_server(self) -> None:
        """What this agent belongs to is gone."""
        print("jdist agent: the server that it was started on has ended; ending this node's workers", file=sys.stderr)
        self._finish_with(0)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            print(f"jdist agent: {task.exception()!r}; ending this node's workers", file=sys.stderr)
            self._finish_with(1)  # an agent that cannot do its part must not look as if it could

    # ------------------------------------------------------------ from the controller

    def _on_controller(self, data: bytes) -> None:
        message = _from_controller(data)
        match message:
            case Welcome():
                self._settle(message)
            case LivenessRenewed():
                self._uplink.dial_liveness(message.name)
            case Rejected():
                print(f"jdist agent: {REFUSED} {message.reason}", file=sys.stderr)
                self._finish_with(1)
            case ExecuteCell() | FormWorld() | AbortRun():
                if isinstance(message, ExecuteCell):
                    self._warming.began(r for r in message.ranks if r in self._workers.kernels)
                self._holdings.note(message)
                self._workers.forward(message.ranks, data)
            case RankQuery():
                self._questions.take(message)
            case NodeQuery():
                self._node_answers.take(message)
            case InputReply():
                if (kernel := self._workers.kernels.get(message.rank)) is not None:
                    kernel.reply_input(message.text)
            case ReplaceWorker():
                self._replace(message.rank, message.incarnation)
            case Renumber():
                self._renumber(message)
            case StartStore():
                node = f"node {self._welcome.node_rank if self._welcome else '?'}"
                self._keep(self._store.start(message, message.host or self._address, node))
            case Shutdown():
                print("jdist agent: the cluster has been stopped, or this node removed from it", file=sys.stderr)
                self._finish_with(0)

    def _finish_with(self, code: int) -> None:
        if not self._over.done():
            self._over.set_result(code)

    def _begin_leaving(self) -> None:
        """SIGTERM: a scheduler ends the node's job, or somebody this agent. Its workers may have got it as well."""
        if not self._is_leaving:
            self._is_leaving = True
            self._keep(self._leave())

    async def _leave(self) -> None:
        self._send(AgentLeaving(await why_terminated(os.environ)))
        self._finish_with(0)

    def _settle(self, welcome: Welcome) -> None:
        """Take the place the controller gave, and start the workers."""
        self._welcome = welcome
        ranks = RankSet(range(welcome.first_rank, welcome.first_rank + welcome.nproc))
        place = "task" if welcome.is_task else "node"
        print(f"jdist agent: {place} {welcome.node_rank} of {welcome.nnodes}, ranks {ranks}", file=sys.stderr)
        self._address = welcome.address or self._facts.address
        self._workers.settle(welcome, self._address)
        self._relay.set_limit(welcome.output_lines)
        self._warming.is_wanted = welcome.warm
        self._uplink.grace = welcome.agent_grace
        self._uplink.dial_liveness(welcome.liveness_name)
        if self._gateway is None:
            data_port = (self._way.host, self._way.data_port)
            self._gateway = Gateway(str(self._directory / "handover"), data_port)
        if welcome.incarnations:  # those of another place, or another numbering, are void as well
            self._workers.dismiss()
        for n, incarnation in enumerate(welcome.incarnations):
            self._replace(welcome.first_rank + n, incarnation)

    def _renumber(self, message: Renumber) -> None:
        """The world has another size: some ranks end, and what is said from here on is in the others' new numbers."""
        if self._welcome is None:
            return
        self._meter.flush()
        self._relay.renumber(message.ranks)
        self._questions.renumber(message.ranks)
        self._holdings.renumber(message)
        self._workers.renumber(message.ranks)
        self._welcome = msgspec.structs.replace(
            self._welcome,
            node_rank=message.node_rank,
            nnodes=len(message.nproc_per_node),
            nproc=len(message.ranks),
            first_rank=Topology(message.nproc_per_node).first_rank(message.node_rank),
        )
        self._workers.settle(self._welcome, self._address)
        self._send(Renumbered())

    def _replace(self, rank: int, incarnation: int) -> None:
        if self._workers.replace(rank, incarnation):
            self._holdings.began(rank, incarnation)

    async def _beat(self) -> None:
        while True:
            self._uplink.beat()
            sweep_dead(self._way.cluster)
            self._workers.tick()
            await asyncio.sleep(BEAT)

    # ------------------------------------------------------------ from the workers (see workers.Listener)

    def on_kernel(self, kernel: Kernel, channel: str, message: KernelMessage) -> None:
        if channel == "iopub":
            self._on_iopub(kernel, message)
        elif channel == "stdin" and message.kind == "input_request":
            prompt, is_password = read_request(message.content)
            self._relay.flush(message.run)
            self._send(InputRequest(message.run, kernel.rank, prompt, is_password))

    def _on_iopub(self, kernel: Kernel, message: KernelMessage) -> None:
        if message.kind == "jdist_done" and message.buffers:
            self._relay.flush(message.run)
            done = under_its_rank(kernel, _done(message.buffers[0]))
            self._holdings.note(done)
            self._meter.outdate()
            self._send(done)
            self._relay.forget(message.run, kernel.rank)
            self._warming.ended(kernel.rank)
        elif self._relay.take(kernel.rank, message):
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_later(OUTPUT_DELAY, self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        self._relay.flush()

    def on_hello(self, kernel: Kernel) -> None:
        if self._syncing.folders:
            self._workers.send(kernel.rank, CodeSynced(self._syncing.folders, ()))

    def on_worker(self, message: Any) -> None:
        if not self._questions.is_late(message):
            self._questions.note(message)
            self._holdings.note(message)
            self._meter.pass_on(message)

    def _to_workers(self, message: Message) -> None:
        self._workers.forward(tuple(self._workers.kernels), pack(message))

    def on_up(self, kernel: Kernel) -> None:
        self._send(WorkerUp(kernel.rank, kernel.pid, kernel.place.incarnation))
        self._warming.ended(kernel.rank)

    def on_exit(self) -> None:
        self._relay.flush()

    def on_down(self, rank: int, incarnation: int, reason: str) -> None:
        if not self._is_leaving and not self._over.done():
            self._warming.ended(rank)
            self._send(WorkerDown(rank, incarnation, reason))

    # ------------------------------------------------------------ the end

    def _end(self) -> None:
        """Leave no process, socket file or shared memory behind."""
        for task in self._tasks:
            task.cancel()
        self._store.end()
        self._warming.stop()
        self._workers.close()
        if self._gateway is not None:
            self._gateway.close()
        self._uplink.close(linger=_LAST_WORDS)
        self._relay.close()
        self._syncing.close()
        sweep(self._way.cluster)
        shutil.rmtree(self._directory, ignore_errors=True)


async def _serve(read_line: Any, nproc: int, node_rank: int, fork: bool, until: int) -> int:
    wish = read_wish(nproc, node_rank)  # before anything is started, which would inherit what this takes away
    become_subreaper()
    faulthandler.enable()  # an end in C code leaves its stacks in the log
    # torch looks up the names of its store's peers: a name server that drops packets must not cost 5 s each time
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # debugpy's advice would stand in the ranks' output
    starter: Starter = Nursery() if fork else FreshInterpreter()
    context = new_context()
    try:
        way = await enrol(context, JoinLine.decode(await asyncio.to_thread(read_line)))
    except BaseException:
        starter.close()
        raise
    print(f"jdist agent: {JOINED} {way.host}:{way.control_port}; waiting for the other nodes", file=sys.stderr)
    agent = Agent(context, way, starter, wish)
    if until:
        watch_end(until, agent.end_with_server)
    return await agent.run()


def main(read_line: Any, nproc: int = 0, node_rank: int = -1, fork: bool = True, until: int = 0) -> int:
    """Run an agent; ``read_line`` gives the join line when it is known (imports go on meanwhile). The exit code.

    ``until``: a process with which it ends, though that is not its parent; 0: none.
    """
    return asyncio.run(_serve(read_line, nproc, node_rank, fork, until))
