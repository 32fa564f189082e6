"""Collect: what each node has recorded of its use, and the runs of that time, become one table."""

import asyncio

from jdist.client.link import Link, new_request
from jdist.client.resources.resources import NodeUsage, RankUsage, Resources
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.resources import ListRuns, NodeResources, ReadResources, RunIntervals
from jdist.core.messages.status import ClusterFacts


async def collect_resources(link: Link, facts: ClusterFacts, seconds: float, points: int, timeout: float) -> Resources:
    """What the last ``seconds`` were used for, in ``points`` numbers at most. A silent node is in ``missing``.

    Raises UsageError if nodes refuse the question.
    """
    here = [place for place, name in enumerate(facts.hostnames) if name]
    answers, spans = await asyncio.gather(
        link.query_nodes(here, ReadResources(seconds, points), timeout),
        link.request(ListRuns(new_request(), seconds), RunIntervals),
    )
    nodes: dict[int, NodeUsage] = {}
    ranks: dict[int, RankUsage] = {}
    missing: dict[int, str] = {}
    for place, name in enumerate(facts.hostnames):
        node, answer = facts.node_of[place] if facts.node_of else place, answers.get(place)
        if isinstance(answer, NodeResources):
            # Where each place is a launcher's task, several report the same node.
            a = answer
            usage = NodeUsage(node, name, a.cores, a.memory, a.gpus, a.gpu_memory, a.ages, a.node)
            nodes.setdefault(node, usage)
            ranks |= {rank: RankUsage(rank, node, a.ages, series) for rank, series in sorted(a.ranks.items())}
        else:
            missing[node] = answer.reason if isinstance(answer, QueryFailed) else "it is not attached"
    if not nodes and answers:
        raise UsageError("; ".join(f"node {node}: {reason}" for node, reason in missing.items()))
    return Resources(seconds, nodes, dict(sorted(ranks.items())), spans.runs, missing)
