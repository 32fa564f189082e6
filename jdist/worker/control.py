"""The control thread: jdist's part of a rank's ipykernel, with a socket of its own to the agent.

It answers while the main thread runs cells (:mod:`jdist.worker.cells.runner`) or is stuck, and never blocks: forming,
interrupting and moving values each run on a short-lived helper thread.
"""

import asyncio
import importlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from msgspec import structs

from jdist.core.errors import describe_error
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.code import CodeSynced, ModuleReply, ModuleRequest, UseImportPath
from jdist.core.messages.debug import PauseRanks, ResumeRanks
from jdist.core.messages.membership import (
    EndOverdue,
    FormWorld,
    GroupMade,
    GroupSpec,
    RequestHandover,
    Shutdown,
    WorkerHello,
    WorldFailed,
)
from jdist.core.messages.observation import Stalled
from jdist.core.messages.protocol import RankQuery, RankReply, ToWorker
from jdist.core.messages.runs import AbortRun, CellEnded, ExecuteCell, HandlerRun, InterruptHeard
from jdist.core.messages.saving import GiveUpSave, KeepAutosave, PrepareSave, SaveAt
from jdist.core.settings import WorkerSpec
from jdist.wire.processes import set_name
from jdist.wire.transport.sockets import Port, dial_ipc, new_context
from jdist.wire.values.frames import Unpacker, pack, pack_report
from jdist.worker import metrics as metrics_log
from jdist.worker import process
from jdist.worker.cells import display, shell, signals, tracebacks
from jdist.worker.cells.children import Children, disable_in_children
from jdist.worker.cells.imports import Imports
from jdist.worker.cells.outcome import fault_of
from jdist.worker.cells.output import OwnStreams
from jdist.worker.cells.runner import CellRunner
from jdist.worker.compat.features import lacks_of_loaded
from jdist.worker.compat.ipykernel import cell_numbers
from jdist.worker.debug import breakpoints
from jdist.worker.debug.debugger import Debugger
from jdist.worker.debug.frames import CellFailure, PostMortem
from jdist.worker.ending import Ending
from jdist.worker.escalation import InterruptPolicy, free_main_thread
from jdist.worker.groups import on_reform, patches
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.observe.call_log import OWN_FILES
from jdist.worker.observe.observer import Observer, StallDetector
from jdist.worker.profile import CellProfiler, connect_steps
from jdist.worker.queries import QueryHandler
from jdist.worker.session import points as saving
from jdist.worker.session.handover import NamesHandover
from jdist.worker.session.points import SavePoints, SavingRank
from jdist.worker.session.to_memory import users_values
from jdist.worker.widgets import EventQueue

_log = logging.getLogger("jdist.worker")

_AGAIN = 0.1  # Seconds between two looks whether the cell has ended that is interrupted at the rank's end.
_GENTLE = 1.0  # Seconds for an interrupted cell in a paused frame to end before its rank may be taken to be blocked.

_unpack: Unpacker[Any] = Unpacker(ToWorker)


