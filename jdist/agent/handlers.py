"""Handle each message of the controller, and each event of the node's workers.

The state of the workers is the controller's to know. The agent reports that a worker is up, down or has finished a
cell, and describes what the node holds to a controller that was started again.

The end of a cell travels among the cell's output, which it must not overtake, and is exposed to everything that can go
wrong with output. The worker therefore reports the end on its own socket, too. If no output of the worker arrives after
that report and the end was not among it, the end is lost, and an error takes its place::

    reported ──output arrives──► reported again ──the end arrives──► forgotten
      └── no output for _QUIET looks, or _LONGEST looks in all ──► an error is the end

The time is counted in looks and not by the clock, since an agent that was stopped has to read its backlog first.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from jdist.agent.code_sync import CodeReceiver
from jdist.agent.link import ControllerLink
from jdist.agent.node import NodeContext
from jdist.agent.processes.helpers import StoreSupervisor
from jdist.agent.processes.kernel import InputContent, Kernel, KernelMessage, read_content
from jdist.agent.processes.starter import Prewarmer
from jdist.agent.processes.workers import Workers
from jdist.agent.recovery_ledger import RecoveryLedger
from jdist.agent.relay.iopub import OutputRelay
from jdist.agent.relay.queries import NodeQueries, RankQueries
from jdist.agent.resources import ResourceMeter
from jdist.core import __version__
from jdist.core.messages import debug, membership, runs, saving
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.code import ModuleReply, UseImportPath
from jdist.core.messages.protocol import NodeQuery, RankQuery, ToAgent
from jdist.core.messages.runs import CellEnded, RankDone
from jdist.core.outcome import ErrorInfo
from jdist.core.ranks import RankSet
from jdist.core.settings import END_DELAY, OUTPUT_DELAY
from jdist.core.topology import Topology
from jdist.wire import log
from jdist.wire.processes import say
from jdist.wire.transport.invitations import REFUSED
from jdist.wire.values.frames import Unpacker

_LOOK = 0.25  # Seconds between two looks.
_QUIET = 8  # Looks without output after which the end is lost.
_LONGEST = 240  # Looks after which it is lost although output arrives, as from a thread that never stops writing.


@dataclass
class _Wait:
    """How long an end has been waited for, in looks."""

    quiet: int = 0
    looks: int = 0

    @property
    def is_over(self) -> bool:
        return self.quiet > _QUIET or self.looks > _LONGEST


class LateEnds:
    """``is_due(worker, run)``: whether the end has not arrived. ``report`` is called with what takes its place."""

    def __init__(self, is_due: Callable[[int, int], bool], report: Callable[[RankDone], None]):
        self._is_due = is_due
        self._report = report
        self._waits: dict[tuple[int, int], _Wait] = {}  # By worker and run.
        self._replaced: set[tuple[int, int]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def handle_cell_ended(self, message: CellEnded) -> None:
        if self._is_due(message.worker, message.run):
            self._waits[message.worker, message.run] = _Wait()
            self._look_later()

    def record_output(self, worker: int) -> None:
        """Something of the worker's output has arrived, so that its end may be among what follows."""
        for key, wait in self._waits.items():
            if key[0] == worker:
                wait.quiet = 0

    def take_replaced(self, done: RankDone) -> bool:
        """Whether an error has taken the place of an end that arrives after all."""
        if (done.rank, done.run) not in self._replaced:
            return False
        self._replaced.remove((done.rank, done.run))
        return True

    def _look_later(self) -> None:
        if self._timer is None and self._waits:
            self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._timer = None
        for (worker, run), wait in list(self._waits.items()):
            wait.quiet += 1
            wait.looks += 1
            is_due = self._is_due(worker, run)
            if is_due and not wait.is_over:
                continue
            del self._waits[worker, run]
            if is_due:
                self._replaced.add((worker, run))
                text = "the cell is over, but how it ended did not arrive; every name is kept"
                self._report(RankDone(run, worker, "error", error=ErrorInfo("NotReported", text)))
        self._look_later()


_log = logging.getLogger("jdist.agent")

_FOR_WORKERS = (
    runs.ExecuteCell,
    runs.AbortRun,
    membership.FormWorld,
    debug.PauseRanks,
    debug.ResumeRanks,
    saving.PrepareSave,
    saving.SaveAt,
    saving.GiveUpSave,
)

_from_controller: Unpacker[Any] = Unpacker(ToAgent)
_done: Unpacker[runs.RankDone] = Unpacker(runs.RankDone)
# What else a worker reports among its output.
_reports: dict[str, Unpacker[Any]] = {
    "jdist_paused": Unpacker(debug.RankPaused),
    "jdist_group": Unpacker(membership.GroupMade),
}


