"""GPU stream: the driver's readings of this node's GPUs, one after another, by a process of its own.

A process for each reading, as jdist/agent/node/gpus starts one for a single question, would take some tenths of a
second of CPU time each. The driver may never return from a call: then there are no readings, and nothing else waits.
"""

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from jdist.agent.node.gpus import GpuReading

_log = logging.getLogger("jdist.agent")

_OLD = 10.0  # Seconds after which a reading is not used any more.
_STUCK = 60.0  # Seconds without a reading after which the process is ended.
_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0  # First and longest pause in seconds before a failed driver is asked again.


class GpuStream:
    """Starts the process and reads what it writes, on a thread; ``close`` ends both."""

    def __init__(self, interval: float, command: Sequence[str] = ()):
        self._command = command or (sys.executable, "-P", "-m", "jdist.agent.node.gpus", str(interval))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reading: GpuReading | None = None
        self._read_at = time.monotonic()
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="jdist-gpu-stream", daemon=True).start()

    def newest(self) -> GpuReading | None:
        """The newest reading; None if there is none that is recent."""
        age = time.monotonic() - self._read_at
        if age > _STUCK:
            self._kill()
        return self._reading if age <= _OLD else None

    def close(self) -> None:
        """End the process. The thread is not waited for: the process may be one that cannot be ended."""
        self._closing.set()
        self._kill()

    def _run(self) -> None:
        pause = _PAUSE
        while not self._closing.is_set():
            started = time.monotonic()
            error = self._follow()
            if not self._closing.is_set():
                _log.info("GPUs: %s; they are asked again in %.0f s", error or "the driver was not heard from", pause)
            if time.monotonic() - started > _LONGEST_PAUSE:
                pause = _PAUSE
            self._closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _follow(self) -> str:
        """Read until the process ends; what it reported as an error."""
        with self._lock:
            if self._closing.is_set():
                return ""
            self._read_at = time.monotonic()
            self._process = process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert process.stdout is not None
        error = ""
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(msgspec.DecodeError):  # half a line of a process that was killed
                    reading = msgspec.json.decode(line, type=GpuReading)
                    error = reading.error
                    if not error:
                        self._reading, self._read_at = reading, time.monotonic()
        process.wait()
        return error

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
