"""Controller process: it is started with its settings on standard input, and answers with its connection file."""

import asyncio
import contextlib
import os
import select
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec

from jdist.client.find import directory
from jdist.core.errors import LaunchError
from jdist.core.settings import Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.support import last_words, reap
from jdist.wire.transport.keys import Charter, ControllerStarted, StartController

_START_TIMEOUT = 30.0
_END_TIMEOUT = 15.0

private = partial(os.open, mode=0o600)  # An opener of files that belong to the user alone.


def log_path(name: str) -> Path:
    """The file for the output of a cluster's controller and launchers."""
    return directory() / f"jdist-{name}.log"


def plan_launch(settings: Settings, first: int = 0, nnodes: int = 0) -> LaunchPlan:
    """The launch of a cluster's nodes, or of ``nnodes`` more from ``first`` on, with the cluster's log."""
    return LaunchPlan(settings, str(log_path(settings.name)), first, nnodes)


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
    with open(log, "ab", opener=private) as output:
        command = [sys.executable, "-P", "-m", "jdist", "controller"]  # -P: a queue.py of the user's is not Python's
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True)
    reap(process)  # it outlives this function, and perhaps this program
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # at any moment of its start it may be killed
            process.stdin.write(msgspec.json.encode(StartController(settings, str(directory()), charter)) + b"\n")
        if not select.select([process.stdout], [], [], _START_TIMEOUT)[0]:
            process.kill()
            raise LaunchError(f"the controller did not start within {_START_TIMEOUT:.0f} s: {_tail(log)}")
        line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise LaunchError(f"the controller ended while it started: {_tail(log) or 'it was killed and wrote nothing'}")
    started = msgspec.json.decode(line, type=ControllerStarted)
    if started.error and not started.is_running:
        raise LaunchError(started.error)
    return process, started


def _tail(log: Path) -> str:
    return last_words(log.read_text(errors="replace"))