@dataclass(frozen=True)
class AgentParts:
    """The parts of an agent that its handlers act on."""

    link: ControllerLink
    workers: Workers
    store: StoreSupervisor
    prewarmer: Prewarmer
    ledger: RecoveryLedger
    relay: OutputRelay
    resources: ResourceMeter
    rank_queries: RankQueries
    node_queries: NodeQueries
    code_sync: CodeReceiver


class ControllerHandlers:
    """Handles the controller's messages. ``finish`` ends the agent with an exit code, after so many seconds at most.

    ``on_may_leave`` is called when nothing is left for which a node whose job ends had to stay.
    """

    def __init__(
        self,
        node: NodeContext,
        parts: AgentParts,
        finish: Callable[[int, float], None],
        on_may_leave: Callable[[], None] = lambda: None,
    ):
        self._node = node
        self._parts = parts
        self._finish = finish
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            membership.Welcome: self.handle_welcome,
            membership.LivenessRenewed: lambda message: parts.link.dial_liveness(message.name),
            membership.Rejected: self._reject,
            RankQuery: parts.rank_queries.handle_query,
            NodeQuery: parts.node_queries.handle_query,
            runs.InputReply: self.handle_input_reply,
            membership.StartWorker: self.handle_start_worker,
            membership.EndWorkers: self.handle_end_workers,
            membership.StartStore: self.handle_start_store,
            UseImportPath: parts.code_sync.use_import_path,
            ModuleReply: self.handle_module_reply,
            saving.KeepAutosave: self.handle_keep_autosave,
            saving.MayLeave: lambda _: on_may_leave(),
            membership.Shutdown: self.handle_shutdown,
        }

    def hello(self) -> membership.AgentHello:
        """The first message of a stream, which describes what is held if this agent has had a place before."""
        parts, options, welcome = self._parts, self._node.options, self._parts.workers.welcome
        place = options.node_rank if welcome is None else welcome.node_rank
        held = (
            None
            if welcome is None
            else parts.ledger.describe(
                parts.workers.kernels, parts.store.address, parts.workers.awaited, parts.link.ends.values()
            )
        )
        return membership.AgentHello(PROTOCOL, __version__, self._node.facts, options.nproc, place, held, options.task)

    def handle(self, data: bytes) -> None:
        """Handle a message; what is for workers is forwarded, most of it as it came."""
        message, parts = _from_controller(data), self._parts
        if not isinstance(message, _FOR_WORKERS):
            self._handlers[type(message)](message)
            return
        if isinstance(message, runs.ExecuteCell):
            if not parts.workers.have_processes(message.workers):
                self._node.send(runs.CellRefused(message.run, message.workers))
                return
            parts.prewarmer.record_started(w for w in message.workers if w in parts.workers.kernels)
        elif isinstance(message, membership.FormWorld):
            self._record_place(message)
        parts.ledger.record(message)
        if isinstance(message, runs.AbortRun):
            parts.workers.abort(message)
        else:
            parts.workers.forward(message.workers, data)

    def _record_place(self, form: membership.FormWorld) -> None:
        """The world is formed in another size: record which of its nodes this one is."""
        workers = self._parts.workers
        rank = next((r for r, worker in enumerate(form.workers) if worker in workers.kernels), None)
        if rank is not None and workers.welcome is not None:
            place = Topology(form.nproc_per_node).place(rank)
            nproc = form.nproc_per_node[place]
            workers.welcome = msgspec.structs.replace(workers.welcome, node_rank=place, nproc=nproc)

    def handle_welcome(self, welcome: membership.Welcome) -> None:
        """Take the place that the controller assigned, and start the workers that it names.

        A second welcome comes from a controller that was started again, and keeps the workers; or the node was given
        up in the meantime: then its workers are void, and fresh ones are named.
        """
        parts = self._parts
        if welcome.log_level and not log.environment():
            os.environ[log.VARIABLE] = welcome.log_level
            log.set_level(welcome.log_level)
        ranks = RankSet(range(welcome.first_rank, welcome.first_rank + welcome.nproc))
        place = "task" if welcome.is_task else "node"
        address = welcome.address or self._node.facts.address
        parts.workers.welcome = msgspec.structs.replace(welcome, address=address)
        parts.relay.line_limit = welcome.output_lines
        parts.prewarmer.is_enabled = welcome.warm
        parts.link.grace = welcome.agent_grace
        parts.link.dial_liveness(welcome.liveness_name)
        if welcome.workers:  # those of another place are void as well
            parts.workers.end(parts.workers.kernels)
        for wanted in welcome.workers:
            self.handle_start_worker(wanted)
        say(f"jdist agent: {place} {welcome.node_rank} of {welcome.nnodes}, ranks {ranks}")

    def handle_start_worker(self, wanted: membership.StartWorker) -> None:
        if self._parts.workers.start(wanted):
            self._parts.ledger.record_start(wanted)

    def handle_end_workers(self, message: membership.EndWorkers) -> None:
        self._parts.workers.end(message.workers)
        self._parts.ledger.record_end(message.workers)

    def handle_keep_autosave(self, message: saving.KeepAutosave) -> None:
        self._parts.ledger.record(message)
        for worker in self._parts.workers.kernels:
            self._parts.workers.send(worker, message)

    def handle_input_reply(self, message: runs.InputReply) -> None:
        kernel = self._parts.workers.kernels.get(message.rank)
        if kernel is not None:
            kernel.reply_input(message.text)

    def handle_module_reply(self, message: ModuleReply) -> None:
        self._parts.workers.send(message.rank, message)

    def handle_start_store(self, message: membership.StartStore) -> None:
        welcome = self._parts.workers.welcome
        node = f"node {welcome.node_rank if welcome else '?'}"
        address = message.host or (welcome.address if welcome else self._node.facts.address)
        self._node.create_task(self._parts.store.start(message, address, node))

    def handle_shutdown(self, message: membership.Shutdown) -> None:
        """End; a second request may give the workers less time."""
        self._finish(0, message.grace)
        say("jdist agent: the cluster has been stopped, or this node removed from it")

    def _reject(self, message: membership.Rejected) -> None:
        self._finish(1, 0.0)
        say(f"jdist agent: {REFUSED} {message.reason}")


