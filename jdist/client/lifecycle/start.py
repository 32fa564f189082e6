"""Start: run a controller and the agents' launch side by side until the world is formed.

The processes on this machine are a cluster's controller, or an agent for another host's cluster.
"""

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jdist.client.find import connections, directory, free_name, remove_dead, restartable
from jdist.client.link import Link, new_request
from jdist.core.errors import LaunchError, Remedy, UsageError
from jdist.core.launchers import WORKER
from jdist.core.messages.base import Message
from jdist.core.messages.membership import DropNodes
from jdist.core.messages.status import ClusterFacts, Notice, Origin
from jdist.core.ranks import RankSet, ranks_by
from jdist.core.settings import ON_DEATH, Host, Settings, declared_options
from jdist.core.topology import check_size, parse_nproc
from jdist.launch.base import Launcher, LaunchPlan, find_launcher
from jdist.launch.hosts import parse_hosts
from jdist.launch.launch_program import last_words, reap
from jdist.wire.log import environment
from jdist.wire.processes import has_ended, start_time
from jdist.wire.transport.invitations import JOINED, JoinLine, find_line
from jdist.wire.transport.keys import Charter, ControllerStarted, StartController, read_connection

OWNERS = ("notebook", "python")  # Kinds of the clients that a notebook uses its clusters by.


def this_notebook() -> Origin | None:
    """The notebook; None if this process is no notebook's kernel."""
    module = sys.modules.get("ipykernel.kernelapp")
    if module is None or WORKER in os.environ or not module.IPKernelApp.initialized():
        return None
    names = getattr(module.IPKernelApp.instance().shell, "user_ns", {})
    # The Jupyter server sets the variable, VS Code the name.
    notebook = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__", "")
    visited = names.get("_dh") or [os.getcwd()]  # the directory may have been changed since the kernel began
    pid = os.getpid()
    return Origin(str(notebook), str(visited[0]), socket.gethostname(), pid, start_time(pid))


# ---------------------------------------------------------------- processes on this machine

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


# ---------------------------------------------------------------- starts

_WATCH = 0.25  # Seconds between two checks whether a launched agent has ended: its exit triggers no event here.

T = TypeVar("T")


class Waiting(msgspec.Struct, frozen=True):
    """The reason why a launch waits, in the launcher's words."""

    text: str
    is_instruction: bool = False  # What the user has to do; it may contain the join line, and so keys.


class EarlierNotice(Notice, frozen=True):
    """What becomes of a cluster that an earlier kernel of this notebook has left."""


Progress = ClusterFacts | Notice | Waiting  # Events to show while a cluster starts.
OnProgress = Callable[[Progress], None]
OnWaiting = Callable[[Waiting], None]


def make_settings(
    nproc_per_node: int | str | Sequence[int] | None,
    nnodes: int | None,
    name: str | None = None,
    backend: str | None = None,
    launcher_args: Sequence[str] = (),
    hosts: str | Sequence[Host] = (),
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Settings:
    """The settings of a start, from the arguments of :meth:`jdist.AsyncCluster.start`. Raises UsageError."""
    if nnodes is not None and nnodes < 1:
        raise UsageError(f"--nnodes {nnodes}: a cluster has at least one node")
    check_size(nnodes or 1, ())
    given = [nproc_per_node] if isinstance(nproc_per_node, int | str) else nproc_per_node or ()
    counts = parse_nproc(",".join(map(str, given)), nnodes or 1) if given else ()
    try:
        return Settings(
            name=name or free_name(),
            nnodes=nnodes or (len(counts) if len(counts) > 1 else 0),
            nproc_per_node=counts,
            backend=backend or "",
            launcher_args=tuple(launcher_args),
            hosts=parse_hosts(hosts) if isinstance(hosts, str) and hosts else tuple(hosts),  # type: ignore[arg-type]
            env=tuple({**environment(), **(env or {})}.items()),
            **options,
        )
    except TypeError as e:
        raise UsageError(f"start: {e}") from None


def check_settings(settings: Settings) -> None:
    """Raise UsageError for settings with which no cluster can be started."""
    if not settings.name.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"a cluster's name is letters, digits, - and _; not {settings.name!r}")
    if settings.nnodes < 1:
        raise UsageError(f"--nnodes {settings.nnodes}: a cluster has at least one node")
    check_size(settings.nnodes, settings.nproc_per_node)
    if len(settings.nproc_per_node) not in (0, 1, settings.nnodes):
        counts = ",".join(map(str, settings.nproc_per_node))
        raise UsageError(
            f"--nproc-per-node {counts} names {len(settings.nproc_per_node)} nodes, --nnodes is {settings.nnodes}"
        )
    check_backend(settings.backend)
    if settings.on_death not in ON_DEATH:
        raise UsageError(f"--on-death {settings.on_death!r}: write {', '.join(ON_DEATH)}")
    if not 0 <= settings.min_nodes <= settings.nnodes:
        raise UsageError(f"--min-nodes {settings.min_nodes} does not fit --nnodes {settings.nnodes}")
    _check_init_method(settings.init_method)


