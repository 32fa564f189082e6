"""The extension: jdist inside a rank's ipykernel, on a thread of its own with its own socket to the agent.

It answers while the main thread is stuck. Who may do what:

- the main thread runs cells, see :mod:`jdist.worker.cells.runner`;
- jdist's thread reads the agent's messages and never blocks: cells go to the main thread; forming, interrupting and
  moving values each run on a short-lived helper thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jdist.core.errors import JdistError
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.code import CodeSynced
from jdist.core.messages.groups import FormWorld, GroupMade, GroupSpec, WorldFailed, WorldFormed
from jdist.core.messages.membership import BeRank, Shutdown, WorkerHello
from jdist.core.messages.observation import Stalled
from jdist.core.messages.protocol import RankQuery, RankReply, ToWorker
from jdist.core.messages.runs import AbortRun, ExecuteCell
from jdist.core.topology import Topology
from jdist.wire.processes import set_name
from jdist.wire.transport.sockets import Port, dial_ipc, new_context
from jdist.wire.values.frames import Unpacker, pack
from jdist.worker.cells.autoreload import Reloading
from jdist.worker.cells.fd_capture import FdCapture
from jdist.worker.cells.runner import Cells
from jdist.worker.escalation import free_main
from jdist.worker.groups import on_reform
from jdist.worker.groups.registry import FormSpec, Groups
from jdist.worker.kernel import sigint
from jdist.worker.kernel.shell import adapt
from jdist.worker.kernel.tracebacks import render_once, shorten_interrupts
from jdist.worker.observe.call_digest import Tallies
from jdist.worker.observe.flight_recorder import Recorder
from jdist.worker.observe.observer import Observer
from jdist.worker.observe.stall_detector import Watch
from jdist.worker.queries.rank_queries import Answerer

if TYPE_CHECKING:
    from ipykernel.kernelapp import IPKernelApp

    from jdist.core.specs import WorkerSpec

_unpack: Unpacker[Any] = Unpacker(ToWorker)


class Extension:
    """One rank's end of jdist."""

    def __init__(self, spec: WorkerSpec, app: IPKernelApp, captures: Sequence[FdCapture]):
        self._spec = spec
        self._rank = spec.rank
        self._kernel = app.kernel
        self._shell = app.kernel.shell
        self._namespace: dict[str, Any] = self._shell.user_ns
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port: Port | None = None
        self._quit = asyncio.Event()
        self._generation = 0
        self._groups = Groups(self._namespace)
        self._groups.on_group = self._group_made
        self._cells = Cells(app.kernel, spec.rank, captures)
        notes = self._groups.notes
        notes.cells = getattr(self._shell.compile, "_filename_map", {})
        self._observer = Observer(notes, Recorder(notes, self._groups.labels), self._cells.runs)
        self._cells.tally = Tallies(notes, self._observer.merging, self._groups.labels).of
        self._watch = Watch(self._observer, self._cells.runs, self._cells.is_due, self._stalled)
        self._reloading = Reloading(self._shell)
        self._answerer = Answerer(spec, self._namespace, self._shell, self._observer)

    def start(self) -> None:
        """Hook into the kernel and start the thread; call on the main thread before the kernel's loop starts."""
        sigint.install(self._kernel)
        on_reform.be_rank(self._spec.rank)
        shorten_interrupts(self._shell)
        render_once(self._shell)
        self._groups.install_wrappers()
        adapt(self._kernel)
        threading.Thread(target=self._serve, name="jdist", daemon=True).start()

    def _group_made(self, index: int, spec: GroupSpec, listeners: Any) -> None:
        self._send(GroupMade(self._rank, self._generation, index, spec, tuple(listeners)))

    def _stalled(self, run: int) -> None:
        self._send(Stalled(self._rank, run))
        threading.Thread(target=self._observer.prepare, name="jdist-helper", daemon=True).start()

    # ------------------------------------------------------------ jdist's thread

    def _serve(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = new_context()
        self._port = dial_ipc(context, self._spec.agent_socket, self._on_frames, identity=self._spec.identity)
        self._port.send([pack(WorkerHello(self._rank, os.getpid()))])
        await self._quit.wait()

    def _send(self, message: Message) -> None:
        """From any thread."""
        if self._loop is not None and self._port is not None:
            self._loop.call_soon_threadsafe(self._port.send, [pack(message)])

    def _on_frames(self, frames: list[bytes]) -> None:
        message = _unpack(frames[-1])
        match message:
            case ExecuteCell():
                self._cells.put(message)
                self._watch.expect(message.run)
            case FormWorld():
                self._spawn(self._form, message)
            case AbortRun():
                self._spawn(self._halt, message)
            case RankQuery():
                self._spawn(self._answer, message)
            case BeRank():
                self._be_rank(message.rank)
            case CodeSynced(folders, changed):
                self._reloading.note(folders, changed)
            case Shutdown():
                os._exit(0)

    def _be_rank(self, rank: int) -> None:
        """The world has another size, and is about to be formed: in it this is ``rank``."""
        self._rank = self._cells.rank = self._answerer.rank = rank
        on_reform.be_rank(rank)
        set_name(f"jdist-rank-{rank}")

    def _spawn(self, target: Callable[[Any], None], message: Message) -> None:
        threading.Thread(target=target, args=(message,), name="jdist-helper", daemon=True).start()

    # ------------------------------------------------------------ helper threads

    def _form(self, form: FormWorld) -> None:
        rank = self._rank
        try:
            report = self._groups.form(self._form_spec(form, rank))
        except Exception as e:  # whatever torch raises is the reason to report
            self._send(WorldFailed(rank, form.generation, _reason(e)))
            return
        self._generation = max(self._generation, form.generation)
        formed = WorldFormed(
            rank, form.generation, report.device, report.listeners, report.notices, on_reform.is_wanted()
        )
        self._send(formed)
        self._observer.prepare()

    def _form_spec(self, form: FormWorld, rank: int) -> FormSpec:
        topology = Topology(form.nproc_per_node, (), form.node_of)
        return FormSpec(
            generation=form.generation,
            backend=form.backend,
            init_method=form.init_method,
            store_host=form.store_host,
            store_port=form.store_port,
            rank=rank,
            world_size=form.world_size,
            local_rank=topology.local_rank(rank),
            node_rank=topology.node_rank(rank),
            local_world_size=len(topology.ranks_on(topology.node_rank(rank))),
            nnodes=topology.nnodes,
            gpu_index=self._spec.gpu_index,
            timeout=form.timeout,
            replay=form.replay,
            named=form.named,
            mesh=form.mesh,
            cut=form.cut,
        )

    def _halt(self, halt: AbortRun) -> None:
        free_main(
            lambda: self._cells.is_due(halt.run),  # a later run is not to be stopped
            self._cells.idle,
            set(halt.listeners),
            self._groups,
            time.monotonic() + halt.grace,
        )

    def _answer(self, ask: RankQuery) -> None:
        rank = self._rank
        try:
            body = self._answerer.answer(ask.op, lambda progress: self._send(RankReply(ask.request, rank, progress)))
        except Exception as e:  # the user's own properties and reprs run here
            body = QueryFailed(_reason(e))
        self._send(RankReply(ask.request, rank, body))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, JdistError) else f"{type(error).__name__}: {error}"
