"""Preflight: examines nodes before a start, by a temporary cluster. If it forms no world, the reason is a finding."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from jdist.client.attachment import Attachment
from jdist.client.doctor.collect import OnStep, examine
from jdist.client.doctor.diagnosis import Diagnosis, Examination
from jdist.client.doctor.findings import diagnose
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.start import Progress, Started, Waiting, describe_missing, make_settings
from jdist.client.link import Link
from jdist.core.errors import ConnectionLost, LaunchError
from jdist.core.messages.status import ClusterFacts, Notice

NODES_WITHIN = 120.0  # Seconds for the nodes to join, unless the user sets a timeout.
_FORMED_WITHIN = 30.0  # Seconds more for the world, once everything else has been examined.
_POLL = 0.25


async def examine_beforehand(
    nproc_per_node: Any,
    nnodes: int | None,
    *,
    timeout: float | None = None,
    kind: str = "python",
    on_step: OnStep = lambda _: None,
    **options: Any,
) -> Diagnosis:
    """Start the cluster that ``options`` (of ``start``) describe, examine it, and end it again. Raises UsageError."""
    beginning = "starting a temporary cluster"

    def report(progress: Progress) -> None:
        match progress:
            case ClusterFacts():
                on_step(f"{beginning}: {describe_missing(progress)}")
            case Waiting(text) | Notice(text):
                on_step(f"{beginning}: {text}")

    on_step(beginning)
    attachment = Attachment()
    lifecycle = ClusterLifecycle(attachment)
    try:
        async with lifecycle.launching(make_settings(nproc_per_node or 1, nnodes, **options), kind, report) as started:
            await _wait_gathered(started, timeout or NODES_WITHIN, report)
    except (LaunchError, ConnectionLost) as e:
        return diagnose(Examination({}, {}, {}, {}, trouble=str(e)))
    try:
        diagnosis = await examine(attachment.link, attachment.facts, on_step)
        failures = {} if lifecycle.launcher is None else lifecycle.launcher.failures()
        absent = {n: failures.get(n, why) for n, why in diagnosis.examination.absent.items()}
        on_step("forming the world")
        within = _FORMED_WITHIN if diagnosis.is_well else 0.0
        trouble = "" if absent else await _forming_trouble(attachment.link, within)
        backend = attachment.facts.backend
        return diagnose(replace(diagnosis.examination, absent=absent, backend=backend, trouble=trouble))
    finally:
        with contextlib.suppress(ConnectionLost):
            await lifecycle.stop()


async def _wait_gathered(started: Started, seconds: float, report: Callable[[Progress], None]) -> None:
    """Wait until every node is attached and its ranks are up, or until no more can join or ``seconds`` have passed."""
    link, launcher = started.link, started.launcher
    deadline = time.monotonic() + seconds
    while not link.lost and time.monotonic() < deadline:
        if link.facts is not None:
            if link.facts.phase in {"forming", "ready", "failed"}:
                break
            report(link.facts)
        if text := launcher.instructions() or launcher.describe():
            report(Waiting(text))
        hosts = () if link.facts is None else link.facts.hostnames
        if (failures := launcher.failures()) and failures.keys() >= {n for n, host in enumerate(hosts) if not host}:
            break
        await asyncio.sleep(_POLL)  # neither a launcher's failure nor a rank that comes up triggers an event here
    if link.facts is None or not any(link.facts.hostnames):
        raise LaunchError("; ".join(launcher.failures().values()) or describe_missing(link.facts))


async def _forming_trouble(link: Link, within: float) -> str:
    """The reason why there is no world. ``within`` 0: only one that is known at once."""
    try:
        await link.wait_ready(within)
    except TimeoutError:
        return f"not within {within:.0f} s ({describe_missing(link.facts)})" if within else ""
    except (LaunchError, ConnectionLost) as e:
        return str(e)
    return ""
