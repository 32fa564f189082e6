"""Hand a rank's names over from a process that is about to end to the one that takes its place.

A signal ends the process, or its agent does, because its main thread cannot be freed. The process reports that, stops
its main thread for good, so that names do not change, and saves them. That works whatever the handlers of signals and
of exceptions are there; a main thread in C code is stopped when it comes back.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from tornado.ioloop import IOLoop

from jdist.core.messages.base import Message
from jdist.core.messages.membership import (
    CarriedNames,
    Handover,
    NamesLoaded,
    NamesSaved,
    RequestNames,
    SavingNames,
    WorkerFails,
)
from jdist.core.messages.observation import Observation
from jdist.core.settings import WorkerSpec
from jdist.wire.values.frames import Unpacker, pack
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.observe.observer import Observer
from jdist.worker.process import DescriptorReserve
from jdist.worker.session import state
from jdist.worker.session.crash import CrashHandler, connect
from jdist.worker.session.from_memory import load
from jdist.worker.session.memory import NamesReader
from jdist.worker.session.to_memory import Save

_log = logging.getLogger("jdist.worker")

_OWN = b"\0"  # The first byte of messages to the agent; faulthandler's text has none.
_RECENT_CALLS = 8  # Calls of each group that are reported.
_PACKET = 1 << 16
_ANSWER = 30.0  # Seconds for the agent's answer.
_STOPPED = 0.25  # Seconds for a main thread that runs Python code to stop; one that is in C code stands still anyway.

_unpack: Unpacker[Any] = Unpacker(Handover)


class NamesHandover:
    """One worker's names, as they pass from process to process. Made on the main thread."""

    def __init__(
        self, spec: WorkerSpec, shell: Any, observer: Observer, groups: GroupRegistry, descriptors: DescriptorReserve
    ):
        self._descriptors = descriptors
        self._spec = spec
        self._shell = shell
        self._namespace: dict[str, Any] = shell.user_ns  # user_ns is replaced while a cell runs in a frame.
        self._observer = observer
        self._groups = groups
        self._line: socket.socket | None = None
        self._handler: CrashHandler | None = None
        self._loop: asyncio.AbstractEventLoop = IOLoop.current().asyncio_loop  # type: ignore[attr-defined]
        self._environment = dict(os.environ)
        self._turn = threading.Lock()
        self._is_due = spec.inherits  # There are names that have not been taken over yet.

    def guard(self) -> None:
        """Install the crash handler, which hands the names over; on the main thread."""
        if not self._spec.names_socket:
            return
        try:
            self._line = connect(self._spec.names_socket, self._spec.identity)
        except OSError as e:
            _log.warning("worker %d could not hand its names over if it failed: %s", self._spec.worker, e)
            return
        self._handler = CrashHandler(self._hand_over, self._line)
        self._handler.install()

    # ------------------------------------------------------------ in the process that fails

    def fail(self, reason: str) -> NoReturn:
        """End the process as a crash does, so that its successor has the names; the reason is told with its end."""
        _log.error("%s", reason)
        os.abort()

    def end(self) -> NoReturn:
        """End the process at the agent's request, because its main thread cannot be freed; on a helper thread."""
        if self._handler is None:
            os._exit(1)
        self._send(SavingNames())  # the answer: whatever else is to be waited for, the interpreter runs
        stop_main_thread(_STOPPED)
        self._handler.end()

    def _hand_over(self, number: int) -> None:
        """Report the failure, save the names, and show what has been written last."""
        self._descriptors.give_up()
        if number:  # else the agent knows of it, and a main thread that was stopped may hold a lock of the observer's
            self._send(WorkerFails(number, self._observation()))
        if not self._is_due:  # else it has none of its own yet
            kept = state.take(self._shell, self._namespace, self._environment)
            hidden, is_own_name = self._shell.user_ns_hidden, self._groups.is_own_name
            save = Save(self._namespace, hidden, kept, is_own_name, lambda: self._send(SavingNames()))
            fd, nbytes = save.write()
            self._send(NamesSaved(nbytes), [fd])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the user's own
                stream.flush()

    def _observation(self) -> Observation | None:
        device = str(self._namespace.get("device", "cpu"))
        try:
            return self._observer.observe(device, 0, _RECENT_CALLS)
        except Exception as e:  # the process is broken: whatever it may be
            _log.debug("worker %d cannot say what it did: %r", self._spec.worker, e)
            return None

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        if self._line is not None:
            socket.send_fds(self._line, [_OWN + pack(message)], fds)

    # ------------------------------------------------------------ in the process that takes its place

    def take_over(self, timeout: float) -> CarriedNames | None:
        """Load the names, once; returns what was loaded and lost, or None if nothing is left to load."""
        with self._turn:
            if not self._is_due:
                return None
            carried = self._load_on_main_thread(timeout)
            self._is_due = False
            return carried

    def _load_on_main_thread(self, timeout: float) -> CarriedNames:
        """The main thread is idle while the world is formed."""
        done: concurrent.futures.Future[CarriedNames] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(self._load())
            except BaseException as e:  # what was saved is damaged, or there is no memory for it
                _log.info("worker %d could not load its names", self._spec.worker, exc_info=True)
                done.set_result(CarriedNames(0, error=f"{type(e).__name__}: {e}"))

        self._loop.call_soon_threadsafe(run)
        try:
            return done.result(timeout)
        except TimeoutError:
            return CarriedNames(0, error=f"they were not loaded within {timeout:.0f} s")

    def _load(self) -> CarriedNames:
        if self._line is None:
            return CarriedNames(0, error="the agent cannot be reached")
        self._send(RequestNames())
        self._line.settimeout(_ANSWER)
        try:
            data, fds, _, _ = socket.recv_fds(self._line, _PACKET, 1)
        finally:
            self._line.setblocking(False)
        message = _unpack(data[len(_OWN) :])
        if not isinstance(message, NamesSaved) or not fds:
            return CarriedNames(0, error="they were not saved")
        try:
            return load(NamesReader(fds[0], message.nbytes), self._shell, self._environment)
        finally:
            self._is_due = False  # first: from the message on, only this process has them
            self._send(NamesLoaded())
            for fd in fds:
                os.close(fd)


_kept: list[Any] = []  # What the interpreter still refers to once it has been called.


def stop_main_thread(timeout: float) -> bool:
    """Stop it at its next instruction; returns whether it has stopped within ``timeout`` seconds."""
    has_stopped = threading.Event()

    def stop(_: Any) -> int:
        has_stopped.set()
        while True:
            with contextlib.suppress(BaseException):  # handlers of signals run here, too
                time.sleep(3600.0)

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(stop)
    _kept.append(callback)
    if ctypes.pythonapi.Py_AddPendingCall(callback, None):
        return False  # too many calls are pending already
    return has_stopped.wait(timeout)
