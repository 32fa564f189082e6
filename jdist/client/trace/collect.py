"""Collect: queries every rank for its calls in a run, timed by this client's clock, and makes a Trace of them."""

import asyncio
import time
from collections.abc import Mapping

from jdist.client.link import Link
from jdist.client.trace.clocks import Clocks, estimate
from jdist.client.trace.match_calls import Meeting, match
from jdist.client.trace.report import TraceReport
from jdist.client.trace.timeline import timeline
from jdist.client.trace.trace import Trace
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.observation import GetTrace, Observation, Observe, RankTrace
from jdist.core.messages.protocol import RankReplyBody
from jdist.core.messages.status import ClusterFacts
from jdist.core.topology import Topology

# Seconds for a rank to answer, by a thread of its own, also while its main thread is stuck. The first answer takes
# longest, on a busy machine seconds, since torch's recorder then looks up the lines of all calls.
_TIMEOUT = 20.0
# Nodes with equal host names are taken to share a clock, unless their offsets differ by this many seconds more than
# their errors allow.
_SAME_HOST_ERROR = 2e-3


async def collect_trace(link: Link, facts: ClusterFacts, run: int) -> Trace:
    """The trace of ``run`` (0: the last one). Raises UsageError when no rank knows of it."""
    ranks = tuple(range(facts.topology.world_size))
    trips: dict[int, tuple[float, float]] = {}

    async def trace(rank: int) -> RankReplyBody:
        sent = time.time()
        answer = (await link.query((rank,), GetTrace(run), _TIMEOUT))[rank]
        trips[rank] = sent, time.time()
        return answer

    traces = asyncio.gather(*map(trace, ranks))
    answers, observed = await asyncio.gather(traces, link.query(ranks, Observe(), _TIMEOUT))
    observations = {r: a for r, a in observed.items() if isinstance(a, Observation)}
    return assemble(dict(zip(ranks, answers, strict=True)), trips, observations, facts, run)


def assemble(
    answers: Mapping[int, RankReplyBody],
    trips: Mapping[int, tuple[float, float]],
    observations: Mapping[int, Observation],
    facts: ClusterFacts,
    run: int = 0,
) -> Trace:
    """The trace of what ranks answered; ``observations`` give the groups' members and names. Raises UsageError."""
    topology = facts.topology
    found = {r: a for r, a in sorted(answers.items()) if isinstance(a, RankTrace)}
    absent = {
        r: a.reason if isinstance(a, QueryFailed) else str(a) for r, a in sorted(answers.items()) if r not in found
    }
    number = run or max((a.run for a in found.values()), default=0)
    traced = {r: a for r, a in found.items() if a.run == number and number}
    if not traced:
        raise UsageError(_nothing(run, absent))
    # the last run of the others is an earlier one (or none), so they had no part in this one
    elsewhere = tuple(r for r in found if r not in traced)
    groups = {g.name: g for each in observations.values() for g in each.groups}
    meetings = match(traced, {name: g.ranks for name, g in groups.items()}, elsewhere)
    nodes = {r: f"{topology.node_rank(r)} {topology.host_of(r)}" for r in answers}
    hosts, clocks = _clocks(traced, meetings, topology, trips, facts.backend)
    return Trace(
        TraceReport(
            timeline=timeline(traced, meetings, hosts, clocks),
            places=nodes,
            labels={name: g.label for name, g in groups.items()},
            absent=absent,
            elsewhere=elsewhere,
        )
    )


def _clocks(
    traced: Mapping[int, RankTrace],
    meetings: list[Meeting],
    topology: Topology,
    trips: Mapping[int, tuple[float, float]],
    backend: str,
) -> tuple[dict[int, str], Clocks]:
    """The host of each rank, and the hosts' clocks. Nodes with one host name share a clock, unless times contradict."""
    nodes = {r: f"node {topology.node_rank(r)}" for r in traced}
    names = {r: topology.host_of(r) for r in traced}
    hosts = {r: names[r] if names[r] not in ("", "?") else nodes[r] for r in traced}
    are_ends_true = "nccl" not in backend  # whose calls return when the operation is queued
    by_node = estimate(traced, meetings, nodes, trips, are_ends_true=are_ends_true)
    for a, b in {(nodes[a], nodes[b]) for a in traced for b in traced if hosts[a] == hosts[b]}:
        apart = abs(by_node.offsets[a] - by_node.offsets[b])
        if apart > by_node.errors[a] + by_node.errors[b] + _SAME_HOST_ERROR:
            return nodes, by_node
    return hosts, estimate(traced, meetings, hosts, trips, are_ends_true=are_ends_true)


def _nothing(run: int, absent: Mapping[int, str]) -> str:
    if not absent:
        return f"no rank had a part in run {run}" if run else "no cell has run on the ranks yet"
    reasons = list(dict.fromkeys(absent.values()))
    texts = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
    what, hint = (f"run {run}", ". Without a number, the last run is traced") if run else ("the last run", "")
    return f"nothing is known of {what}: {texts}{hint}"
