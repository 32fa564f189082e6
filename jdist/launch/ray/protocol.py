"""Protocol: the program that talks to Ray for a launcher, since a process can be connected to one Ray cluster only.

The notebook's may be connected already. This one reads a request and, for a launch, the join line on standard input,
writes progress reports to standard output, and ends when its input ends.
"""

import asyncio
import contextlib
import logging
import os
import sys
from typing import Any

import msgspec
import ray
from ray.util import remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jdist.launch.ray.launcher import KEEP, UNREACHED, RayProgress, RayRequest, parse_options
from jdist.launch.ray.supervisor import RaySupervisor, group_named

_NAMESPACE = "jdist"
_DIAL = 60.0  # Seconds to reach Ray.
_SUPERVISOR_END = 20.0
_SUPERVISOR_STARTS = 120.0
_GONE = 15.0  # Seconds until the name of a killed actor is free again.


def _report(news: RayProgress) -> None:
    os.write(_OUT, msgspec.json.encode(news) + b"\n")


async def _serve() -> str:
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
            _report(RayProgress(is_done=True))
        else:
            await _launch(request, lines)
    except Exception as e:
        return f"Ray: {' '.join(str(e).split())[:500]}"
    return ""


async def _launch(request: RayRequest, lines: asyncio.StreamReader) -> None:
    is_new = request.what == "launch"
    _report(RayProgress(waiting="Ray starts the supervisor of this cluster's nodes"))
    supervisor = await asyncio.to_thread(_new_supervisor if is_new else _find_supervisor, request)
    is_kept = False
    try:
        line = (await lines.readline()).decode().strip()
        if line:
            async with asyncio.timeout(_SUPERVISOR_STARTS):
                await supervisor.begin.remote(list(request.node_ranks), line)
            is_kept = await _follow(supervisor, lines)
    finally:
        if is_new and not is_kept:
            await _end(request.name, supervisor)


async def _follow(supervisor: Any, lines: asyncio.StreamReader) -> bool:
    """Report progress until the input ends. Returns whether to keep what was launched."""
    ended = asyncio.ensure_future(lines.read())
    known = None
    while not ended.done():
        news = asyncio.ensure_future(supervisor.news.remote(known))
        await asyncio.wait([ended, news], return_when=asyncio.FIRST_COMPLETED)
        if news.done():
            known = news.result()
            _report(known)
        else:
            news.cancel()
    return KEEP.encode() in ended.result()


def _new_supervisor(request: RayRequest) -> Any:
    """Create the supervisor, on this host if Ray has room."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
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


async def _main() -> None:
    """Serve, then exit at once: a thread that still connects to Ray must not hold up the exit."""
    if error := await _serve():
        _report(RayProgress(error=error))
    if ray.is_initialized():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE):
                await asyncio.to_thread(ray.shutdown)
    sys.stderr.flush()
    os._exit(1 if error else 0)


if __name__ == "__main__":
    _OUT = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is for the log
    asyncio.run(_main())
