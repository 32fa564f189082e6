"""Workers: the processes of this node's ranks. They are started and replaced; their ends are explained.

A worker is *starting* until its process has sent its hello and its output is received, then *up*, until it ends by
itself or is dismissed, after which nothing more of it is reported but its output. A process that is *leaving* has been
asked to end, or hands its names over; its successor is started once it is gone. Only this module adds and removes
workers; a `WorkerListener` is called on the running loop.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Protocol

from msgspec import structs

from jdist.agent.node import NodeContext, interface_environment
from jdist.agent.processes.exits import ChildReaper, OomMonitor, explain_exit, signal_of
from jdist.agent.processes.handover import HandoverServer
from jdist.agent.processes.helpers import SIGNAL as STACK_SIGNAL
from jdist.agent.processes.kernel import Kernel, KernelMessage, parse
from jdist.core.errors import LaunchError
from jdist.core.launchers import WORKER
from jdist.core.messages.base import Message
from jdist.core.messages.membership import (
    EndOverdue,
    RequestHandover,
    Shutdown,
    StartWorker,
    Welcome,
    WorkerDown,
    WorkerFails,
    WorkerHello,
)
from jdist.core.messages.protocol import WorkerMessage
from jdist.core.messages.runs import AbortRun, InterruptHeard
from jdist.core.settings import WorkerSpec
from jdist.wire import log
from jdist.wire.transport.sockets import bind_ipc
from jdist.wire.values.frames import Unpacker, pack
from jdist.wire.values.segments import sweep_dead

_log = logging.getLogger("jdist.agent")

_CHILDREN_END_TIMEOUT = 5.0  # Seconds for killed children to be gone.
_UP_TIMEOUT = 120.0  # Seconds for a worker's process to be ready for cells.
_TOGETHER = 0.25  # Seconds within which signals to all processes of a node reach the last of them.
_OVERDUE = 1.0  # Seconds beyond its grace in which a worker says what it is doing, and ends.

_from_worker: Unpacker[Any] = Unpacker(WorkerMessage)


class WorkerListener(Protocol):
    """Called with what workers send and with what becomes of them."""

    def handle_kernel_message(self, kernel: Kernel, channel: str, message: KernelMessage) -> None: ...
    def handle_worker_message(self, message: Any) -> None: ...  # Any but its hello.
    def handle_up(self, kernel: Kernel) -> None: ...  # It is ready for cells.
    def handle_exit(self) -> None: ...  # A process has ended; all its output has been read.
    def handle_down(self, down: WorkerDown) -> None: ...  # It has lost its process, or got none, or is about to.
    def handle_overdue(self, overdue: EndOverdue) -> None: ...  # It had to be killed when it should have ended.


class Workers:
    """The kernels by worker id, and the socket for messages to and from their workers."""

    listener: WorkerListener

    def __init__(self, node: NodeContext):
        self.welcome: Welcome | None = None  # The node's place in the world, and its address there.
        self._node = node
        self.kernels: dict[int, Kernel] = {}
        self.oom = OomMonitor()  # To be ticked with every heartbeat.
        self._numbers = itertools.count()
        self._reaper = ChildReaper()
        self._socket_path = str(node.directory / "agent")
        self._socket = bind_ipc(node.zmq_context, self._socket_path, self._handle_frames)
        self._leaving: dict[int, Kernel] = {}  # Those that are down for others until their processes have ended.
        self._ending: set[Kernel] = set()  # Those that have been killed and whose end has not been heard of.
        self._all_ended = asyncio.Event()
        self._names_path = str(node.directory / "names")
        self.handover = HandoverServer(self._names_path, self._kernel_of, self._handle_failure, node.create_task)

    def start(self, wanted: StartWorker) -> bool:
        """Start a fresh process once what is left of the worker's last one has ended; False if that is down already.

        That one is asked to end, or to hand its names over. A second request kills it.
        """
        if wanted.worker not in self._leaving:
            if wanted.keeps_names:
                self._request_handover(wanted.worker)
            else:
                self._request_end(wanted.worker, self._end_grace)
        leaving = self._leaving.get(wanted.worker)
        if leaving is not None and leaving.successor is None:
            leaving.successor = wanted
            return True
        if leaving is not None:
            self.kill((wanted.worker,))
        return self._begin(wanted)

    @property
    def awaited(self) -> set[int]:
        """Workers whose processes start once those before them have ended."""
        return {worker for worker, kernel in self._leaving.items() if kernel.successor is not None}

    @property
    def _end_grace(self) -> float:
        return self.welcome.end_grace if self.welcome is not None else 0.0

    def _request_handover(self, worker: int) -> None:
        """Ask a process to hand its names over and to end; from now on nothing more of it is reported."""
        kernel = self._request(worker, RequestHandover())
        if kernel is not None:
            self.handover.await_answer(kernel)

    def _request_end(self, worker: int, grace: float) -> None:
        """Ask a process to end as a kernel does; one that is not up yet, or has no time for that, is killed."""
        kernel = self.kernels.get(worker)
        if kernel is None or not kernel.is_up or grace <= 0:
            return
        if self._request(worker, Shutdown(grace, time.monotonic())) is not None:
            kernel.await_interrupt()
            asyncio.get_running_loop().call_later(grace + _OVERDUE, self._kill_overdue, kernel, grace)

    def _request(self, worker: int, message: Message) -> Kernel | None:
        """Send a process a message after which it ends; None if it has ended already."""
        kernel = self.kernels.get(worker)
        if kernel is None or not self._socket.send([kernel.identity, pack(message)]):
            return None
        kernel.is_dismissed = True
        self._leaving[worker] = self.kernels.pop(worker)
        return kernel

    def _kill_overdue(self, kernel: Kernel, grace: float) -> None:
        """Kill a process that has neither ended nor said what it is doing."""
        if self._leaving.get(kernel.worker) is kernel and not kernel.has_ended:
            self._node.create_task(self._report_overdue(kernel, grace))

    async def _report_overdue(self, kernel: Kernel, grace: float) -> None:
        if not kernel.is_overdue:
            why = await kernel.explain_silence()
            self.listener.handle_overdue(EndOverdue(kernel.worker, kernel.wanted.rank, grace, why))
        kernel.kill()

    def _begin(self, wanted: StartWorker) -> bool:
        kernel = self.kernels.pop(wanted.worker, None)
        if kernel is not None:
            self._dismiss(kernel)
        number, gpu_index = next(self._numbers), self._free_gpu()
        try:
            kernel = Kernel(self._node, number, wanted, gpu_index, self._handle_kernel_frames, self._handle_exit)
        except OSError as e:
            self.listener.handle_down(WorkerDown(wanted.worker, wanted.incarnation, str(e)))
            return False
        self.kernels[wanted.worker] = kernel
        self._node.create_task(self._start(kernel))
        return True

    def end(self, workers: Iterable[int]) -> None:
        """End these for good, within the grace; nothing more of them is reported but their output."""
        for worker in tuple(workers):
            self._request_end(worker, self._end_grace)
            if worker in self.kernels:
                self.kill((worker,))
            self.handover.forget(worker)

    async def end_all(self, grace: float) -> None:
        """End all workers side by side, and wait until they have ended. Those whose grace is over are killed."""
        for worker in tuple(self.kernels):
            self._request_end(worker, grace)
        self.kill(self.kernels if grace > 0 else {*self.kernels, *self._leaving})
        for worker, kernel in tuple(self._leaving.items()):
            if kernel.successor is not None and kernel.successor.keeps_names:
                self.kill((worker,))  # the names are not needed any more
            kernel.successor = None
        async with asyncio.timeout(grace + _OVERDUE + _CHILDREN_END_TIMEOUT):
            while self._leaving:
                self._all_ended.clear()
                await self._all_ended.wait()

    def kill(self, workers: Iterable[int]) -> None:
        """Kill these; nothing more of them is reported."""
        for worker in tuple(workers):
            for kernel in (self.kernels.pop(worker, None), self._leaving.pop(worker, None)):
                if kernel is not None:
                    self._dismiss(kernel)
            self.handover.forget(worker)
        self._all_ended.set()

    def _dismiss(self, kernel: Kernel) -> None:
        kernel.is_dismissed = True
        kernel.kill()
        self._ending.add(kernel)

    def kill_all(self) -> None:
        """Kill every worker, also those that have been asked to end."""
        self.kill({*self.kernels, *self._leaving})

    def close(self) -> None:
        """Leave no process behind, whoever started it: the node has no workers any more."""
        self.kill_all()
        self._node.starter.close()
        self._reaper.end_all(_CHILDREN_END_TIMEOUT)
        for kernel in self._ending:
            kernel.close()
        self._socket.close()
        self.handover.close()
        self.oom.close()

    def _free_gpu(self) -> int:
        """The GPU of the next worker: the lowest that no other worker has, or the one that is the task's."""
        task = self._node.options.task
        if task is not None and self.welcome is not None and self.welcome.is_task:
            return task.gpu if task.gpu >= 0 else self._node.facts.gpus  # none: the first that is not there
        taken = {kernel.gpu_index for kernel in (*self.kernels.values(), *self._leaving.values())}
        return next(n for n in itertools.count() if n not in taken)

    # ------------------------------------------------------------ start and end

    async def _start(self, kernel: Kernel) -> None:
        welcome, wanted, node = self.welcome, kernel.wanted, self._node
        if welcome is None:
            raise LaunchError("no place in the world yet")
        threads = 1 if welcome.nproc > 1 or welcome.is_task else os.cpu_count() or 1
        threads = int(os.environ.get("OMP_NUM_THREADS", threads))
        spec = WorkerSpec(
            worker=wanted.worker,
            rank=wanted.rank,
            gpu_index=kernel.gpu_index,
            identity=kernel.identity.decode(),
            connection_file=str(kernel.connection_file),
            agent_socket=self._socket_path,
            handover_socket=str(node.directory / "handover"),
            cluster=node.endpoint.cluster,
            threads=threads,
            stack_file=str(kernel.stack_file),
            stack_signal=STACK_SIGNAL,
            names_socket=self._names_path,
            inherits=self.handover.has_names(wanted.worker),
        )
        kernel.inherits = spec.inherits
        env = {
            **(node.options.launcher if welcome.keeps_launcher else {}),
            WORKER: "1",
            **log.environment(),
            "RANK": str(wanted.rank),
            "OMP_NUM_THREADS": str(threads),
            **interface_environment(welcome.address),
        }
        try:
            await kernel.start(node.starter, spec, env)
            asyncio.get_running_loop().call_later(_UP_TIMEOUT, _kill_late, kernel)
            self.oom.watch(kernel.pid)
        except Exception as e:
            if not isinstance(e, LaunchError | OSError):
                _log.exception("worker %d could not be started", wanted.worker)
            kernel.close()
            self._ending.discard(kernel)
            self._report_down(kernel, str(e) or repr(e))

    def _report_down(self, kernel: Kernel, reason: str) -> None:
        if not kernel.is_dismissed:
            del self.kernels[kernel.worker]
            self.listener.handle_down(WorkerDown(kernel.worker, kernel.wanted.incarnation, reason))

    def _handle_failure(self, kernel: Kernel, message: WorkerFails) -> None:
        """Report a failing process before it has handed its names over, since other ranks may wait for it."""
        if kernel.is_dismissed:
            return
        kernel.is_dismissed = True
        self._leaving[kernel.worker] = self.kernels.pop(kernel.worker)
        self.listener.handle_exit()
        reason = explain_exit(message.signal) + _raw_log_end(kernel.raw_log)
        down = WorkerDown(kernel.worker, kernel.wanted.incarnation, reason, message.observation, hands_over=True)
        self.listener.handle_down(down)

    def _handle_exit(self, kernel: Kernel) -> None:
        self._ending.discard(kernel)
        self.handover.handle_exit(kernel)
        status = self._reaper.status(kernel.pid)
        if self._leaving.get(kernel.worker) is kernel:
            del self._leaving[kernel.worker]
            self._all_ended.set()
            self.listener.handle_exit()
            self.oom.verdict(kernel.pid)
            sweep_dead(self._node.endpoint.cluster)
            if kernel.successor is not None and self._begin(kernel.successor):
                self.kernels[kernel.worker].why_fresh = kernel.why_stuck
            return
        if kernel.is_stuck and status == signal.SIGKILL:
            status = signal_of(kernel.fatal_text) or status
        if status == signal.SIGTERM:  # a scheduler that ends the node's job sends that to all of its processes
            asyncio.get_running_loop().call_later(_TOGETHER, self._report_exit, kernel, status)
        else:
            self._report_exit(kernel, status)

    def _report_exit(self, kernel: Kernel, status: int | None) -> None:
        reason = explain_exit(status, self.oom.verdict(kernel.pid))
        self.listener.handle_exit()
        sweep_dead(self._node.endpoint.cluster)
        self._report_down(kernel, reason + _raw_log_end(kernel.raw_log))

    # ------------------------------------------------------------ messages

    def send(self, worker: int, message: Message) -> bool:
        """Send to the worker; False if it has no process."""
        return bool(self.forward((worker,), pack(message)))

    def have_processes(self, workers: Iterable[int]) -> bool:
        """Whether each of these has a live process, checked now: the end of one may not have been reported yet."""
        kernels = [self.kernels.get(worker) for worker in workers]
        return all(kernel is not None and not kernel.has_ended for kernel in kernels)

    def abort(self, abort: AbortRun) -> None:
        """Interrupt workers, by their control threads or, where these do not hear of it, from outside."""
        self.forward(abort.workers, pack(structs.replace(abort, at=time.monotonic())))
        for kernel in filter(None, map(self.kernels.get, abort.workers)):
            kernel.await_interrupt()

    def forward(self, workers: Collection[int], data: bytes) -> int:
        """Send an encoded message to those of the workers that are here; how many. A large cell is packed only once."""
        there = filter(None, map(self.kernels.get, workers))
        return sum(self._socket.send([kernel.identity, data]) for kernel in there)

    def _handle_kernel_frames(self, kernel: Kernel, channel: str, frames: list[bytes]) -> None:
        message = parse(frames)
        if channel == "iopub" and not kernel.is_subscribed:
            kernel.is_subscribed = True
            self._report_up(kernel)
        self.listener.handle_kernel_message(kernel, channel, message)

    def _kernel_of(self, identity: bytes) -> Kernel | None:
        kernels = (*self.kernels.values(), *self._leaving.values())
        return next((k for k in kernels if k.identity == identity), None)

    def _handle_frames(self, frames: list[bytes]) -> None:
        kernel = self._kernel_of(frames[0])
        if kernel is None:
            return  # it has just been killed
        message = _from_worker(frames[-1])
        if isinstance(message, EndOverdue):
            kernel.is_overdue = True
            self.listener.handle_overdue(message)
        elif isinstance(message, InterruptHeard):
            kernel.handle_interrupt_heard()
        elif kernel.is_dismissed:
            return
        elif isinstance(message, WorkerHello):
            kernel.has_greeted, kernel.lacks = True, message.lacks
            self._report_up(kernel)
        else:
            self.listener.handle_worker_message(message)

    def _report_up(self, kernel: Kernel) -> None:
        if kernel.is_up:
            self.listener.handle_up(kernel)


def _kill_late(kernel: Kernel) -> None:
    """End a process that does not become ready; its rank is then reported as lost."""
    if not kernel.is_up and not kernel.is_dismissed:
        _log.warning("rank %d was not ready within %.0f s; ending it", kernel.wanted.rank, _UP_TIMEOUT)
        kernel.kill()


def _raw_log_end(raw_log: Path) -> str:
    """The end of what the process wrote outside its cells, if anything."""
    with contextlib.suppress(OSError):
        lines = log.without_verbose(raw_log.read_text(errors="replace").strip().splitlines())
        if lines:
            return "; it last wrote: " + " / ".join(lines[-3:])[-400:]
    return ""
