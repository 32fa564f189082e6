"""Controller process: it is started with its settings on standard input, and answers with its connection file."""

import asyncio
import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import msgspec

from jdist.client.find import directory
from jdist.core.errors import LaunchError
from jdist.core.settings import Settings
from jdist.launch.support import last_words, reap
from jdist.wire.transport.keys import Charter, ControllerStarted, StartController

_START_TIMEOUT = 30.0
_END_TIMEOUT = 15.0


def log_path(name: str) -> Path:
    """The file for the output of a cluster's controller and launchers."""
    return directory() / f"jdist-{name}.log"


async def end_controller(starting: asyncio.Future[tuple[subprocess.Popen[bytes], ControllerStarted]]) -> None:
    """End the controller of a start that failed or was cancelled, once it has started."""
    await asyncio.wait([starting])  # at most _START_TIMEOUT
    if starting.cancelled() or starting.exception() is not None:
        return  # it ended by itself, or was killed
    process, _ = starting.result()
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, _END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()


def start_controller(
    settings: Settings, charter: Charter | None = None
) -> tuple[subprocess.Popen[bytes], ControllerStarted]:
    """Start a controller, with ``charter`` in place of one that has died, unless another client just has.

    Raises LaunchError.
    """
    log = log_path(settings.name)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jdist", "controller"],  # -P: a queue.py of the user's is not Python's
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=fd,
            start_new_session=True,
        )
    finally:
        os.close(fd)
    reap(process)  # it outlives this function, and perhaps this program
    start = msgspec.json.encode(StartController(settings, str(directory()), charter))
    try:
        line = _talk(process, start + b"\n")
    except TimeoutError:
        process.kill()
        raise LaunchError(f"the controller did not start within {_START_TIMEOUT:.0f} s: {_tail(log)}") from None
    if not line.endswith(b"\n"):
        raise LaunchError(f"the controller ended while it started: {_tail(log) or 'it was killed and wrote nothing'}")
    started = msgspec.json.decode(line, type=ControllerStarted)
    if started.error and not started.is_running:
        raise LaunchError(started.error)
    return process, started


def _talk(process: subprocess.Popen[bytes], start: bytes) -> bytes:
    """Write one line and read one line, which is empty if the process has ended. Raises TimeoutError."""
    if process.stdin is None or process.stdout is None:
        raise LaunchError("the controller's pipes are not there")
    with process.stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # at any moment of its start it may be killed
            process.stdin.write(start)
        ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT)
        if not ready:
            raise TimeoutError
        return process.stdout.readline()


def _tail(log: Path) -> str:
    return last_words(log.read_text(errors="replace"))
