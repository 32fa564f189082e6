"""Debugger: pauses one rank's code wherever it is, runs cells in the paused frame, and resumes it.

The paused thread makes all changes; the control thread leaves requests and orders for it. The states are *running*,
*asked* (a request is set, and the signal is sent until the main thread is at a line where it may pause), *paused* (the
thread serves orders in :meth:`Debugger.pause`), *stepping*, and *running* again.
"""

import asyncio
import contextlib
import linecache
import logging
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from msgspec import Struct

from jdist.core.messages.debug import RankPaused, ReadStack, ResumeRanks, Stack
from jdist.core.messages.observation import PauseReason, StackFrame
from jdist.core.messages.runs import ExecuteCell
from jdist.worker.cells.runner import CellRunner
from jdist.worker.cells.signals import SafeSigint, interrupt_main
from jdist.worker.compat.rpc import raise_in_thread
from jdist.worker.debug import stepping
from jdist.worker.debug.frames import FrameAt, FrameStack, UserCode, outwards
from jdist.worker.debug.stepping import Stepper, Stop
from jdist.worker.observe import call_log
from jdist.worker.observe.call_log import OWN_FILES, CallLog
from jdist.worker.observe.main_thread import STORE_WAITS, TRANSPARENT, WORK_WAITS
from jdist.worker.observe.observer import Observer
from jdist.worker.variables.describe import summarize

_log = logging.getLogger("jdist.worker")

SIGNAL = signal.SIGRTMAX - 3  # Libraries use SIGUSR1 and SIGUSR2 to ask for checkpoints.
_AGAIN = 0.05  # Seconds until the signal is sent again if the thread could not pause.
# Modules whose code may hold a lock that a cell needs.
_LOCKING = {"ipykernel", "logging", "threading", "zmq", "importlib", "_frozen_importlib", "jdist", "queue", "tornado"}
_LOCKING |= {"_frozen_importlib_external", "asyncio", "linecache"}
_WAITING = {"threading", "queue"}  # Those that do not hold the lock of the condition that they wait for.
# Functions of `threading` in which a thread waits, usually without holding a lock.
_WAITS = {threading.Condition.wait.__code__, threading.Thread.join.__code__}
if _wait := getattr(threading.Thread, "_wait_for_tstate_lock", None):  # before Python 3.13
    _WAITS.add(_wait.__code__)


class Paused(Struct, frozen=True):
    """A pause, for as long as it lasts."""

    run: int
    reason: PauseReason
    stack: FrameStack
    thread: str  # Its name; "" for the main thread.
    ident: int
    error: str
    resumes: int  # How many `ResumeRanks` for the run had arrived before.


class _Abort(Struct, frozen=True):
    """The order to end the paused run."""


_Order = ExecuteCell | ResumeRanks | _Abort


