"""The cell runner: the agent's cells run on the kernel's main thread, by ipykernel's own ``do_execute``.

A request on the Jupyter shell channel would pass two more threads and be followed by three messages that no agent
needs, on every rank at once. A console goes on using that channel; the kernel's lock keeps its cells and ours apart.
"""

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from msgspec import structs
from tornado.ioloop import IOLoop

from jdist.core.errors import UsageError
from jdist.core.messages.base import AGENT_IDENTITY, MESSAGE_ID, Message
from jdist.core.messages.observation import CallDigest
from jdist.core.messages.runs import ExecuteCell, RankDone
from jdist.core.outcome import ErrorInfo
from jdist.wire.values.frames import pack_report
from jdist.worker.cells.children import Children, end_with_cell
from jdist.worker.cells.display import remove_prompts
from jdist.worker.cells.outcome import CudaContext, outcome_of
from jdist.worker.cells.output import OwnStreams
from jdist.worker.cells.shell import last_error_kept
from jdist.worker.cells.user_code import described, forget_texts, guarded, text_of
from jdist.worker.compat.ipykernel import allow_input, allows_input, main_lock, wake_toolkit_loop
from jdist.worker.metrics import MetricPublisher
from jdist.worker.observe.observer import RunSpans
from jdist.worker.process import DescriptorReserve
from jdist.worker.widgets import EventQueue


