"""Drill: starts a temporary cluster with each backend, makes the trials on it, and ends it again."""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from jdist.client import find
from jdist.client.cluster import AsyncCluster
from jdist.client.drill.drilled_cluster import DrilledCluster, NotTried, Unmet
from jdist.client.drill.report import Drill, Trial
from jdist.client.drill.trials import TRIALS, TrialFunction
from jdist.client.lifecycle.start import Progress, Waiting, check_backend
from jdist.client.link import Link
from jdist.core.errors import JdistError, UsageError

_STARTED = 120.0  # Seconds for the cluster to start, unless the user sets a timeout.
_GLOO_RANKS = 2  # On this machine, unless the user says how many.

OnStep = Callable[[str], None]


def options_like(link: Link) -> dict[str, Any]:
    """The options with which another cluster as this one is started. Raises UsageError where they are not known."""
    charter = find.charter_of(link.connection)
    if charter is None:
        raise UsageError(
            f"cluster {link.connection.name} was started from another host, so how to start one like it is not known "
            "here; name the options of start"
        )
    settings = charter.settings
    return {
        "nproc_per_node": settings.nproc_per_node or None,
        "nnodes": settings.nnodes or None,
        "backend": settings.backend or None,
        "launcher": settings.launcher,
        "launcher_args": settings.launcher_args,
        "hosts": settings.hosts,
        "env": dict(settings.env),
        "bind_host": settings.bind_host,
        "fork": settings.fork,
    }


async def run_drills(backends: Sequence[str | None], on_step: OnStep, **options: Any) -> tuple[Drill, ...]:
    """A drill with each backend (None: the cluster's own choice), with options of ``start``. Raises UsageError."""
    options = {"timeout": _STARTED} | {k: v for k, v in options.items() if v is not None}
    options |= {"on_death": "replace", "until": os.getpid()}
    for backend in backends:
        check_backend(backend or "")
    found: list[Drill] = []
    for backend in backends:
        found.append(await _drill(backend, on_step, options, is_first=not found))
    return tuple(found)


async def _drill(backend: str | None, on_step: OnStep, options: dict[str, Any], *, is_first: bool) -> Drill:
    drill = Drill(backend or "", options.get("launcher", "local"))
    todo = list(TRIALS.items())
    done: list[Trial] = []
    while todo:
        beginning = f"starting a temporary cluster{f' with backend {backend}' if backend else ''}"

        def report(progress: Progress, beginning: str = beginning) -> None:
            if isinstance(progress, Waiting) and progress.text:  # such as the line with which nodes join
                on_step(f"{beginning}: {progress.text}")

        on_step(beginning)
        if (backend, drill.launcher) == ("gloo", "local") and not options.get("nproc_per_node"):
            options = options | {"nproc_per_node": _GLOO_RANKS}  # not one for each GPU, of which there may be only one
        try:
            cluster = await AsyncCluster.start(backend=backend, keep=True, **options, on_progress=report)
        except JdistError as e:
            if isinstance(e, UsageError) and is_first and not done:
                raise  # else what has been found out would be lost
            why = f"the cluster could not be started{' again' if done else ''}: {e}"
            done += [Trial(name, "not tried", why) for name, _ in todo]
            return replace(drill, trials=tuple(done), trouble=drill.trouble or why)
        try:
            if not done:
                hosts = tuple(map(cluster.topology.host_of_node, range(cluster.topology.nnodes)))
                drill = replace(drill, backend=cluster.backend, world_size=cluster.world_size, hosts=hosts)
                drill = replace(drill, start_seconds=cluster.start_seconds)
            drilled = DrilledCluster(cluster)
            drill = replace(drill, torch=drill.torch or await drilled.torch_versions())
            while todo:
                name, function = todo.pop(0)
                on_step(f"{cluster.backend}: {name} ({len(done) + 1} of {len(TRIALS)})")
                done.append(await _try(drilled, name, function))
                if done[-1].result == "failed":
                    break  # what the failure has left behind must not fail the next trial
        finally:
            with contextlib.suppress(JdistError):
                await cluster.stop()
    return replace(drill, trials=tuple(done))


async def _try(drilled: DrilledCluster, name: str, function: TrialFunction) -> Trial:
    try:
        await drilled.prepare(name)
        await function(drilled)
    except NotTried as e:
        return Trial(name, "not tried", str(e))
    except (Unmet, JdistError, OSError) as e:
        return replace(drilled.trial, result="failed", reason=str(e) or type(e).__name__)
    return drilled.trial
