"""What talks to Ray for a launcher: a program of its own, and the actors that it starts in the Ray cluster.

A process can be connected to one Ray cluster only, and the notebook's may be connected already. The program reads a
request and, for a launch, the join line on standard input, writes progress reports to standard output, and ends when
its input ends.

The supervisor is the one actor that represents a jdist cluster; it owns placement group and agents, and requests no
resources. It ends when the agents have ended, when it is told to, or when the program that started it ends before the
launch was complete. States of a node: *pending* (bundle not placed) → *starting* → *running* → *ended*.

The supervisor is detached, so that it outlives the program. Ray ends what an actor has created as soon as that actor's
process or node dies: with the supervisor, the placement group, the agents and their ranks end.
"""

import asyncio
import collections
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import ray
from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from jdist.launch.base import join_words
from jdist.launch.ray import KEEP, UNREACHED, RayProgress, RayRequest, fitting, parse_options
from jdist.wire.processes import prepare_streams

_log = logging.getLogger("jdist.launch")
_LOOK = 0.5  # Seconds between two polls of Ray's scheduler, which sends no notification.
_AGENT_END = 8.0  # Seconds for a terminated agent to end.
_LINGER = 60.0  # Seconds after the last agent's end for which the supervisor can still be asked for the reason.
_LINES = 5
_NEWS = 10.0  # Seconds after which a request for progress returns even without any.
# The agent, which ends in order when the actor that started it ends.
_AGENT = """\
import sys
from jdist.commands import main
from jdist.wire.processes import die_with_parent
die_with_parent("SIGTERM")
sys.exit(main(sys.argv[1:]))
"""
_RAYS_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_WORKER_ID")  # Ray's own; a rank that uses Ray must not inherit them.

_NAMESPACE = "jdist"
_DIAL = 60.0  # Seconds to reach Ray.
_SUPERVISOR_END = 20.0
_SUPERVISOR_STARTS = 120.0
_GONE = 15.0  # Seconds until the name of a killed actor is free again.

Report = Callable[[RayProgress], object]


class RayNode:
    """Actor for one node: it runs the node's agent."""

    def __init__(self) -> None:
        prepare_streams()
        self._agent: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[tuple[int, str]] | None = None

    async def start(self, words: list[str], env: dict[str, str], cpus: float, line: str) -> None:
        """Start ``jdist join`` with the line on its standard input."""
        own = {k: v for k, v in os.environ.items() if k not in _RAYS_OWN}
        if own.get("OMP_NUM_THREADS") == str(max(1, int(cpus))):
            del own["OMP_NUM_THREADS"]  # Ray's, for this actor; each of the agent's ranks would take as many
        self._agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _AGENT, *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**own, **env},
            start_new_session=True,
        )
        if self._agent.stdin is not None:
            self._agent.stdin.write(line.encode() + b"\n")
            self._agent.stdin.close()
        self._following = asyncio.get_running_loop().create_task(self._follow(self._agent))

    async def _follow(self, agent: asyncio.subprocess.Process) -> tuple[int, str]:
        said: collections.deque[str] = collections.deque(maxlen=_LINES)
        while agent.stdout is not None and (line := await agent.stdout.readline()):
            said.append(line.decode(errors="replace").strip())
            print(said[-1], flush=True)  # into Ray's log of this actor
        return await agent.wait(), " / ".join(said)[-400:]

    async def wait(self) -> tuple[int, str]:
        """Wait for the agent's end; its exit code and last output."""
        return (1, "it was not started") if self._following is None else await asyncio.shield(self._following)

    async def end(self) -> None:
        """End the agent, and with it the node's ranks."""
        if self._agent is None or self._agent.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._agent.terminate()
            try:
                async with asyncio.timeout(_AGENT_END):
                    await self._agent.wait()
            except TimeoutError:
                self._agent.kill()


