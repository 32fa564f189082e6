"""Debug log: the newest log records of a cluster's controller, agents and workers, and this client's, merged by time.

Other hosts' times are corrected by their clocks' offsets (RFC 5905, section 8). The controller runs on this host.
"""

import asyncio
import time

from msgspec import Struct

from jdist.client.clocks import read_clocks
from jdist.client.link import CONTROLLER, Link
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.status import ClusterFacts
from jdist.core.messages.values import DebugLog, DebugRecord, GetDebugLog
from jdist.wire import log

_TIMEOUT = 5.0


class DebugEntry(Struct, frozen=True):
    """One record and the process that logged it. ``str()`` is a line, with the traceback, if any, below."""

    time: float  # Seconds since the epoch, by this host's clock.
    process: str  # "controller", "client", "node 1" for its agent, "rank 3" for its worker.
    record: DebugRecord

    def __str__(self) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(self.time)) + f".{int(self.time % 1 * 1000):03}"
        source = self.process if self.process == self.record.floor else f"{self.process} {self.record.floor}"
        return f"{at} {source} {self.record.level}: {self.record.text}"


class DebugLogs(Struct, frozen=True):
    """Records of all processes, oldest first. ``str()`` has a line for each."""

    entries: tuple[DebugEntry, ...]
    missing: dict[str, str]  # Processes that did not answer, and why.

    def __str__(self) -> str:
        absent = (f"{process} did not answer: {why}" for process, why in self.missing.items())
        return "\n".join([*map(str, self.entries), *absent]) or "no process has logged anything"


async def collect_logs(link: Link, facts: ClusterFacts, lines: int) -> DebugLogs:
    """The newest ``lines`` records of all processes together."""
    op, topology = GetDebugLog(lines), facts.topology
    ranks = tuple(range(topology.world_size))  # none while no node is here; the controller answers once more then
    nodes = [place for place, host in enumerate(facts.hostnames) if host]
    clocks, of_controller, of_nodes, of_ranks = await asyncio.gather(
        read_clocks(link, nodes, _TIMEOUT, readings=1),
        link.query((), op, _TIMEOUT),
        link.query_nodes(nodes, op, _TIMEOUT),
        link.query(ranks, op, _TIMEOUT),
    )
    offsets = {node: c.offset for node, c in clocks.items() if abs(c.offset) > c.error}  # else it is noise
    answers: list[tuple[str, float, object]] = [("controller", 0.0, of_controller[CONTROLLER])]
    answers += [(f"node {n}", offsets.get(n, 0.0), of_nodes[n]) for n in sorted(of_nodes)]
    answers += [(f"rank {r}", offsets.get(topology.place(r), 0.0), of_ranks[r]) for r in ranks]
    answers.append(("client", 0.0, DebugLog(log.newest(lines))))
    entries: list[DebugEntry] = []
    missing: dict[str, str] = {}
    for process, offset, answer in answers:
        if isinstance(answer, DebugLog):
            entries += [DebugEntry(record.time - offset, process, record) for record in answer.records]
        else:
            missing[process] = answer.reason if isinstance(answer, QueryFailed) else f"it sent {answer}"
    return DebugLogs(tuple(sorted(entries, key=lambda entry: entry.time)[-lines:]), missing)