def check_backend(name: str) -> None:
    """Raise UsageError for a backend that there is not; "" is the cluster's own choice."""
    if name not in ("", "gloo", "nccl", "mpi", "cpu:gloo,cuda:nccl"):
        raise UsageError(f"there is no backend {name!r}; there is gloo, nccl, mpi")


def _check_init_method(text: str) -> None:
    kind, _, rest = text.partition("://")
    if kind == "tcp":
        host, _, port = rest.partition("?")[0].rpartition(":")
        if not (host and port.isdecimal() and int(port) < 65536):
            raise UsageError(f"--init-method {text!r}: write tcp://HOST:PORT (port 0 takes a free one)")
    elif kind == "file" and rest.startswith("/") and rest != "/":
        if not Path(rest).parent.is_dir():
            raise UsageError(f"--init-method {text!r}: the directory {Path(rest).parent} is not there")
    elif text != "env://":
        raise UsageError(f"--init-method {text!r}: write env://, tcp://HOST:PORT or file:///PATH")


def start_words(options: Mapping[str, Any], launcher_args: Sequence[str] = ()) -> list[str]:
    """The words of ``jdist start`` with these options of :meth:`jdist.AsyncCluster.start`. Raises UsageError."""
    words = []
    known = {option.name: option for option in declared_options()}
    for name, value in options.items():
        option = known.get(name)
        if option is None:
            raise UsageError(f"start: {name} cannot be given for a start on another host")
        if value == option.default or (value in (None, "", ()) and not isinstance(value, bool)):
            continue
        word = option.about.word or f"--{'no-' * (option.default is True)}{name.replace('_', '-')}"
        match value:
            case bool():
                words.append(word)
            case Mapping():
                words += [f"{word}={key}={each}" for key, each in value.items()]
            case str() | float() | int():
                words.append(f"{word}={value}")
            case _ if name == "hosts":
                words.append(f"{word}={','.join(f'{h.name}:{h.slots}' if h.slots else h.name for h in value)}")
            case _:
                words.append(f"{word}={','.join(map(str, value))}")
    return [*words, *(["--", *launcher_args] if launcher_args else [])]


class Started:
    """A launch: a link to the new controller, and the launcher of the agents.

    With ``min_nodes``, failed nodes are dropped together, once no other may still join: the world is formed only once.
    """

    def __init__(self, link: Link, launcher: Launcher):
        self.link = link
        self.launcher = launcher
        self._settings = launcher.plan.settings
        self._dropped: set[int] = set()  # Node ranks, as they were launched.

    async def wait_formed(
        self, timeout: float | None, on_progress: OnProgress | None, launched: Sequence[int] | None = None
    ) -> None:
        """Wait until the world is formed. Raises LaunchError naming who is missing after ``timeout`` s (None: never).

        ``launched`` are the nodes to wait for, by default all: others may have been released since their launch.
        """
        link, launcher = self.link, self.launcher
        shown = ""

        async def check() -> None:
            nonlocal shown
            if on_progress is not None:
                instructions = launcher.instructions()
                if (text := instructions or launcher.describe()) != shown:
                    shown = text
                    on_progress(Waiting(text, is_instruction=bool(instructions)))
            failures = {n: why for n, why in launcher.failures().items() if launched is None or n in launched}
            failures = await self.weigh(failures)
            if failures and (link.facts is None or link.facts.phase == "gathering"):
                alike = ranks_by(sorted(failures.items()))
                raise LaunchError(
                    "; ".join(f"{'nodes' if len(n) > 1 else 'node'} {RankSet(n)}: {why}" for why, n in alike.items())
                )

        try:
            await wait_launched(link.wait_ready(timeout, on_progress), check)
        except TimeoutError:
            if not await self.drop_missing(launcher.failures(), timeout or 0.0):
                waits = launcher.describe()
                missing = f"{describe_missing(link.facts)} after {timeout:.0f} s"
                raise LaunchError(f"{missing}{'; ' if waits else ''}{waits}") from None
            await Started(link, launcher).wait_formed(self._settings.form_timeout, on_progress, ())  # with the others

    async def weigh(self, failures: dict[int, str]) -> dict[int, str]:
        """The failures that end the start. If enough other nodes are attached, drop the failed ones instead."""
        facts = self.link.facts
        if self._dropped or not failures or (facts is not None and facts.generation):
            return {n: why for n, why in failures.items() if n not in self._dropped}
        least = self._settings.min_nodes
        if not least or self._settings.nnodes - len(failures) < least:
            return failures
        if self._missing() == failures.keys():  # no other node may still join
            await self._drop(failures)
        return {}

    async def drop_missing(self, failures: dict[int, str], seconds: float) -> bool:
        """Drop every node that has not joined within ``seconds``. False if too few would remain or none is missing."""
        missing = self._missing()
        if self._dropped or not missing or not self._settings.min_nodes:
            return False
        late = f"it did not come within {seconds:.0f} s"
        return await self._drop({n: failures.get(n, late) for n in missing})

    def _missing(self) -> set[int]:
        facts = self.link.facts
        return set() if facts is None else {n for n, host in enumerate(facts.hostnames) if not host}

    async def _drop(self, nodes: dict[int, str]) -> bool:
        try:
            await self.link.request(DropNodes(new_request(), nodes), object)
        except UsageError:
            return False  # a node has joined or left in the meantime, or too few are attached
        self._dropped = set(nodes)
        return True


