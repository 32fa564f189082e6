"""The agent's life: join the controller, start workers, pass messages both ways, end on request or as an orphan.

States, and what changes them: *gathering* (workers starting) → *serving*, by the workers' hellos; *ended* by Shutdown,
a rejection, SIGTERM, or a controller that has been unreachable for longer than the grace.
"""

import asyncio
import contextlib
import faulthandler
import logging
import os
import shutil
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from jdist.agent.code_sync import CodeReceiver
from jdist.agent.handlers import AgentParts, ControllerHandlers, WorkerHandlers
from jdist.agent.link import ControllerLink, DataGateway, enrol
from jdist.agent.node import CudaVisibility, JoinOptions, NodeContext, node_facts, read_join_options
from jdist.agent.processes.exits import why_terminated
from jdist.agent.processes.helpers import StoreSupervisor
from jdist.agent.processes.starter import ForkStarter, Prewarmer, SpawnStarter, Starter
from jdist.agent.processes.workers import Workers
from jdist.agent.recovery_ledger import RecoveryLedger
from jdist.agent.relay.iopub import OutputRelay, RankLogs
from jdist.agent.relay.queries import NodeQueries, RankQueries
from jdist.agent.resources import ResourceMeter
from jdist.core.messages.membership import AgentLeaving
from jdist.core.messages.saving import EndAnnounced
from jdist.core.settings import BEAT
from jdist.wire import awake_loop, log
from jdist.wire.processes import become_subreaper, on_exit, say
from jdist.wire.transport import keys
from jdist.wire.transport.invitations import JOINED, Endpoint, JoinLine
from jdist.wire.transport.sockets import new_context
from jdist.wire.values.frames import pack
from jdist.wire.values.segments import sweep, sweep_dead

_log = logging.getLogger("jdist.agent")

_LINGER = 0.5  # Seconds for the last messages to leave.


