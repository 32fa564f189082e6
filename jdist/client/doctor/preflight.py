"""Beforehand: nodes are examined before a cluster is started on them, by way of one that is thrown away afterwards.

It has one rank a node unless told otherwise, and need not form a world: why it could not is among the findings.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from jdist.client.cluster import AsyncCluster
from jdist.client.doctor.collect import OnStep, examine
from jdist.client.doctor.diagnosis import Diagnosis, Examination
from jdist.client.doctor.findings import findings
from jdist.client.lifecycle.start import Progress, Started, Waiting, describe_missing
from jdist.core.errors import ConnectionLost, LaunchError
from jdist.core.messages.status import ClusterFacts, Notice

NODES_WITHIN = 120.0
"""Seconds for the nodes to come, unless the user says otherwise."""
_FORMED_WITHIN = 30.0
"""Seconds more for the world, once everything else has been looked at."""
_LOOK = 0.25


class _Gathered(AsyncCluster):
    """A cluster that counts as started when its nodes are here and their ranks up, or some are and time is over."""

    launched: Started

    async def _wait(self, started: Started, timeout: float | None, tell: Callable[[Progress], None]) -> None:
        self.launched = started
        until = time.monotonic() + (timeout or NODES_WITHIN)
        while not self._is_here(started) and time.monotonic() < until:
            if started.link.facts is not None:
                tell(started.link.facts)
            if text := started.launcher.describe():
                tell(Waiting(text))
            failures = started.launcher.failures()
            if failures and set(failures) >= self._missing(started):
                break
            await asyncio.sleep(_LOOK)  # neither a launcher's failures nor a rank that comes up wake anybody
        facts = started.link.facts
        if facts is None or not any(facts.hostnames):
            raise LaunchError("; ".join(self.failures().values()) or describe_missing(facts))

    def _is_here(self, started: Started) -> bool:
        facts = started.link.facts
        if facts is None or started.link.lost:
            return bool(started.link.lost)
        return facts.phase in {"forming", "ready", "failed"}

    def _missing(self, started: Started) -> set[int]:
        facts = started.link.facts
        return set() if facts is None else {n for n, h in enumerate(facts.hostnames) if not h}

    def failures(self) -> dict[int, str]:
        """Why nodes that were launched are not here, by node rank."""
        return self.launched.launcher.failures()


async def examine_beforehand(
    nproc_per_node: Any, nnodes: int | None, *, burst: float = 0.3, on_step: OnStep = lambda _: None, **options: Any
) -> Diagnosis:
    """Start what ``options`` (of ``start``) say, examine it, and end it again. Raises UsageError."""
    beginning = "starting a cluster to be thrown away"

    def tell(progress: Progress) -> None:
        match progress:
            case ClusterFacts():
                on_step(f"{beginning}: {describe_missing(progress)}")
            case Waiting(text) | Notice(text):
                on_step(f"{beginning}: {text}")

    on_step(beginning)
    try:
        cluster = await _Gathered.start(nproc_per_node or 1, nnodes, on_progress=tell, **options)
    except (LaunchError, ConnectionLost) as e:
        seen = Examination({}, {}, {}, {}, trouble=str(e))
        return Diagnosis(seen, findings(seen))
    try:
        facts = cluster.facts
        diagnosis = await examine(cluster.link, facts, burst, on_step)
        seen = diagnosis.examination
        failures = cluster.failures()
        absent = {n: failures.get(n, why) for n, why in seen.absent.items()}
        on_step("forming the world")
        trouble = "" if absent else await _forming_trouble(cluster, _FORMED_WITHIN if diagnosis.is_well else 0.0)
        seen = Examination(seen.nodes, seen.clocks, seen.paths, absent, seen.world_size, cluster.facts.backend, trouble)
        return Diagnosis(seen, findings(seen))
    finally:
        with contextlib.suppress(ConnectionLost):
            await cluster.stop()


async def _forming_trouble(cluster: AsyncCluster, within: float) -> str:
    """Why there is no world; what is known of that already if ``within`` is 0, since the cause has been found then."""
    try:
        await cluster.link.wait_ready(within)
    except TimeoutError:
        return f"not within {within:.0f} s ({describe_missing(cluster.facts)})" if within else ""
    except (LaunchError, ConnectionLost) as e:
        return str(e)
    return ""
