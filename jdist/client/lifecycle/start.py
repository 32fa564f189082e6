"""Starting: a controller's process and the agents' launch, side by side, until the world stands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jdist.client.find import connections, directory, remove_dead, restartable
from jdist.client.lifecycle.min_nodes import Fewer, check
from jdist.client.link import Link
from jdist.core.errors import LaunchError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import ClusterFacts, Notice
from jdist.core.ranks import RankSet
from jdist.core.remedy import Remedy
from jdist.core.settings import ON_DEATH, Settings
from jdist.launch.base import Launcher, Plan, find_launcher
from jdist.launch.reaper import reap
from jdist.wire.transport.keys import Charter, ControllerStarted, StartController, read_connection

_CONTROLLER_TIMEOUT = 30.0
_CONTROLLER_END = 15.0
_WATCH = 0.25
"""Between two looks at whether a launched agent has ended (its exit wakes nobody else)."""


class Waiting(msgspec.Struct, frozen=True):
    """What a launch waits for, in the launcher's words."""

    text: str


Progress = ClusterFacts | Notice | Waiting
"""What is worth showing while a cluster starts."""


class Started(msgspec.Struct):
    """What a start gives."""

    link: Link
    launcher: Launcher


def check_settings(settings: Settings) -> None:
    """Raises UsageError for what cannot be started."""
    if not settings.name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"a cluster's name is letters, digits, - and _; not {settings.name!r}")
    if settings.nnodes < 1:
        raise UsageError(f"--nnodes {settings.nnodes}: a cluster has at least one node")
    if len(settings.nproc_per_node) not in (0, 1, settings.nnodes):
        counts = ",".join(map(str, settings.nproc_per_node))
        raise UsageError(
            f"--nproc-per-node {counts} names {len(settings.nproc_per_node)} nodes, --nnodes is {settings.nnodes}"
        )
    if settings.backend and settings.backend not in ("gloo", "nccl", "mpi", "cpu:gloo,cuda:nccl"):
        raise UsageError(f"there is no backend {settings.backend!r}; there is gloo, nccl, mpi")
    if settings.on_death not in ON_DEATH:
        raise UsageError(f"--on-death {settings.on_death!r}: write {', '.join(ON_DEATH)}")
    check(settings)
    _check_init_method(settings.init_method)


def _check_init_method(text: str) -> None:
    kind = text.partition("://")[0]
    if text == "env://":
        return
    if kind == "tcp":
        host, colon, port = text[6:].partition("?")[0].rpartition(":")
        if colon and host and port.isdecimal() and int(port) < 65536:
            return
        raise UsageError(f"--init-method {text!r}: write tcp://HOST:PORT (port 0 takes a free one)")
    if kind == "file" and text.startswith("file:///") and len(text) > 8:
        if not Path(text[7:]).parent.is_dir():
            raise UsageError(f"--init-method {text!r}: the directory {Path(text[7:]).parent} is not there")
        return
    raise UsageError(f"--init-method {text!r}: write env://, tcp://HOST:PORT or file:///PATH")


async def launch(
    settings: Settings,
    on_event: Callable[[Message], None],
    kind: str,
) -> Started:
    """Start controller and agents and attach; the world is not formed yet. Raises UsageError, LaunchError."""
    kind_of_launcher = find_launcher(settings.launcher)
    settings = kind_of_launcher.complete(settings)
    if kind_of_launcher.is_remote and not settings.bind_host:
        settings = msgspec.structs.replace(settings, bind_host="*")
    check_settings(settings)
    taken = connections() | restartable()
    if settings.name in taken:
        remedies = (
            Remedy("attach", "use it", name=settings.name),
            Remedy("stop", "end it", name=settings.name),
            Remedy("start", "start another, with --name"),
        )
        raise UsageError(f"a cluster called {settings.name} runs already", remedies=remedies)
    log = directory() / f"jdist-{settings.name}.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    launcher = kind_of_launcher(Plan(settings, str(log)))
    join_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    launching = asyncio.ensure_future(launcher.launch(join_line))
    await asyncio.sleep(0)
    starting = asyncio.ensure_future(asyncio.to_thread(_start_controller, settings, log))
    try:
        _, started = await asyncio.shield(starting)
        join_line.set_result(started.join_line)
        await launching
        link = Link(read_connection(Path(started.connection_file)), on_event)
        await link.open(kind)
    except BaseException:
        join_line.cancel()
        launching.cancel()
        await launcher.end()
        await _end_controller(starting)
        remove_dead(settings.name)
        raise
    return Started(link, launcher)


