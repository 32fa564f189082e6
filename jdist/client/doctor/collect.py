"""Examining: nodes are asked what is on them and what time it is, and sent the ways to each other, two and two."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

from jdist.client.doctor import diagnosis
from jdist.client.doctor.diagnosis import Diagnosis, Examination
from jdist.client.doctor.findings import findings
from jdist.client.link import Link
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import (
    ClockReading,
    Listen,
    Listening,
    NetworkPath,
    NodeReport,
    NodeReported,
    PathProbed,
    ProbePath,
    ReadClock,
    ReportNode,
)
from jdist.core.messages.protocol import NodeOp, NodeReplyBody
from jdist.core.messages.status import ClusterFacts

_EXAMINED = 120.0
"""Seconds for a node to answer, in which it may have to import torch."""
_ANSWERED = 10.0
_CLOCK_LOOKS = 5
_CONNECT = 3.0
"""Seconds after which a port counts as blocked: more than a lost packet or two cost."""
_ALL_BURSTS = 15.0
"""Seconds for all of a node's bursts together."""

OnStep = Callable[[str], None]


class _Nodes:
    """The nodes that are asked, each by way of one place on it: where every task has an agent, a node has several."""

    def __init__(self, link: Link, facts: ClusterFacts):
        self._link = link
        self._places: dict[int, int] = {}
        self.absent: dict[int, str] = {}
        """Why nodes cannot be asked."""
        for place, name in enumerate(facts.hostnames):
            node = facts.node_of[place] if facts.node_of else place
            if name and place not in facts.unreachable:
                self._places.setdefault(node, place)
            else:
                self.absent[node] = "it is cut off" if name else "it is not here"
        self.absent = {n: why for n, why in self.absent.items() if n not in self._places}

    @property
    def here(self) -> list[int]:
        return sorted(self._places)

    async def ask(self, nodes: Iterable[int], op: NodeOp, timeout: float) -> dict[int, NodeReplyBody]:
        """``{node: answer}``."""
        by_place = {self._places[n]: n for n in nodes}
        answers = await self._link.query_nodes(list(by_place), op, timeout)
        return {by_place[place]: answer for place, answer in answers.items()}


async def examine(link: Link, facts: ClusterFacts, burst: float, on_step: OnStep, trouble: str = "") -> Diagnosis:
    """Every node that is here, and every way between two. ``burst``: seconds of sending on each; 0: none."""
    nodes = _Nodes(link, facts)
    here, absent = nodes.here, dict(nodes.absent)
    on_step(f"looking at {len(here)} nodes")
    reports: dict[int, NodeReport] = {}
    for node, answer in (await nodes.ask(here, ReportNode(), _EXAMINED)).items():
        if isinstance(answer, NodeReported):
            reports[node] = answer.report
        else:
            absent[node] = answer.reason if isinstance(answer, QueryFailed) else f"it answers {type(answer).__name__}"
    clocks = await _clocks(nodes, sorted(reports))
    paths = await _paths(nodes, dict(sorted(reports.items())), burst, on_step)
    size = sum(facts.nproc_per_node)
    seen = Examination(dict(sorted(reports.items())), clocks, paths, absent, size, facts.backend, trouble)
    return Diagnosis(seen, findings(seen))


async def examine_briefly(link: Link, facts: ClusterFacts) -> Diagnosis:
    """What the nodes know at once, in one round trip."""
    nodes = _Nodes(link, facts)
    reports: dict[int, NodeReport] = {}
    clocks: dict[int, diagnosis.Clock] = {}

    async def ask(node: int) -> None:
        asked = time.time()
        answer = (await nodes.ask((node,), ReportNode(is_brief=True), _ANSWERED))[node]
        if isinstance(answer, NodeReported):
            reports[node] = answer.report
            clocks[node] = _offset(asked, answer.now, time.time())

    await asyncio.gather(*map(ask, nodes.here))
    size = sum(facts.nproc_per_node)
    seen = Examination(dict(sorted(reports.items())), dict(sorted(clocks.items())), {}, {}, size, facts.backend)
    return Diagnosis(seen, findings(seen))


async def _clocks(nodes: _Nodes, numbers: Iterable[int]) -> dict[int, diagnosis.Clock]:
    """As NTP does it (RFC 5905, 8): the question's middle against the answer; of several, that of the shortest trip."""
    best: dict[int, diagnosis.Clock] = {}
    for node in numbers:
        for _ in range(_CLOCK_LOOKS):
            asked = time.time()
            answer = (await nodes.ask((node,), ReadClock(), _ANSWERED))[node]
            if not isinstance(answer, ClockReading):
                break
            found = _offset(asked, answer.now, time.time())
            if node not in best or found.error < best[node].error:
                best[node] = found
    return best


def _offset(asked: float, there: float, heard: float) -> diagnosis.Clock:
    return diagnosis.Clock(there - (asked + heard) / 2, max(0.0, heard - asked) / 2)


async def _paths(
    nodes: _Nodes, reports: Mapping[int, NodeReport], burst: float, on_step: OnStep
) -> dict[tuple[int, int], NetworkPath]:
    """Every ordered pair, in rounds in which each node goes one way and is reached on one: none disturbs another."""
    numbers = list(reports)
    rounds = len(numbers) - 1
    if rounds < 1:
        return {}
    burst = min(burst, _ALL_BURSTS / rounds)
    token = secrets.token_hex(16)
    lasting = rounds * (4 * _CONNECT + burst + _ANSWERED)
    ports: dict[int, int] = {}
    paths: dict[tuple[int, int], NetworkPath] = {}
    deaf: dict[int, str] = {}
    for node, answer in (await nodes.ask(numbers, Listen(token, lasting), _ANSWERED)).items():
        if isinstance(answer, Listening):
            ports[node] = answer.port
        else:
            deaf[node] = answer.reason if isinstance(answer, QueryFailed) else "no listener"

    async def go(asker: int, node: int) -> None:
        there = reports[node]
        if node in deaf:
            paths[asker, node] = NetworkPath(
                there.hostname, (), "", f"nothing can listen there: {deaf[node]}", "broken"
            )
            return
        op = ProbePath(there.hostname, there.address, ports[node], token, _CONNECT, burst)
        answer = (await nodes.ask((asker,), op, 4 * _CONNECT + burst + _ANSWERED))[asker]
        if isinstance(answer, PathProbed):
            paths[asker, node] = answer.path
        else:
            why = answer.reason if isinstance(answer, QueryFailed) else "no answer"
            paths[asker, node] = NetworkPath(there.hostname, (), "", why, "broken")

    try:
        for step in range(1, len(numbers)):
            on_step(f"going the ways between {len(numbers)} nodes: round {step} of {rounds}")
            pairs = [(numbers[i], numbers[(i + step) % len(numbers)]) for i in range(len(numbers))]
            await asyncio.gather(*(go(asker, node) for asker, node in pairs))
    finally:
        await nodes.ask(list(ports), Listen(token, 0.0), _ANSWERED)
    return dict(sorted(paths.items()))
