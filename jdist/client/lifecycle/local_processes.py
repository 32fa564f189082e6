"""Processes that a client starts on its own machine: a cluster's controller, or an agent for another host's cluster."""

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import msgspec

from jdist.client.find import directory
from jdist.core.errors import LaunchError
from jdist.core.settings import Host, Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.launch_program import last_words, reap
from jdist.wire.processes import has_ended
from jdist.wire.transport.invitations import JOINED, JoinLine, find_line
from jdist.wire.transport.keys import Charter, ControllerStarted, StartController

_START_TIMEOUT = 30.0
_END_TIMEOUT = 15.0
_JOIN_TIMEOUT = 60.0  # Seconds for an agent to join: longer than it tries itself.

_private = partial(os.open, mode=0o600)  # An opener of files that belong to the user alone.


def log_path(name: str) -> Path:
    """The file for the output of a cluster's controller and launchers."""
    return directory() / f"jdist-{name}.log"


def plan_launch(
    settings: Settings, first: int = 0, nnodes: int = 0, host: Host | None = None, controller: int = 0
) -> LaunchPlan:
    """The launch of a cluster's nodes, or of ``nnodes`` more from ``first`` on, with the cluster's log."""
    return LaunchPlan(settings, str(log_path(settings.name)), first, nnodes, host, controller)


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
    """Start a controller, from ``charter`` if one has died, unless another client just has. Raises LaunchError.

    One that is started from a charter waits for its ports, if another program has taken them.
    """
    log = log_path(settings.name)
    with open(log, "ab", opener=_private) as output:
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
    if started.error:
        raise LaunchError(started.error)
    return process, started


def _tail(log: Path) -> str:
    return last_words(log.read_text(errors="replace"))


def join_here(line: str, nproc: int = 0, node_rank: int = -1, *, fork: bool = True) -> int:
    """Start an agent with a join line, or a file that holds one, and return its process id once it has joined.

    In a kernel it lives as long as the Jupyter server. Raises UsageError without a join line, LaunchError if it fails.
    """
    text = find_line(line)
    cluster = JoinLine.decode(text).cluster
    # Servers may share their home: each has a log of its own.
    log = directory() / f"jdist-node-{cluster}-{node_rank if node_rank >= 0 else uuid.uuid4().hex[:8]}.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # an earlier agent of this place may still write to its own
    command = [sys.executable, "-P", "-m", "jdist", "join", "-n", str(nproc), "--node-rank", str(node_rank)]
    if not fork:
        command.append("--no-fork")
    server = os.environ.get("JPY_PARENT_PID", "")  # the Jupyter server of this kernel is its parent process
    if server.isdecimal() and not has_ended(int(server)):
        command += ["--until", server]
    with open(log, "xb", opener=_private) as output:
        agent = subprocess.Popen(
            [*command, "-"], stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    reap(agent)
    assert agent.stdin is not None
    with agent.stdin:
        agent.stdin.write(text.encode() + b"\n")
    deadline = time.monotonic() + _JOIN_TIMEOUT
    while JOINED not in (written := log.read_text(errors="replace")):
        if agent.poll() is not None:
            raise LaunchError(f"this machine did not become a node: {last_words(written)}")
        if time.monotonic() > deadline:
            agent.terminate()
            raise LaunchError(f"the controller did not admit this machine within {_JOIN_TIMEOUT:.0f} s; see {log}")
        time.sleep(0.05)  # a change of the file triggers no event here
    return agent.pid