async def _end_controller(starting: asyncio.Future[tuple[subprocess.Popen[bytes], ControllerStarted]]) -> None:
    """A start that failed or was given up leaves no controller: once it is there, tell it to end."""
    await asyncio.wait([starting])  # at most _CONTROLLER_TIMEOUT
    if starting.cancelled() or starting.exception() is not None:
        return  # it ended by itself, or was killed
    process, _ = starting.result()
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, _CONTROLLER_END)
    except subprocess.TimeoutExpired:
        process.kill()


def start_controller_again(charter: Charter) -> None:
    """Start a controller in place of one that has died, unless somebody else just has. Raises LaunchError."""
    log = directory() / f"jdist-{charter.settings.name}.log"
    _start_controller(charter.settings, log, charter)


def _start_controller(
    settings: Settings, log: Path, charter: Charter | None = None
) -> tuple[subprocess.Popen[bytes], ControllerStarted]:
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
        raise LaunchError(f"the controller did not start within {_CONTROLLER_TIMEOUT:.0f} s: {_tail(log)}") from None
    if not line.endswith(b"\n"):
        raise LaunchError(f"the controller ended while it started: {_tail(log) or 'it was killed, and said nothing'}")
    started = msgspec.json.decode(line, type=ControllerStarted)
    if started.error and not started.is_running:
        raise LaunchError(started.error)
    return process, started


def _talk(process: subprocess.Popen[bytes], start: bytes) -> bytes:
    """Write one line, read one line, which is empty if the process has ended; it goes on. Raises TimeoutError."""
    if process.stdin is None or process.stdout is None:
        raise LaunchError("the controller's pipes are not there")
    with process.stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # at any moment of its start it may be killed
            process.stdin.write(start)
        ready, _, _ = select.select([process.stdout], [], [], _CONTROLLER_TIMEOUT)
        if not ready:
            raise TimeoutError
        return process.stdout.readline()


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])


async def wait_formed(
    started: Started,
    timeout: float | None,
    on_progress: Callable[[Progress], None] | None,
    launched: Sequence[int] | None = None,
) -> None:
    """Until the world is formed. Raises LaunchError naming who is missing after ``timeout`` seconds (None: never).

    ``launched`` are the nodes that are waited for, by default all: others may have been released since their launch.
    """
    link, launcher = started.link, started.launcher
    fewer = Fewer(link, launcher.plan.settings)
    waiting = asyncio.ensure_future(link.wait_ready(timeout, on_progress))
    said = ""
    try:
        while not waiting.done():
            if on_progress is not None and (text := launcher.describe()) != said:
                said = text
                on_progress(Waiting(text))
            await asyncio.wait([waiting], timeout=_WATCH)
            failures = {n: why for n, why in launcher.failures().items() if launched is None or n in launched}
            failures = await fewer.weigh(failures)
            if failures and not waiting.done() and (link.facts is None or link.facts.phase == "gathering"):
                raise LaunchError(describe_failures(failures))
        await waiting
    except TimeoutError:
        if not await fewer.give_up_waiting(launcher.failures(), timeout or 0.0):
            waits = launcher.waits_for()
            missing = f"{describe_missing(link.facts)} after {timeout:.0f} s"
            raise LaunchError(f"{missing}{'; ' if waits else ''}{waits}") from None
        await wait_formed(started, launcher.plan.settings.form_timeout, on_progress, ())  # with those that are here
    finally:
        waiting.cancel()


def describe_failures(failures: dict[int, str]) -> str:
    """Which nodes have failed and why; those with the same reason (a job that has ended) together."""
    nodes: dict[str, list[int]] = {}
    for node_rank, why in sorted(failures.items()):
        nodes.setdefault(why, []).append(node_rank)
    return "; ".join(f"{'nodes' if len(n) > 1 else 'node'} {RankSet(n)}: {why}" for why, n in nodes.items())


def describe_missing(facts: ClusterFacts | None) -> str:
    """Who is here and who is missing, in a line."""
    if facts is None:
        return "the controller has not said anything yet"
    place, places = ("rank", "tasks") if facts.is_by_task else ("node", "nodes")
    here = [h for h in facts.hostnames if h]
    missing = [f"{place} {n}" for n, h in enumerate(facts.hostnames) if not h]
    text = f"{len(here)} of {facts.nnodes} {places} here"
    if missing:
        return f"{text}; missing: {', '.join(missing)}"
    if facts.phase == "gathering":
        return f"{text}; {facts.ready} of {sum(facts.nproc_per_node)} ranks up"
    return f"{text}; {facts.phase} the world of {sum(facts.nproc_per_node)} ranks"
