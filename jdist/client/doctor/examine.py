"""Examine: ask nodes for their facts and clocks, and have them probe the network paths to each other in rounds.

Before a start, a temporary cluster is examined. If it forms no world, the reason is a finding.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from jdist.client.attachment import Attachment
from jdist.client.doctor.findings import Diagnosis, Examination, diagnose
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
from jdist.client.lifecycle.start import Progress, Started, Waiting, describe_missing, make_settings
from jdist.client.link import Link
from jdist.client.measure.timeline import Clock, read_clocks
from jdist.core.errors import ConnectionLost, LaunchError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import Listen, Listening, NetworkPath, NodeReport, ProbePath, ReportNode
from jdist.core.messages.protocol import NodeOp, NodeReplyBody
from jdist.core.messages.status import ClusterFacts, Notice

_EXAMINED = 120.0  # Seconds for a node to answer, in which it may have to import torch.
_ANSWERED = 10.0
_CONNECT = 3.0  # Seconds after which a port counts as blocked: longer than one or two lost packets take.

OnStep = Callable[[str], None]


class _ExaminedNodes:
    """The nodes to examine, each through one of its agents: where every launcher task has an agent, it has several."""

    def __init__(self, link: Link, facts: ClusterFacts):
        self._link = link
        self.places: dict[int, int] = {}
        absent: dict[int, str] = {}
        for place, name in enumerate(facts.hostnames):
            node = facts.node_of[place] if facts.node_of else place
            if name and place not in facts.unreachable:
                self.places.setdefault(node, place)
            else:
                absent[node] = "it is unreachable" if name else "it is not attached"
        self.absent = {n: why for n, why in absent.items() if n not in self.places}  # Why nodes cannot be asked.
        self.numbers = sorted(self.places)

    async def query(self, nodes: Iterable[int], op: NodeOp, timeout: float) -> dict[int, NodeReplyBody]:
        """``{node: answer}``."""
        by_place = {self.places[n]: n for n in nodes}
        answers = await self._link.query_nodes(list(by_place), op, timeout)
        return {by_place[place]: answer for place, answer in answers.items()}


async def examine(link: Link, facts: ClusterFacts, on_step: OnStep) -> Diagnosis:
    """Examine every attached node and every path between two."""
    nodes = _ExaminedNodes(link, facts)
    absent = dict(nodes.absent)
    on_step(f"examining {len(nodes.numbers)} nodes")
    reports: dict[int, NodeReport] = {}
    for node, answer in sorted((await nodes.query(nodes.numbers, ReportNode(), _EXAMINED)).items()):
        if isinstance(answer, NodeReport):
            reports[node] = answer
        else:
            absent[node] = _reason(answer)
    read = await read_clocks(link, (nodes.places[node] for node in reports), _ANSWERED)
    clocks = {node: read[nodes.places[node]] for node in reports if nodes.places[node] in read}
    paths = await _probe_paths(nodes, reports, on_step)
    return diagnose(Examination(reports, clocks, paths, absent, sum(facts.nproc_per_node), facts.backend))


async def examine_briefly(link: Link, facts: ClusterFacts) -> Diagnosis:
    """Collect what the nodes know at once, in one round trip."""
    nodes = _ExaminedNodes(link, facts)
    reports: dict[int, NodeReport] = {}
    clocks: dict[int, Clock] = {}

    async def query(node: int) -> None:
        asked = time.time()
        answer = (await nodes.query((node,), ReportNode(is_brief=True), _ANSWERED))[node]
        if isinstance(answer, NodeReport):
            reports[node] = answer
            clocks[node] = Clock.measured(asked, answer.now)

    await asyncio.gather(*map(query, nodes.numbers))
    reports, clocks = dict(sorted(reports.items())), dict(sorted(clocks.items()))
    return diagnose(Examination(reports, clocks, {}, {}, sum(facts.nproc_per_node), facts.backend))


async def _probe_paths(
    nodes: _ExaminedNodes, reports: Mapping[int, NodeReport], on_step: OnStep
) -> dict[tuple[int, int], NetworkPath]:
    """Probe every ordered pair, in rounds in which each node probes one path and is probed on one, undisturbed."""
    numbers = list(reports)
    rounds = len(numbers) - 1
    if rounds < 1:
        return {}
    token = secrets.token_hex(16)
    within = 4 * _CONNECT + _ANSWERED
    listening = await nodes.query(numbers, Listen(token, rounds * within), _ANSWERED)
    paths: dict[tuple[int, int], NetworkPath] = {}

    async def probe(asker: int, node: int) -> None:
        there, listener = reports[node], listening[node]
        if not isinstance(listener, Listening):
            why = f"nothing can listen there: {_reason(listener)}"
            paths[asker, node] = NetworkPath(there.hostname, (), "", why, "broken")
            return
        op = ProbePath(there.hostname, there.address, listener.port, token, _CONNECT)
        answer = (await nodes.query((asker,), op, within))[asker]
        if not isinstance(answer, NetworkPath):
            answer = NetworkPath(there.hostname, (), "", _reason(answer), "broken")
        paths[asker, node] = answer

    try:
        for step in range(1, len(numbers)):
            on_step(f"probing the paths between {len(numbers)} nodes: round {step} of {rounds}")
            pairs = [(numbers[i], numbers[(i + step) % len(numbers)]) for i in range(len(numbers))]
            await asyncio.gather(*(probe(asker, node) for asker, node in pairs))
    finally:
        await nodes.query([n for n, a in listening.items() if isinstance(a, Listening)], Listen(token, 0.0), _ANSWERED)
    return dict(sorted(paths.items()))


def _reason(answer: NodeReplyBody) -> str:
    return answer.reason if isinstance(answer, QueryFailed) else f"unexpected answer {type(answer).__name__}"


# ---------------------------------------------------------------- before a start


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