class ControlThread:
    """One rank's end of jdist. Made on the main thread, before the kernel's loop starts, into which it hooks."""

    def __init__(self, spec: WorkerSpec, app: IPKernelApp, streams: OwnStreams, ending: Ending):
        self._spec = spec
        self._worker = spec.worker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port: Port | None = None
        self._generation = 0
        kernel: Any = app.kernel
        namespace: dict[str, Any] = kernel.shell.user_ns
        self._namespace = namespace
        last_results = kernel.shell.displayhook, kernel.shell.user_ns_hidden
        self._groups = GroupRegistry(namespace, spec.cluster, last_results)
        self._groups.on_group_made = self._report_group_made
        self._groups.log.cells = cell_numbers(kernel.shell)
        self._hidden: Mapping[str, Any] = kernel.shell.user_ns_hidden
        self._cells = CellRunner(kernel, spec.worker, streams)
        self._ending = ending.connected(cell_numbers(kernel.shell), self._cells.claim_output)
        self._observer = Observer(self._groups.log, self._groups.labels, self._cells.spans)
        self._stalls = StallDetector(self._observer, self._cells.spans, self._send_stalled)
        self._imports = Imports(kernel.shell)
        self._imports.request = self._request_module
        process.copy_of = self._imports.copy_of
        self._profiler = CellProfiler(self._groups.log, self._observer.trace)
        connect_steps(self._profiler.mark_step)
        self._sigint = signals.install(kernel)
        self._debugger = Debugger(kernel, spec.worker, self._cells, self._sigint, self._groups.log, self._observer)
        self._observer.pause = self._debugger.place
        self._post_mortem = PostMortem(kernel.shell, self._debugger.is_user_code, self._hold)
        known = (self._observer, self._debugger, self._post_mortem, self._profiler)
        self._events = EventQueue(kernel, lambda: self._queries.rank, lambda: self._cells.spans.current)
        self._queries = QueryHandler(spec, namespace, *known, self._user_names, self._events)
        self._handover = NamesHandover(spec, kernel.shell, self._observer, self._groups, self._cells.descriptors)
        self._sigint.catch_ignored()
        OWN_FILES.update({signals.__file__, __file__})
        self._aborting = threading.Lock()  # Guards the next.
        self._last_abort: tuple[int, InterruptPolicy | None] = (0, None)  # The run that was aborted last.
        process.be_rank(spec.rank)
        self._saving = SavingRank(
            spec.worker, kernel.shell, self._groups.is_own_name, self._groups.named_groups, self._send
        )
        saving.connect(self._saving)
        self._points = SavePoints(spec.worker, lambda: self._cells.spans.current, self._send, self._save_at)
        self._points.connect()
        self._connect_cells()
        tracebacks.adapt(kernel.shell)
        patches.install(self._groups)
        shell.adapt(kernel)
        breakpoints.install(kernel, lambda frame: self._debugger.pause(frame, "breakpoint"))
        shell.keep_names(kernel.shell, self._groups.own_names)
        display.set_up(kernel.shell)
        self._handover.guard()
        parts = [self._groups.after_fork, streams.after_fork, self._debugger.after_fork, metrics_log.disconnect]
        disable_in_children(kernel, parts)
        self._handlers = self._make_handlers()

    def _connect_cells(self) -> None:
        """Give the cell runner what it calls around cells."""
        cells = self._cells
        cells.metrics.connect()
        cells.connect_events(self._events)
        cells.digest_calls = self._observer.digests
        cells.go_without_world = self._groups.go_without
        cells.has_broken_group = lambda: self._groups.log.has_broken_group
        cells.profiled = self._profiler.around
        cells.announce_end = lambda run: self._send(CellEnded(self._worker, run))
        cells.context, cells.on_outcome = self._post_mortem.begin, self._post_mortem.end

    def _user_names(self, names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Those of ``names`` that are the user's; a frame may have other values under jdist's names."""

        def is_own(name: str) -> bool:
            return self._groups.is_own_name(name) and names[name] is self._namespace.get(name)

        return users_values(names, self._hidden, is_own)

    def start(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._main()), name="jdist", daemon=True).start()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = new_context()
        self._port = dial_ipc(context, self._spec.agent_socket, self._handle_frames, identity=self._spec.identity)
        self._port.send([pack(WorkerHello(self._worker, os.getpid(), lacks_of_loaded()))])
        await asyncio.Event().wait()  # until the process ends

    # ------------------------------------------------------------ any thread

    def _send(self, message: Message) -> None:
        if self._loop is not None and self._port is not None and (data := pack_report(message)):
            self._loop.call_soon_threadsafe(self._port.send, [data])

    def _report_group_made(self, index: int, spec: GroupSpec, listeners: Any) -> None:
        self._cells.report_group(GroupMade(self._worker, self._generation, index, spec, tuple(listeners)))

    def _request_module(self, name: str) -> bool:
        run = self._cells.spans.current
        if run:
            self._send(ModuleRequest(run, self._worker, name))
        return bool(run)

    def _send_stalled(self, run: int) -> None:
        self._send(Stalled(self._worker, run))
        self._spawn(self._observer.prepare)

    def _spawn(self, target: Callable[..., Any], *args: Any) -> None:
        def run() -> None:
            with self._cells.descriptors.lent():
                target(*args)

        threading.Thread(target=run, name="jdist-helper", daemon=True).start()

    # ------------------------------------------------------------ the main thread

    def _hold(self, failure: CellFailure) -> None:
        if not self._cells.is_inner:
            frame = failure.frames[-1][0]
            self._debugger.pause(frame, "failure", stack=failure.frames, error=failure.error)

    def _save_at(self, at: SaveAt) -> None:
        if at.options is not None:
            from jdist.worker.session.to_folder import save  # only here: it imports much

            save(at.options.directory, at.options.names, at.save, at.options.keep, self._namespace)

    # ------------------------------------------------------------ the control thread

    def _make_handlers(self) -> dict[type[Message], Callable[[Any], None]]:
        """Handlers of the agent's messages; what may take longer is handled on a helper thread."""
        imports, debugger = self._imports, self._debugger
        return {
            ExecuteCell: self._handle_execute_cell,
            AbortRun: self._handle_abort_run,
            FormWorld: self._handle_form_world,
            RankQuery: lambda message: self._spawn(self._handle_rank_query, message),
            PauseRanks: lambda message: debugger.request(message.run),
            ResumeRanks: debugger.resume,
            KeepAutosave: self._handle_keep_autosave,
            PrepareSave: self._points.prepare,
            SaveAt: self._points.bind,
            GiveUpSave: lambda message: self._spawn(self._saving.give_up, message.save),
            CodeSynced: lambda message: imports.record_synced(message.folders, message.changed, message.copies),
            UseImportPath: lambda message: imports.use(message.path, message.modules),
            ModuleReply: lambda message: imports.handle_reply(message.name, message.text),
            RequestHandover: lambda _: self._spawn(self._handover.end),
            Shutdown: self._handle_shutdown,
        }

    def _handle_frames(self, frames: list[bytes]) -> None:
        message = _unpack(frames[-1])
        self._handlers[type(message)](message)

    def _handle_execute_cell(self, cell: ExecuteCell) -> None:
        if cell.in_run:
            self._debugger.order_cell(cell)
        else:
            if cell.spec.is_setup:
                self._saving.remember_setup(cell.spec.code)
            self._cells.submit(cell)
        self._stalls.expect(cell.run)

    def _handle_form_world(self, form: FormWorld) -> None:
        rank = form.workers.index(self._worker)  # from now on, in the world that is about to be formed
        self._queries.rank = rank
        process.be_rank(rank)
        set_name(f"jdist-rank-{rank}")
        self._spawn(self._form_world, form)

    def _handle_keep_autosave(self, keep: KeepAutosave) -> None:
        signals.outlive(wanted=keep.options is not None)
        if keep.options is not None:  # what a save needs is imported before a loop would wait for that
            self._spawn(importlib.import_module, "jdist.worker.session.to_folder")

    def _handle_abort_run(self, abort: AbortRun) -> None:
        self._send(InterruptHeard(self._worker))
        self._spawn(self._abort_run, abort)

    def _handle_shutdown(self, message: Shutdown) -> None:
        self._send(InterruptHeard(self._worker))
        deadline = time.monotonic() + message.grace

        def report(doing: str) -> None:
            self._send(EndOverdue(self._worker, self._queries.rank, message.grace, doing))

        self._spawn(self._ending.cut_off, deadline, report, self._describe_cell)
        self._spawn(self._end, message)

    # ------------------------------------------------------------ helper threads

    def _end(self, message: Shutdown) -> None:
        """Interrupt the cell that runs, if any, and have the main thread leave the kernel's loop."""
        self._cells.close()
        while run := self._cells.spans.current:
            if self._last_abort[0] != run:  # else it is being interrupted already
                inner = self._cells.is_inner
                listeners = tuple(self._groups.listeners)
                grace, patience = message.grace / 2, message.grace
                abort = AbortRun(run, (self._worker,), listeners, grace, patience, is_inner=inner, at=message.at)
                self._abort_run(abort)
            self._cells.idle.wait(_AGAIN)
        self._cells.leave_loop()

    def _describe_cell(self) -> str:
        """What the cell does that cannot be interrupted; "" between cells."""
        at = self._observer.glance()
        if at is None:
            return ""
        line = "" if at.activity.line is None else f", at line {at.activity.line}: {at.activity.source}"
        return f"its cell could not be interrupted{line}"

    def _form_world(self, form: FormWorld) -> None:
        try:
            formed = self._groups.form(form, self._worker, self._spec.gpu_index)
        except Exception as e:  # whatever torch raises is the reason to report
            _log.info("worker %d could not form generation %d", self._worker, form.generation, exc_info=True)
            if fault := fault_of(e):  # this process can join no world any more
                self._handover.fail(f"its CUDA context was lost: {fault}")
            self._send(WorldFailed(self._worker, form.generation, describe_error(e)))
            return
        _log.debug("worker %d formed generation %d", self._worker, form.generation)
        carried = self._handover.take_over(form.timeout)
        if carried is not None:
            formed = structs.replace(formed, carried=carried, wants_reform=on_reform.is_wanted())
        self._generation = max(self._generation, form.generation)
        self._send(formed)
        self._observer.prepare()

    def _abort_run(self, abort: AbortRun) -> None:
        _log.debug("abort run %d within %.1f s", abort.run, abort.grace)
        with self._aborting:
            run, policy = self._last_abort
            if run == abort.run and policy is not None:
                policy.insist()  # the thread that frees the main thread already goes on
                return

            def report(is_handler: bool, seconds: float) -> None:
                at = self._observer.glance()
                line, source = (at.activity.line, at.activity.source) if at is not None else (None, "")
                self._send(HandlerRun(self._worker, abort.run, is_handler, line, source, seconds))

            newest_call = (lambda: self._groups.log.newest) if abort.listeners else (lambda: 0)
            policy = InterruptPolicy(
                self._sigint, newest_call, abort.grace, abort.patience, report, abort.at or math.inf
            )
            self._last_abort = abort.run, policy
            if abort.insists:
                policy.insist()

        self._debugger.abort(abort.run)

        def handles_interrupt() -> bool:
            return self._cells.spans.is_due(abort.run) and policy.deadline is None and self._sigint.is_handled

        if abort.is_inner:
            if self._end_inner(abort):
                self._forget_interrupt(policy)
                return  # the group is as it was, for the run that is paused
            self._groups.log.has_broken_group = True  # from here on connections are ended
        if self._cells.spans.current == abort.run and not abort.is_inner:
            # Killed sooner than the rank is given up, which may be waiting for them.
            self._spawn(Children.end, self._cells.children.find(), abort.grace / 2, handles_interrupt)
        free_main_thread(
            lambda: self._cells.spans.is_due(abort.run),  # a later run is not to be stopped
            self._cells.idle,
            set(abort.listeners),
            self._groups,
            lambda: policy.deadline,
            policy.may_signal,
        )
        self._forget_interrupt(policy)

    def _end_inner(self, abort: AbortRun) -> bool:
        """Interrupt a cell in a paused frame; whether it ended before its rank was seen to wait for others.

        The other half of the grace is left for ending connections.
        """
        until = time.monotonic() + abort.grace / 2
        while not self._debugger.end_inner(abort.run, _GENTLE):
            at = self._observer.glance()
            is_waiting = at is not None and at.activity.kind != "python"
            if is_waiting or self._debugger.is_in_call() or time.monotonic() > until:
                return False
        return True

    def _forget_interrupt(self, policy: InterruptPolicy) -> None:
        """A run was aborted: its KeyboardInterrupt would keep the frames alive through which it was raised."""
        with self._aborting:
            if self._last_abort[1] is policy:
                self._sigint.forget()

    def _handle_rank_query(self, query: RankQuery) -> None:
        worker, askers = self._worker, self._groups.log.askers
        askers.add(threading.get_ident())
        try:
            body = self._queries.answer(query.op, lambda done: self._send(RankReply(query.request, worker, done)))
        except BaseException as e:  # the user's own properties and reprs run here, and may exit
            _log.debug("could not answer %s: %s", type(query.op).__name__, describe_error(e), exc_info=True)
            body = QueryFailed(describe_error(e))
        finally:
            askers.discard(threading.get_ident())
        self._send(RankReply(query.request, worker, body))