class Agent:
    """The agent of one node; or of one launcher task, which is one rank."""

    def __init__(self, zmq_context: Any, endpoint: Endpoint, starter: Starter, options: JoinOptions):
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = loop.create_future()
        self._end_grace: float | None = None  # Seconds for workers to end, once the agent is to end.
        self._is_leaving = False
        self._stays_until: asyncio.TimerHandle | None = None  # The end of the wait for a last save.
        loop.add_signal_handler(signal.SIGTERM, self._handle_sigterm)  # before there is a folder
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self._announce_end, number)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._link = ControllerLink(zmq_context, endpoint, lambda reason: self._finish(1, reason=reason))
        facts = node_facts((endpoint.host, endpoint.control_port), is_carried=endpoint.is_carried)
        directory = keys.make(endpoint.cluster)
        self._node = node = NodeContext(
            zmq_context, endpoint, options, facts, directory, starter, self._link.send, self._create_task
        )
        self._logs = logs = RankLogs(node.directory)
        self._gateway = DataGateway(str(node.directory / "handover"), node.data_port)
        visibility = CudaVisibility(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER", ""))
        workers = Workers(node)
        agents = max(1, options.task.local_size) if options.task is not None else 1
        resources = ResourceMeter(workers.kernels, visibility, node.facts.gpus, agents=agents)
        code_sync = CodeReceiver(node, lambda message: workers.forward(tuple(workers.kernels), pack(message)))
        self._parts = parts = AgentParts(
            link=self._link,
            workers=workers,
            store=StoreSupervisor(node),
            prewarmer=Prewarmer(starter, self._create_task),
            ledger=RecoveryLedger(),
            relay=OutputRelay(node.send, logs),
            resources=resources,
            rank_queries=RankQueries(node, workers, logs, resources),
            node_queries=NodeQueries(node, code_sync, resources, workers.kernels),
            code_sync=code_sync,
        )
        workers.listener = WorkerHandlers(node, parts, lambda: self._is_leaving or self._over.done())
        self._controller_handlers = ControllerHandlers(node, parts, self._finish, self._handle_may_leave)

    async def run(self) -> int:
        """Serve until the end; the exit code."""
        self._link.open(self._controller_handlers.hello, self._controller_handlers.handle)
        sweep_dead()  # of other clusters as well
        self._create_task(self._beat(), self._end_on_fault)  # also while other nodes are still missing
        self._create_task(self._parts.resources.run())
        try:
            code = await self._over
            with contextlib.suppress(TimeoutError):
                await self._parts.workers.end_all(self._end_grace or 0.0)
            return code
        finally:
            self._close()

    async def _beat(self) -> None:
        while True:
            self._link.beat()
            with log.logged_faults(_log, "what ranks have left behind could not be looked for"):
                sweep_dead(self._node.endpoint.cluster)
                self._parts.workers.oom.tick()
            await asyncio.sleep(BEAT)

    def _create_task(
        self, work: Coroutine[Any, Any, None], on_fault: Callable[[BaseException], None] | None = None
    ) -> None:
        """Run it as a task. A fault in it is logged: no single task is worth the names of the node's ranks."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._handle_task_end, on_fault))

    def _handle_task_end(self, on_fault: Callable[[BaseException], None] | None, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("a task of this agent failed: %r", fault, exc_info=fault)
            if on_fault is not None:
                on_fault(fault)

    def _end_on_fault(self, fault: BaseException) -> None:
        """An agent that cannot do its part must not look as if it could."""
        self._finish(1, reason=repr(fault))

    # ------------------------------------------------------------ the end

    def _finish(self, code: int, grace: float | None = None, *, reason: str = "") -> None:
        """End the workers, for which they have ``grace`` seconds, and then the agent. Called again, it may be less."""
        if reason:
            _log.log(logging.ERROR if code else logging.WARNING, "%s; ending this node's workers", reason)
        if grace is None:
            welcome = self._parts.workers.welcome
            grace = welcome.end_grace if welcome is not None else 0.0
        if not self._over.done():
            self._link.is_leaving = True
            self._end_grace = grace
            self._over.set_result(code)
        elif grace <= 0:
            self._parts.workers.kill_all()

    def handle_server_exit(self) -> None:
        """End because the Jupyter server that this agent was started on has ended."""
        self._finish(0, reason="the server that it was started on has ended")

    def _handle_sigterm(self) -> None:
        """A scheduler ends the node's job, or a user ends this agent. The workers may have got the signal as well.

        Where sessions are saved by themselves, the agent stays until that is done, or for its grace.
        """
        if self._stays_until is not None or self._is_leaving:
            return
        if not self._announce_end(signal.SIGTERM):
            self._begin_to_leave()
            return
        grace = self._parts.ledger.autosave.grace
        self._stays_until = asyncio.get_running_loop().call_later(grace, self._begin_to_leave)

    def _announce_end(self, number: signal.Signals) -> bool:
        """Tell the controller that the node's job is about to end; False if sessions are not saved by themselves."""
        if self._parts.ledger.autosave.options is None:
            _log.info("got %s; sessions are not saved by themselves", number.name)
            return False
        self._link.send(EndAnnounced(number.name))
        return True

    def _handle_may_leave(self) -> None:
        """The session has been saved; after SIGUSR1 or SIGUSR2, the job goes on for a while."""
        if self._stays_until is not None:
            self._begin_to_leave()

    def _begin_to_leave(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self._create_task(self._leave(), self._end_on_fault)

    async def _leave(self) -> None:
        self._link.send(AgentLeaving(await why_terminated(os.environ)))
        self._finish(0)

    def _close(self) -> None:
        """Leave no process, socket file or shared memory behind."""
        for task in self._tasks:
            task.cancel()
        self._parts.store.end()
        self._parts.prewarmer.stop()
        self._parts.workers.close()
        self._parts.resources.close()
        self._gateway.close()
        self._link.close(_LINGER)
        self._logs.flush()
        self._parts.code_sync.folder.close()
        sweep(self._node.endpoint.cluster)
        shutil.rmtree(self._node.directory, ignore_errors=True)


async def _serve(read_line: Any, nproc: int, node_rank: int, fork: bool, until: int) -> int:
    log.configure("agent")
    options = read_join_options(nproc, node_rank)  # before anything is started that would inherit what this removes
    become_subreaper()
    faulthandler.enable()  # an end in C code leaves its stacks in the log
    # torch looks up the names of its store's peers: a name server that drops packets must not cost 5 s each time
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # debugpy's advice would stand in the ranks' output
    starter: Starter = ForkStarter() if fork else SpawnStarter()
    zmq_context = new_context()
    try:
        endpoint = await enrol(zmq_context, JoinLine.decode(await asyncio.to_thread(read_line)))
    except BaseException:
        starter.close()
        raise
    at = f"{endpoint.host}:{endpoint.control_port}"
    say(f"jdist agent: {JOINED} {at}; waiting for the other nodes")
    agent = Agent(zmq_context, endpoint, starter, options)
    if until:
        on_exit(until, agent.handle_server_exit)
    return await agent.run()


def main(read_line: Any, nproc: int = 0, node_rank: int = -1, fork: bool = True, until: int = 0) -> int:
    """Run an agent; ``read_line`` returns the join line once it is known (imports go on meanwhile). The exit code.

    ``until``: a process with which the agent ends, though that is not its parent; 0: none.
    """
    code: int = awake_loop.run(_serve(read_line, nproc, node_rank, fork, until))
    return code