def complete(settings: Settings) -> Settings:
    """The settings with what the launcher finds out. Raises UsageError, LaunchError."""
    launcher_class = find_launcher(settings.launcher)
    settings = launcher_class.complete(settings)
    if launcher_class.is_remote and not settings.bind_host:
        settings = msgspec.structs.replace(settings, bind_host="*")
    return settings


async def launch(settings: Settings, on_event: Callable[[Message], None], kind: str) -> Started:
    """Start controller and agents and attach; the world is not formed yet. Raises UsageError, LaunchError."""
    if sys.platform != "linux":
        raise UsageError(
            f"ranks need Linux, and this system is {sys.platform}: start the cluster on a Linux host, "
            "with --at HOST, or attach to one that runs there"
        )
    launcher_class = find_launcher(settings.launcher)
    settings = complete(settings)
    check_settings(settings)
    if settings.name in connections() | restartable():
        known = (Remedy("attach", "use it", name=settings.name), Remedy("stop", "end it", name=settings.name))
        remedies = (*known, Remedy("start", "start another, with --name"))
        raise UsageError(f"a cluster called {settings.name} is already running", remedies=remedies)
    log = log_path(settings.name)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    launcher = launcher_class(plan_launch(settings))
    join_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    launching = asyncio.ensure_future(launcher.launch(join_line))
    await asyncio.sleep(0)
    starting = asyncio.ensure_future(asyncio.to_thread(start_controller, settings))
    try:
        _, controller = await asyncio.shield(starting)
        join_line.set_result(controller.join_line)
        await launching
        link = Link(read_connection(Path(controller.connection_file)), on_event)
        await link.open(kind)
    except BaseException:
        join_line.cancel()
        launching.cancel()
        await launcher.end()
        await end_controller(starting)
        remove_dead(settings.name)
        raise
    return Started(link, launcher)


async def wait_launched(work: Awaitable[T], check: Callable[[], Awaitable[None]]) -> T:
    """Wait for ``work``, and meanwhile call ``check`` again and again, which raises when the launch has failed."""
    waiting = asyncio.ensure_future(work)
    try:
        while not waiting.done():
            await check()
            await asyncio.wait([waiting], timeout=_WATCH)
        return await waiting
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


def print_waiting(progress: Progress) -> None:
    """Write to standard error why a launch waits, and what becomes of clusters that an earlier kernel has left."""
    if isinstance(progress, Waiting) and progress.text:
        print(progress.text, file=sys.stderr)
    elif isinstance(progress, EarlierNotice):
        print(progress, file=sys.stderr)


def describe_missing(facts: ClusterFacts | None) -> str:
    """How many nodes are attached and which are missing, in one line."""
    if facts is None:
        return "the controller has not reported anything yet"
    place, places = ("rank", "tasks") if facts.is_by_task else ("node", "nodes")
    here = [h for h in facts.hostnames if h]
    missing = [f"{place} {n}" for n, h in enumerate(facts.hostnames) if not h]
    text = f"{len(here)} of {facts.nnodes} {places} here"
    if missing:
        return f"{text}; missing: {', '.join(missing)}"
    if facts.phase == "gathering":
        return f"{text}; {facts.ready} of {sum(facts.nproc_per_node)} ranks up"
    return f"{text}; {facts.phase} the world of {sum(facts.nproc_per_node)} ranks"
