"""The worker's part of a handover: what it saves when a signal is about to end it, and what it takes over."""

import logging
import socket
from typing import Any

from jdist.core.messages.base import Message
from jdist.core.messages.membership import WorkerFails
from jdist.core.messages.observation import Observation
from jdist.core.settings import WorkerSpec
from jdist.wire.values.frames import pack
from jdist.worker.handover.crash import CrashHandler, connect
from jdist.worker.observe.observer import Observer

_log = logging.getLogger("jdist.worker")

_OWN = b"\0"  # The first byte of messages to the agent; faulthandler's text has none.
_RECENT_CALLS = 8  # Calls of each group that are reported.


class NamesHandover:
    """One worker's names, as they pass from process to process."""

    def __init__(self, spec: WorkerSpec, observer: Observer, namespace: dict[str, Any]):
        self._spec = spec
        self._observer = observer
        self._namespace = namespace
        self._line: socket.socket | None = None
        self._handler: CrashHandler | None = None

    def guard(self) -> None:
        """From now on this process hands its names over before a signal ends it; on the main thread."""
        if not self._spec.names_socket:
            return
        try:
            self._line = connect(self._spec.names_socket, self._spec.identity)
        except OSError as e:
            _log.warning("worker %d could not hand its names over if it failed: %s", self._spec.worker, e)
            return
        self._handler = CrashHandler(self._hand_over, self._line)
        self._handler.install()

    def _hand_over(self, number: int) -> None:
        """Report the failure, with what the main thread was calling; it ends within a moment."""
        self._send(WorkerFails(number, self._observation()))

    def _observation(self) -> Observation | None:
        device = str(self._namespace.get("device", "cpu"))
        try:
            return self._observer.observe(device, 0, _RECENT_CALLS)
        except Exception as e:  # the process is broken: whatever it may be
            _log.debug("worker %d cannot say what it did: %r", self._spec.worker, e)
            return None

    def _send(self, message: Message) -> None:
        if self._line is not None:
            self._line.send(_OWN + pack(message))