class Debugger:
    """One rank's debugger."""

    def __init__(
        self, kernel: Any, worker: int, cells: CellRunner, sigint: SafeSigint, log: CallLog, observer: Observer
    ):
        """Call it on the main thread."""
        self._shell = kernel.shell
        self._worker = worker
        self._cells = cells
        self._sigint = sigint
        self._log = log
        self.is_user_code = UserCode(kernel.shell, cells.run_of)
        self._stepper = Stepper(log, self.is_user_code, observer.upcoming)
        self.paused: Paused | None = None
        self._asked = 0  # The run that is to pause.
        self._aborted = 0  # The run that was aborted last; it can no longer pause.
        self._resumes: Counter[int] = Counter()  # `ResumeRanks` received, by run.
        self._newest: ResumeRanks | None = None  # The newest one.
        self._awaits_line = False  # Whether the thread is traced until its next line of user code, to pause there.
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._lock = threading.Lock()  # Guards the above, between the control thread and the one that pauses.
        self._one = threading.Lock()  # One thread is paused at a time.
        sigint.on_raise = self._stepper.end
        sigint.held.add(Debugger._hold.__code__)
        OWN_FILES.update({__file__, stepping.__file__})
        signal.signal(SIGNAL, self._handle_signal)
        cells.on_end = self._handle_end

    # ------------------------------------------------------------ the control thread

    def request(self, run: int) -> None:
        """Pause the run at the main thread's next line of Python."""
        with self._lock:
            if not self._cells.spans.is_due(run) or self._stays_paused(run):
                return
            self._asked = run
        self._send_signal(run)

    def _send_signal(self, run: int) -> None:
        if self._asked != run or not self._cells.spans.is_due(run):
            return
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, SIGNAL)
        asyncio.get_running_loop().call_later(_AGAIN, self._send_signal, run)

    def _stays_paused(self, run: int) -> bool:
        """Whether it is paused, with no order to resume the run, such as one behind a cell that runs in the frame."""
        paused = self.paused
        return paused is not None and (paused.run != run or self._resumes[run] == paused.resumes)

    def resume(self, order: ResumeRanks) -> None:
        """Resume the run, or withdraw the request to pause it, or cancel its current step."""
        with self._lock:
            self._resumes[order.run] += 1
            self._asked = 0
            self._newest = order
            if self.paused is None:
                self._stop_waiting()
            elif self.paused.run == order.run:
                self._orders.put(order)

    def order_cell(self, cell: ExecuteCell) -> None:
        """Run a cell in the chosen frame of the paused run."""
        if cell.spec.profile is not None:
            self._cells.refuse(cell, "cells in a paused frame cannot be profiled; profile the paused cell instead")
            return
        with self._lock:
            if self.paused is not None and self.paused.run == cell.in_run:
                self._orders.put(cell)
                return
        self._cells.refuse(cell, f"run {cell.in_run} is no longer paused here")

    def abort(self, run: int) -> None:
        """Make the run raise KeyboardInterrupt where it is paused, after any cell that is running there."""
        with self._lock:
            self._aborted = run
            if self._asked == run:
                self._asked = 0
            if self.paused is not None and self.paused.run == run:
                self._orders.put(_Abort())

    # ------------------------------------------------------------ helper threads

    def end_inner(self, run: int, seconds: float) -> bool:
        """Interrupt a cell that runs in the paused frame, and return whether it ended within ``seconds``."""
        deadline = time.monotonic() + seconds
        while self._cells.spans.is_due(run):
            paused = self.paused
            if paused is None or time.monotonic() > deadline:
                return False
            if self._cells.spans.current != run:
                pass  # it has not started
            elif paused.ident == threading.main_thread().ident:
                interrupt_main()
            else:
                raise_in_thread(paused.ident, KeyboardInterrupt)
            self._cells.idle.wait(_AGAIN)
        return True

    def is_in_call(self) -> bool:
        """Whether the paused thread is in a call of torch.distributed, which a cell in its frame has made."""
        paused = self.paused
        return paused is not None and self._log.open(paused.ident) is not None

    def read_stack(self, query: ReadStack) -> Stack | None:
        """The stack of the pause, after choosing another frame; None if there is none."""
        paused = self.paused
        if paused is None:
            return None
        paused.stack.choose(query)
        return Stack(
            paused.stack.describe(), paused.stack.chosen, paused.run, paused.reason, paused.error, paused.thread
        )

    def read_source(self, file: str) -> str | None:
        """The text of a file, or None if the file is not on the paused stack."""
        paused = self.paused
        if paused is None or all(frame.file != file for frame in paused.stack.describe()):
            return None
        return "".join(linecache.getlines(file))

    def place(self) -> StackFrame | None:
        """Where the rank is paused; None if it is not paused, or if a cell is running there."""
        paused = self.paused
        return None if paused is None or self._cells.is_inner else paused.stack.at

    def read_names(self, session: dict[str, Any]) -> dict[str, Any]:
        """The names that queries see: those of the chosen frame, or of the session."""
        with self._lock:
            paused = self._present()
            return session if paused is None else paused.stack.names.read()

    def bind(self, values: dict[str, Any], session: dict[str, Any]) -> None:
        """Bind names where queries see them."""
        with self._lock:  # the thread needs it to resume, so the frame cannot change meanwhile
            paused = self._present()
            if paused is None:
                session.update(values)
                return
            with paused.stack.names.used() as names:
                names.update(values)

    def _present(self) -> Paused | None:
        """The pause; None once it has been ended, even if its thread has not resumed yet. The caller has the lock."""
        paused = self.paused
        if paused is None or self._aborted == paused.run or self._resumes[paused.run] != paused.resumes:
            return None
        return paused

    # ------------------------------------------------------------ the thread that pauses

    def _handle_signal(self, _signum: int, frame: FrameType | None) -> None:
        if not self._asked or frame is None or self._asked != self._cells.spans.current:
            return
        if not self._sigint.is_user_code(frame):  # as while the cell awaits something
            self._await_line(frame)
            return
        inner = []
        for each in outwards(frame):
            if self.is_user_code(each):
                break
            inner.append(each)
        if self._may_hold_lock(inner):
            self._await_line(
                frame
            )  # in code that does little else, such as a loop of prints, the signal rarely arrives at another place
            return
        if any(each.f_code.co_filename == call_log.__file__ for each in inner):
            # The thread is returning from a collective whose end has not been recorded yet.
            self._log.on_return = self._handle_return
            return
        self.pause(frame, "request")

    def _await_line(self, frame: FrameType) -> None:
        """Trace this thread until its next line of user code, to pause there."""
        if not self._awaits_line and not self._sigint.is_held(frame):
            self._awaits_line = True
            self._stepper.begin("step", frame, 0, self._handle_line)

    def _handle_line(self, stop: Stop) -> None:
        self._awaits_line = False  # Also where the request was withdrawn while the signal was being handled.
        if self._asked:
            self.pause(stop.frame, "request", stop=stop)

    def _handle_return(self, frame: FrameType) -> None:
        self._log.on_return = None
        if self._asked and threading.current_thread() is threading.main_thread():
            self.pause(frame, "request")

    def _may_hold_lock(self, frames: Sequence[FrameType]) -> bool:
        """Whether code of these frames, innermost first, may hold a lock that a cell needs."""
        is_waiting = False
        for place, frame in enumerate(frames):
            module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if module not in _LOCKING or frame.f_code.co_filename == call_log.__file__:
                continue
            if frame.f_code in WORK_WAITS or frame.f_code in STORE_WAITS or frame.f_code in TRANSPARENT:
                continue
            if place == 0 and frame.f_code in _WAITS and not _owns_condition(frame):
                is_waiting = True
            elif not is_waiting or module not in _WAITING:
                return True
        return False

    def pause(
        self,
        frame: FrameType,
        reason: PauseReason,
        *,
        stack: Sequence[FrameAt] | None = None,
        stop: Stop | None = None,
        error: str = "",
    ) -> None:
        """Pause this thread in ``frame``, which called this, or in a traceback's frames, until it is resumed.

        Raises KeyboardInterrupt there if the run is aborted while it is paused.
        """
        __tracebackhide__ = True
        if self._cells.is_inner:
            print("jdist: ignored a breakpoint in a cell that runs in a paused frame", file=sys.stderr)
            return
        with self._one:
            user = self._shell.user_ns
            found = (
                FrameStack(stack, self.is_user_code, user) if stack else FrameStack.of(frame, self.is_user_code, user)
            )
            how = self._hold(found, reason, stop or Stop(frame), error)
        if isinstance(how, _Abort):
            if threading.current_thread() is not threading.main_thread():
                raise KeyboardInterrupt  # The handler of SIGINT records only what was raised in the main thread.
            if not self._sigint.is_user_code(frame):
                return  # in a task: raising would end the event loop, so the interrupt cancels the cell instead
            self._sigint.interrupt(frame)
        elif how is not None and reason != "failure":
            with self._lock:
                if how is self._newest:
                    self._stepper.begin(how.how, found.frame, how.line, self._handle_stop)

    def _handle_stop(self, stop: Stop) -> None:
        __tracebackhide__ = True
        self.pause(stop.frame, "step" if stop.call is None else "next_call", stop=stop)

    def _hold(self, stack: FrameStack, reason: PauseReason, stop: Stop, error: str) -> ResumeRanks | _Abort | None:
        """Serve orders, without raising on SIGINT. Returns None if the thread must not pause."""
        self._stop_waiting()
        thread = threading.current_thread()
        name = "" if thread is threading.main_thread() else thread.name
        with self._lock:
            run = self._cells.spans.current
            if not run or run == self._aborted or (reason == "request" and self._asked != run):
                return None
            self._asked = 0
            resumes = self._resumes[run]
            self._orders = queue.SimpleQueue()
            self.paused = Paused(run, reason, stack, name, threading.get_ident(), error, resumes)
        _log.debug("paused run %d: %s", run, reason)
        returns = ""
        if stop.returned:
            stack.names.add("__return__", *stop.returned)  # as pdb names it
            returns = summarize(*stop.returned)
        paused = RankPaused(run, self._worker, reason, stack.at, resumes, stop.call, returns, name, error)
        try:
            with self._cells.report_pause(paused):
                while isinstance(order := self._orders.get(), ExecuteCell):
                    self._cells.run_within(order, stack.names.entered(self._shell))
        finally:
            with self._lock:
                self.paused = None
            self._refuse_rest()
        return order

    def _stop_waiting(self) -> None:
        """Cancel steps and pending requests to pause."""
        self._stepper.end()
        self._log.on_return = None
        self._awaits_line = False

    def after_fork(self) -> None:
        """In a forked child: it is not to pause, where a step or a request would otherwise find it."""
        self._asked = 0
        self._stop_waiting()

    def _refuse_rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                if isinstance(order, ExecuteCell):
                    self._cells.refuse(order, f"run {order.in_run} is no longer paused here")

    def _handle_end(self, run: int) -> None:
        """The run's cell has ended."""
        self._stop_waiting()
        with self._lock:
            if self._asked == run:
                self._asked = 0
            self._resumes.pop(run, None)
            if self.paused is not None and self.paused.run == run:  # in a thread that outlives its cell
                self._orders.put(ResumeRanks(run, ()))


def _owns_condition(frame: FrameType) -> bool:
    """Whether a frame of Condition.wait holds the condition's lock."""
    owner = frame.f_locals.get("self")
    is_owned: Callable[[], bool] | None = getattr(owner, "_is_owned", None)
    return is_owned is not None and is_owned()