class CellRunner:
    """Runs one rank's cells; publishes their ends on the iopub channel, so that none can overtake its cell's output."""

    def __init__(self, kernel: Any, worker: int, streams: OwnStreams):
        """Call it on the main thread, before the kernel's loop starts."""
        self._kernel = kernel
        self._worker = worker
        self._display_pub = kernel.shell.display_pub  # Its own, also where a cell captures what is displayed.
        self._streams = streams
        self._loop: asyncio.AbstractEventLoop = IOLoop.current().asyncio_loop  # type: ignore[attr-defined]
        self._context = contextvars.copy_context()  # one for all cells: what one sets in it, the next finds
        self._tasks: set[asyncio.Task[None]] = set()
        self._cell: ExecuteCell | None = None
        self._parent: dict[str, Any] = {}  # The request message that its output names as its parent.
        self._began = 0.0
        self.metrics = MetricPublisher(worker, lambda logged: self._publish("jdist_metrics", logged, self._parent))
        self._counted: dict[int, int] = {}  # Runs by the execution counts of their cells.
        self._is_closed = False
        self._pid = os.getpid()
        self.children = Children()
        self.spans = RunSpans()
        self._cuda = CudaContext()
        # Digests of the collectives that were called since a moment of the wall clock.
        self.digest_calls: Callable[[float], tuple[CallDigest, ...]] = lambda _began: ()
        self.profiled: Callable[[ExecuteCell], AbstractContextManager[None]] = lambda _cell: nullcontext()
        self.has_broken_group: Callable[[], bool] = lambda: False  # Since the world was formed.
        # What a cell runs in, and what is told of its end and of the error with which it failed.
        self.context: Callable[[ExecuteCell], AbstractContextManager[None]] = lambda _cell: nullcontext()
        self.on_outcome: Callable[[ExecuteCell, BaseException | None], None] = lambda _cell, _error: None
        self.on_end: Callable[[int], None] = lambda _run: None
        self.announce_end: Callable[[int], None] = lambda _run: None  # By another way than the output's.
        self.go_without_world: Callable[[str], None] = lambda _reason: None
        self.descriptors = DescriptorReserve()
        self.is_inner = False  # Whether the cell runs in a paused frame of another.
        self._within = threading.RLock()  # Held while it does.
        self.idle = threading.Event()  # Set by the end of a cell, cleared by the beginning of the next.
        kernel.shell.events.register("post_run_cell", self._handle_end)
        kernel.shell.run_code = self._ends_after_inner(kernel.shell.run_code)
        kernel.shell.transform_cell = self._counts_from_first_line(kernel.shell.transform_cell)

    def submit(self, cell: ExecuteCell) -> None:
        """Have a cell run when those before it are over; from any thread."""

        def start() -> None:
            task = self._loop.create_task(self._run(cell), context=self._context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(start)
        wake_toolkit_loop(self._kernel)

    def connect_events(self, events: EventQueue) -> None:
        """Have events of widgets taken in the loop and the context of cells."""
        events.connect(self._loop, self._context)

    def close(self) -> None:
        """Begin no cell from now on, because the process ends; from any thread."""
        self._is_closed = True

    def claim_output(self) -> None:
        """Have what is written from now on belong to the last cell; on the main thread, outside of any cell."""
        self._set_parent()

    def leave_loop(self) -> None:
        """Have the main thread leave the kernel's event loop; from any thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        wake_toolkit_loop(self._kernel)

    async def _run(self, cell: ExecuteCell) -> None:
        kernel = self._kernel
        async with main_lock(kernel):
            if self._is_closed:
                self.refuse(cell, "the rank's process is ending")
                return
            failure: BaseException | None = None
            try:
                with self.descriptors.lent():
                    self._prepare(cell)
                with self.profiled(cell), self.context(cell):
                    await kernel.do_execute(cell.spec.code, False, not cell.spec.is_internal, {}, cell.spec.allow_stdin)
            except (Exception, KeyboardInterrupt) as e:  # as ipykernel does: the kernel outlives it
                kernel.log.exception("run %d ended outside the cell", cell.run)
                failure = e
            finally:
                kernel.post_handler_hook()
                self._end_if_on(cell, failure)

    def _prepare(self, cell: ExecuteCell) -> None:
        self._streams.catch_up()  # what children of the last cell have written since its end is the last cell's
        self.children.begin()  # before the cell can be aborted, which looks for its children
        self._begin(cell)
        self._kernel.pre_handler_hook()
        self._streams.restore()  # threads may have replaced them since the last cell
        remove_prompts()
        if cell.unformed:
            self.go_without_world(cell.unformed)

    def run_within(self, cell: ExecuteCell, names: AbstractContextManager[None]) -> None:
        """Run a cell now, in this thread, in the middle of another; ``names`` gives the shell the names it sees."""
        with self._within:
            self._run_within(cell, names)

    def _run_within(self, cell: ExecuteCell, names: AbstractContextManager[None]) -> None:
        kernel, shell = self._kernel, self._kernel.shell
        outer, has_input = (self._cell, self._parent, self._began), allows_input(kernel)
        result, runner = shell.displayhook.exec_result, shell.loop_runner
        self.is_inner = True
        try:
            self._begin(cell)
            allow_input(kernel, cell.spec.allow_stdin)
            shell.loop_runner = _refuse_await
            with names:
                shell.run_cell(cell.spec.code, store_history=not cell.spec.is_internal)
        except (Exception, KeyboardInterrupt) as e:
            kernel.log.exception("run %d ended outside the cell", cell.run)
            self._end_if_on(cell, e)
        finally:
            self._end_if_on(cell, None)
            shell.displayhook.exec_result, shell.loop_runner = result, runner
            allow_input(kernel, has_input)
            self._cell, self._parent, self._began = outer
            self._set_parent()
            if self._cell is not None:
                self.metrics.begin(self._cell.run, is_inner=True)
            self.idle.clear()
            self.is_inner = False

    def _has_shell(self) -> AbstractContextManager[object]:
        """Entered once no other thread runs a cell in a paused frame: there is one shell, with one present cell."""
        return self._within if os.getpid() == self._pid else nullcontext()  # A child may lack the thread that holds it.

    def _ends_after_inner(self, run_code: Callable[..., Coroutine[Any, Any, bool]]) -> Callable[..., Any]:
        """``run_code``, which runs a statement of a cell, and returns once no other thread runs a cell within it."""

        async def run(*args: Any, **kwargs: Any) -> bool:
            try:
                return await run_code(*args, **kwargs)
            finally:
                with self._has_shell():
                    pass

        return run

    def _counts_from_first_line(self, transform: Callable[[str], str]) -> Callable[[str], str]:
        """``transform``, which makes Python of a cell; the lines of ours have the numbers that its user sees."""

        def transform_cell(code: str) -> str:
            cell = self._cell
            above = cell.spec.first_line - 1 if cell is not None and cell.spec.code == code else 0
            return "\n" * above + transform(code)

        return transform_cell

    def _display(self, value: object) -> None:
        with self._has_shell():
            self._kernel.shell.displayhook(value)

    def refuse(self, cell: ExecuteCell, reason: str) -> None:
        """Report that a cell has not been run; from any thread."""
        done = RankDone(cell.run, self._worker, "error", error=ErrorInfo("NotRun", reason))
        self._publish("jdist_done", done, self._request(cell))

    def report_group(self, message: Message) -> None:
        """Publish that the cell has made a group, before it can publish its end; from any thread."""
        self._publish("jdist_group", message, self._parent)

    @contextmanager
    def report_pause(self, message: Message) -> Iterator[None]:
        """Publish that the cell is paused, behind its output so far; in the block, other cells may run."""
        shell = self._kernel.shell
        captured = sys.displayhook, shell.display_pub
        sys.displayhook, shell.display_pub = self._display, self._display_pub
        try:
            with self._streams.used(), last_error_kept(shell):
                self._publish("jdist_paused", message, self._parent)
                yield
        finally:
            sys.displayhook, shell.display_pub = captured

    def run_of(self, count: int) -> int:
        """The run whose cell had this execution count; 0 if it is not known."""
        return self._counted.get(count, 0)

    def _begin(self, cell: ExecuteCell) -> None:
        self.metrics.begin(cell.run, is_inner=self.is_inner)
        self._cell, self._parent, self._began = cell, self._request(cell), time.monotonic()
        self._set_parent()
        self._counted[self._kernel.shell.execution_count] = cell.run
        self.idle.clear()
        self.spans.begin(cell.run)

    def _request(self, cell: ExecuteCell) -> dict[str, Any]:
        """The message that asks for a cell, as if it had come from a front end."""
        content = {"code": cell.spec.code, "silent": False, "allow_stdin": cell.spec.allow_stdin}
        parent: dict[str, Any] = self._kernel.session.msg("execute_request", content)
        parent["header"]["msg_id"] = parent["msg_id"] = f"{MESSAGE_ID}{cell.run}"
        return parent

    def _set_parent(self) -> None:
        self._kernel.set_parent([AGENT_IDENTITY.encode()], self._parent)

    def _end_if_on(self, cell: ExecuteCell, failure: BaseException | None) -> None:
        """End a cell that could not report its end, or could not be begun."""
        if self.spans.is_due(cell.run):
            error = ErrorInfo("KeyboardInterrupt", "the cell was stopped before it could report how it ended")
            if failure is not None and not isinstance(failure, KeyboardInterrupt):
                error = ErrorInfo(type(failure).__name__, f"outside of the cell's own code: {described(failure)}")
            if self._cell is None:
                self._begin(cell)
            self._end(RankDone(cell.run, self._worker, "error", self._seconds(), error=error))

    def _handle_end(self, result: Any) -> None:
        """IPython reports that a cell is over: ours, or one of a console, or one that a cell itself runs."""
        with self.descriptors.lent():
            self._report_end(result)

    def _report_end(self, result: Any) -> None:
        cell = self._cell
        if cell is not None and result is not None and result.info.raw_cell != cell.spec.code:
            return
        if os.getpid() != self._pid:  # a child that the cell has forked, and that has gone on to the cell's end
            end_with_cell(result)
        if cell is None:
            return
        self._streams.restore(has_failed=result is None or not result.success)
        done, failure = guarded(lambda: self._outcome(cell, result))
        if done is None:
            error = ErrorInfo(
                "NotReported", f"how the cell ended could not be described: {described(failure or Exception())}"
            )
            done = RankDone(cell.run, self._worker, "error", self._seconds(), error=error)
        raised = result and result.error_in_exec
        if raised is not None and text_of(raised)[0] is None:
            result.error_in_exec = RuntimeError(described(raised))  # ipykernel asks for the text once more
        self._end(done)

    def _outcome(self, cell: ExecuteCell, result: Any) -> RankDone:
        self.on_outcome(cell, result and result.error_in_exec)
        done = outcome_of(result, self._kernel.shell, cell.run, self._worker, self._seconds(), self._cuda)
        span = self.spans.find(cell.run)
        if done.kind == "value" and span is not None:
            return structs.replace(done, digests=self.digest_calls(span.began))
        return done

    def _end(self, done: RankDone) -> None:
        if os.getpid() != self._pid:
            end_with_cell(None)
        try:
            if self.has_broken_group():
                done = structs.replace(done, has_broken_group=True)
            self._streams.restore()  # also what the value's own code wrote while it was being described
            _, failure = guarded(self.metrics.end)
            if failure is not None:
                self._kernel.log.error("metrics of run %d were not sent: %s", done.run, described(failure))
            self._publish("jdist_done", done, self._parent)
        finally:
            self._cell = None
            forget_texts()
            self.spans.end(done.run)
            self.on_end(done.run)
            self.idle.set()
            self._kernel.iopub_thread.schedule(partial(self.announce_end, done.run))  # behind the end itself

    def _publish(self, kind: str, message: Message, parent: dict[str, Any]) -> None:
        kernel, data = self._kernel, pack_report(message)
        if data:
            kernel.session.send(kernel.iopub_socket, kind, {}, parent=parent, ident=b"jdist", buffers=[data])

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def _refuse_await(cell: Coroutine[Any, Any, object]) -> None:
    cell.close()
    raise UsageError("a cell in a paused frame cannot await: the paused code holds the event loop")