class WorkerHandlers:
    """Handles the workers' events: a `WorkerListener`. Once ``is_ending`` is true, no lost worker is reported."""

    def __init__(self, node: NodeContext, parts: AgentParts, is_ending: Callable[[], bool]):
        self._node = node
        self._parts = parts
        self._is_ending = is_ending
        self._flush_timer: asyncio.TimerHandle | None = None
        self._late_ends = LateEnds(parts.ledger.is_in_run, self._handle_done)

    def handle_kernel_message(self, kernel: Kernel, channel: str, message: KernelMessage) -> None:
        """`RankDone`, `RankPaused` and `GroupMade` travel among the output, so that their order is that of the cell."""
        parts = self._parts
        self._late_ends.record_output(kernel.worker)
        if channel == "stdin":
            if message.kind == "input_request":
                request = read_content(message, InputContent)
                self._flush_run(message.run)
                self._node.send(runs.InputRequest(message.run, kernel.worker, request.prompt, request.password))
        elif message.kind == "jdist_done" and message.buffers:
            done = _done(message.buffers[0])
            if not self._late_ends.take_replaced(done):
                self._handle_done(done)
        elif message.kind in _reports and message.buffers:
            self._flush_run(message.run)
            report = _reports[message.kind](message.buffers[0])
            parts.ledger.record(report)
            self._node.send(report)
        elif parts.relay.record(kernel.worker, message) and self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(OUTPUT_DELAY, self._flush)

    def _handle_done(self, done: runs.RankDone) -> None:
        """A cell has ended on a worker, or its end was lost."""
        parts = self._parts
        self._flush_run(done.run)
        parts.ledger.record(done)
        self._node.send(done, END_DELAY if parts.ledger.has_run(done.run) else 0.0)
        parts.relay.end_rank(done.run, done.rank)
        parts.prewarmer.record_ended(done.rank)

    def _flush_run(self, run: int) -> None:
        """Send what has gathered; what cannot be sent must not hold up the end that follows."""
        with log.logged_faults(_log, f"the last output of run {run} was not sent"):
            self._parts.relay.flush(run)

    def _flush(self) -> None:
        self._flush_timer = None
        self._parts.relay.flush()

    def handle_worker_message(self, message: Any) -> None:
        parts = self._parts
        if isinstance(message, runs.CellEnded):
            self._late_ends.handle_cell_ended(message)
        elif parts.rank_queries.record_reply(message):
            parts.ledger.record(message)
            self._node.send(parts.resources.with_gpu(message))

    def handle_up(self, kernel: Kernel) -> None:
        _log.info("worker %d is up: process %d", kernel.worker, kernel.pid)
        for message in self._parts.code_sync.greetings():
            self._parts.workers.send(kernel.worker, message)
        if self._parts.ledger.autosave.options is not None:
            self._parts.workers.send(kernel.worker, self._parts.ledger.autosave)
        wanted = kernel.wanted
        up = membership.WorkerUp(kernel.worker, kernel.pid, wanted.incarnation, kernel.inherits, kernel.why_fresh)
        self._node.send(up)
        self._parts.prewarmer.record_ended(kernel.worker)

    def handle_exit(self) -> None:
        self._parts.relay.flush()

    def handle_overdue(self, overdue: membership.EndOverdue) -> None:
        _log.warning("worker %d did not end in time: %s", overdue.worker, overdue.doing or "it did not answer")
        self._node.send(overdue)

    def handle_down(self, down: membership.WorkerDown) -> None:
        _log.info("worker %d is down: %s", down.worker, down.reason)
        if not self._is_ending():
            self._parts.prewarmer.record_ended(down.worker)
            self._node.send(msgspec.structs.replace(down, last_run=self._parts.ledger.last_run))