class RaySupervisor:
    """Actor that supervises the nodes of one launch; see the module's docstring."""

    def __init__(self, request: bytes):
        self._request = msgspec.json.decode(request, type=RayRequest)
        self._name = self._request.name
        self._self = ray.get_runtime_context().current_actor
        self._group: PlacementGroup | None = None
        self._cpus = self._gpus = 0.0
        self._nodes: dict[int, Any] = {}  # Node actors by node rank.
        self._progress = RayProgress()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, node_ranks: list[int], line: str) -> None:
        """Start agents for these nodes as soon as there are resources. Returns before that."""
        failures = {n: why for n, why in self._progress.failures.items() if n not in node_ranks}
        await self._report(failures=failures, is_done=False)
        self._keep(self._begin(node_ranks, line))

    async def news(self, known: RayProgress | None) -> RayProgress:
        """Wait until the progress differs from ``known``, for a while at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NEWS), self._changed:
                await self._changed.wait_for(lambda: self._progress != known)
        return self._progress

    async def end(self) -> None:
        """End agents, actors and the placement group."""
        for task in self._tasks:
            task.cancel()
        ends = [node.end.remote() for node in self._nodes.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGENT_END + 2):
                await asyncio.gather(*ends, return_exceptions=True)  # a node may be gone
        self._leave_nothing()

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report(self, **changes: Any) -> None:
        """Change fields of the progress, and wake those who wait for news."""
        self._progress = msgspec.structs.replace(self._progress, **changes)  # before anything is awaited
        async with self._changed:
            self._changed.notify_all()

    async def _fail(self, node_ranks: list[int], why: str) -> None:
        await self._report(failures={**self._progress.failures, **dict.fromkeys(node_ranks, why)})

    async def _begin(self, node_ranks: list[int], line: str) -> None:
        try:
            if self._group is None:
                self._ask_for_places()
            while (row := placement_group_table(self._group)).get("state") != "CREATED":
                await self._report(waiting=self._pending(row))
                await asyncio.sleep(_LOOK)
            nodes = f"node{'s' if len(node_ranks) > 1 else ''} {', '.join(map(str, node_ranks))}"
            await self._report(waiting=f"Ray starts the agents of {nodes}")
            await asyncio.gather(*(self._start(n, line) for n in node_ranks))
        except Exception as e:
            _log.exception("nodes %s could not be started", node_ranks)
            await self._fail(node_ranks, _reason(e))
        await self._report(waiting="", is_done=True)

    def _ask_for_places(self) -> None:
        """Create a placement group with one bundle for each node, on different nodes of Ray."""
        r, found = self._request, [n["Resources"] for n in ray.nodes() if n["Alive"]]
        asked, nnodes = parse_options(r.settings.launcher_args), len(r.node_ranks)
        counts = r.settings.nproc_per_node
        ranks = float(max(counts[min(n, len(counts) - 1)] for n in r.node_ranks)) if counts else 0.0
        cpus = [n.get("CPU", 0.0) for n in found]
        gpus = [n.get("GPU", 0.0) for n in found] if r.settings.backend != "gloo" else []
        wanted = (ranks or max(gpus)) if any(gpus) else 0.0
        self._cpus = fitting(cpus, nnodes, ranks or 1.0) if asked.num_cpus is None else asked.num_cpus
        self._gpus = fitting(gpus, nnodes, wanted) if asked.num_gpus is None else asked.num_gpus
        # A bundle of nothing is refused; of memory every node has a byte.
        bundle = {k: v for k, v in (("CPU", self._cpus), ("GPU", self._gpus)) if v} or {"memory": 1.0}
        self._group = placement_group([bundle] * nnodes, strategy="STRICT_SPREAD", name=self._name)

    def _pending(self, row: dict[str, Any]) -> str:
        needed = {"CPU": self._cpus, "GPU": self._gpus}
        alive = [n for n in ray.nodes() if n["Alive"]]
        able = [n for n in alive if all(n["Resources"].get(k, 0.0) >= v for k, v in needed.items())]
        each = " and ".join(f"{v:g} {k}" for k, v in needed.items() if v) or "no resources"
        there = ", ".join(f"{n['NodeManagerAddress']} ({_has(n['Resources'])})" for n in able) or "none"
        free = _has(ray.available_resources())
        why = str(row.get("stats", {}).get("scheduling_state", "")).lower().replace("_", " ")
        return (
            f"Ray's placement group {self._name} is {row.get('state', 'asked for').lower()}"
            f"{f' ({why})' if why else ''}: {len(self._request.node_ranks)} nodes with {each} each are asked for; "
            f"of Ray's nodes that have as much: {there}; free in all: {free}"
        )

    async def _start(self, node_rank: int, line: str) -> None:
        old = self._nodes.pop(node_rank, None)
        if old is not None:
            ray.kill(old)
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._request.node_ranks.index(node_rank)
        )
        kind: Any = ray.remote(RayNode)
        size = {"num_cpus": self._cpus, "num_gpus": self._gpus, "scheduling_strategy": strategy}
        node = self._nodes[node_rank] = kind.options(**size).remote()
        settings = self._request.settings
        try:
            await node.start.remote(join_words(node_rank, fork=settings.fork), dict(settings.env), self._cpus, line)
        except Exception as e:
            _log.exception("node %d could not be started", node_rank)
            await self._fail([node_rank], _reason(e))
        else:
            self._keep(self._follow(node_rank, node))

    async def _follow(self, node_rank: int, node: Any) -> None:
        """Wait for the end of a node's agent."""
        try:
            code, said = await node.wait.remote()
            why = f"its agent ended with code {code}{f': {said}' if said else ''}"
        except Exception as e:
            why = _reason(e)
        await self._fail([node_rank], why)
        await self._end_if_alone()

    async def _end_if_alone(self) -> None:
        """Remove everything and end, if no agent is left after a while."""
        if self._progress.failures.keys() >= self._nodes.keys():
            await asyncio.sleep(_LINGER)
            if self._progress.failures.keys() >= self._nodes.keys():
                self._leave_nothing()
                ray.kill(self._self)

    def _leave_nothing(self) -> None:
        for node in self._nodes.values():
            ray.kill(node)
        if self._group is not None:
            remove_placement_group(self._group)


def group_named(name: str) -> PlacementGroup | None:
    """A supervisor's placement group, if it exists. Removing it ends everything that runs in it."""
    with contextlib.suppress(ValueError):  # there is none
        return get_placement_group(name)
    return None


def _has(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(k, 0.0):g} {k}" for k in ("CPU", "GPU") if k == "CPU" or resources.get(k))


def _reason(error: BaseException) -> str:
    """Ray's message on one line. The traceback is in Ray's own logs."""
    cause = getattr(error, "cause", None) or error
    return f"Ray: {' '.join(str(cause).split())[:500] or type(cause).__name__}"


async def _serve(report: Report) -> str:
    """Do what is requested. Returns what went wrong, or ""."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    request = msgspec.json.decode(await lines.readline(), type=RayRequest)
    address = parse_options(request.settings.launcher_args).address
    try:
        async with asyncio.timeout(_DIAL):
            quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
            await asyncio.to_thread(ray.init, address=address, namespace=_NAMESPACE, **quiet)
    except TimeoutError:
        return f"{UNREACHED}: nothing answers as a Ray cluster at {address} within {_DIAL:.0f} s"
    except Exception as e:
        return f"{UNREACHED} at {address}: {' '.join(str(e).split())[:300]}"
    try:
        if request.what == "clear":
            await _clear(request)
            report(RayProgress(is_done=True))
        else:
            await _launch(request, lines, report)
    except Exception as e:
        return f"Ray: {' '.join(str(e).split())[:500]}"
    return ""


async def _launch(request: RayRequest, lines: asyncio.StreamReader, report: Report) -> None:
    is_new = request.what == "launch"
    report(RayProgress(waiting="Ray starts the supervisor of this cluster's nodes"))
    supervisor = await asyncio.to_thread(_new_supervisor if is_new else _find_supervisor, request)
    is_kept = False
    try:
        line = (await lines.readline()).decode().strip()
        if line:
            async with asyncio.timeout(_SUPERVISOR_STARTS):
                await supervisor.begin.remote(list(request.node_ranks), line)
            is_kept = await _follow(supervisor, lines, report)
    finally:
        if is_new and not is_kept:
            await _end(request.name, supervisor)


async def _follow(supervisor: Any, lines: asyncio.StreamReader, report: Report) -> bool:
    """Report progress until the input ends. Returns whether to keep what was launched."""
    ended = asyncio.ensure_future(lines.read())
    known = None
    while not ended.done():
        news = asyncio.ensure_future(supervisor.news.remote(known))
        await asyncio.wait([ended, news], return_when=asyncio.FIRST_COMPLETED)
        if news.done():
            known = news.result()
            report(known)
        else:
            news.cancel()
    return KEEP.encode() in ended.result()


def _new_supervisor(request: RayRequest) -> Any:
    """Create the supervisor on this host: on another node it would end with that node, and all other nodes with it."""
    # Not soft: Ray then places an actor that needs no resources on any node.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kind: Any = ray.remote(RaySupervisor)
    lasting = {"lifetime": "detached", "max_concurrency": 100}
    options = kind.options(name=request.name, num_cpus=0, scheduling_strategy=here, **lasting)
    return options.remote(msgspec.json.encode(request))


def _find_supervisor(request: RayRequest) -> Any:
    """The supervisor of this node."""
    for name in (f"{request.label}-n{request.node_ranks[0]}", request.label):
        with contextlib.suppress(ValueError):  # it was added by a launch of its own, or not
            return ray.get_actor(name)
    raise LookupError(f"the supervisor {request.label} is gone, and all of the cluster's nodes in Ray with it")


def _names(request: RayRequest) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    found = [n["name"] for n in named if n["namespace"] == _NAMESPACE]
    return [n for n in found if n == request.label or n.startswith(f"{request.label}-n")]


async def _clear(request: RayRequest) -> None:
    """End every supervisor of the cluster, or that of an added node."""
    wanted = [n for n in await asyncio.to_thread(_names, request) if request.is_first or n == request.name]
    for name in wanted:
        await _end(name, ray.get_actor(name))
    async with asyncio.timeout(_GONE):
        while set(await asyncio.to_thread(_names, request)) & set(wanted):  # noqa: ASYNC110 — nothing wakes a waiter
            await asyncio.sleep(0.1)


async def _end(name: str, supervisor: Any) -> None:
    try:
        async with asyncio.timeout(_SUPERVISOR_END):
            await supervisor.end.remote()
    except (TimeoutError, ray.exceptions.RayError):
        text = "jdist: the supervisor did not end its nodes; Ray ends them with their placement group"
        print(text, file=sys.stderr, flush=True)
    ray.kill(supervisor)
    group = group_named(name)
    if group is not None:
        remove_placement_group(group)


async def _main(report: Report) -> None:
    """Serve, then exit at once: a thread that still connects to Ray must not hold up the exit."""
    if error := await _serve(report):
        report(RayProgress(error=error))
    if ray.is_initialized():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE):
                await asyncio.to_thread(ray.shutdown)
    sys.stderr.flush()
    os._exit(1 if error else 0)


def main() -> None:
    """Run the program. Not with ``-m``: Ray finds the supervisor's class by this module's name."""
    out = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is for the log
    asyncio.run(_main(lambda news: os.write(out, msgspec.json.encode(news) + b"\n")))
