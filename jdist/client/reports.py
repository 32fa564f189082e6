"""Reports: what a cluster answers about itself: status, stacks, traces, profiles, resources, logs and findings.

The debug log merges the newest log records of a cluster's controller, agents and workers, and of this client, by time.
Other hosts' times are corrected by the offsets of their clocks (RFC 5905, section 8). The controller runs on this host.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.doctor.examine import examine
from jdist.client.doctor.findings import Diagnosis
from jdist.client.link import CONTROLLER, Link, new_request
from jdist.client.measure.resources import Resources, collect_resources
from jdist.client.measure.timeline import read_clocks
from jdist.client.measure.trace import Trace, collect_trace
from jdist.client.run import CellRun
from jdist.client.variables.carrier import Carrier
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import MOST_SECONDS
from jdist.core.messages.observation import GetStack, Observation, Observe, StackText
from jdist.core.messages.status import ClusterFacts, StatusReport, StatusRequest
from jdist.core.messages.values import Console, ConsoleAt, DebugLog, DebugRecord, GetDebugLog, Logs, LogText
from jdist.core.profile import profile_options
from jdist.wire import log

if TYPE_CHECKING:
    from jdist.client.measure.profile import Profile


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


# ---------------------------------------------------------------- reports


class Reports:
    """The part of a cluster that asks controller, nodes and ranks what they do and have recorded."""

    def __init__(self, attachment: Attachment, runs: ActiveRuns, carrier: Carrier) -> None:
        self._attachment = attachment
        self._runs = runs
        self._carrier = carrier

    async def status(self) -> StatusReport:
        """Every rank's row, unfinished runs, groups."""
        return await self._attachment.link.request(StatusRequest(new_request()), StatusReport)

    async def look(self, ranks: Ranks = None, timeout: float = 2.0) -> dict[int, Observation]:
        """What each rank's main thread does now, and its GPU's load; a rank that does not answer is missing."""
        answers = await self._attachment.link.query(self._attachment.select(ranks), Observe(with_gpu=True), timeout)
        return {r: a for r, a in sorted(answers.items()) if isinstance(a, Observation)}

    async def stack(self, rank: int, timeout: float = 5.0) -> str:
        """The stack of a rank's main thread, as Python prints one; from the cell on, where one runs."""
        (chosen,) = self._attachment.select(rank)
        return (await self._attachment.link.query_one(chosen, GetStack(), StackText, timeout)).text

    async def trace(self, run: int = 0) -> Trace:
        """The calls of torch.distributed that ranks made in ``run`` (0: the last one), with who waited for whom.

        Notebooks draw it. A rank that does not answer is in its ``absent``. Raises UsageError when no rank knows of it.
        """
        return await collect_trace(self._attachment.link, self._attachment.facts, run)

    async def profile(
        self, /, code: str, ranks: Ranks = None, *, timeout: float | None = None, **options: Any
    ) -> "Profile":
        """Run ``code`` under torch.profiler and wait for it; who waited for whom. Notebooks draw the answer.

        ``wait``, ``warmup``, ``active``, ``repeat``: steps as in :func:`torch.profiler.schedule`; default: the whole.
        A step ends where the first optimizer has stepped, or the cell calls ``jdist.profile_step()``. ``activities``:
        "cpu,cuda". A cell that fails has a profile, too: ``profile.run.check()`` raises its error. Raises UsageError.
        """
        chosen = self._attachment.select(ranks)
        made = profile_options(len(chosen), **options)
        run = await self._runs.wait(await self._runs.submit(code, chosen, timeout=timeout, profile=made), check=False)
        return await self.read_profile(run)

    async def read_profile(self, run: CellRun | int = 0) -> "Profile":
        """The profile of a run that is over (0: the last profiled one, the only one kept). Raises UsageError."""
        from jdist.client.measure.profile import collect_profile  # only here: it imports numpy

        return await collect_profile(self._attachment, self._carrier, run)

    async def resources(self, seconds: float = 300.0, points: int = 120, timeout: float = 5.0) -> Resources:
        """CPU, memory, GPUs and network of each node and rank during the last ``seconds``, at most about an hour.

        Each quantity has ``points`` numbers at most. Nodes record it every two seconds whether or not anybody asks; one
        that does not answer within ``timeout`` seconds is in ``missing``. Raises UsageError.
        """
        if not 0 < seconds <= MOST_SECONDS or points < 1:
            limit = f"nodes record the last {MOST_SECONDS // 3600} hours"
            raise UsageError(f"seconds: more than 0, and at most {MOST_SECONDS} ({limit}); points: 1 or more")
        return await collect_resources(self._attachment.link, self._attachment.facts, seconds, points, timeout)

    async def doctor(self, *, on_step: Callable[[str], None] | None = None) -> Diagnosis:
        """Examine every node and every network path between two of them; cells are not disturbed.

        ``on_step`` is called with the current step. ``str()`` of the answer has the findings, worst first; a node that
        cannot be examined is one.
        """
        return await examine(self._attachment.link, self._attachment.facts, on_step or (lambda _: None))

    async def logs(self, rank: int, lines: int = 50) -> LogText:
        """The newest lines of a rank's log, and where it lies on its node."""
        return await self._attachment.link.query_one(self._attachment.select(rank)[0], Logs(lines), LogText)

    async def debug_log(self, lines: int = 200) -> DebugLogs:
        """The newest log records of all processes by time; ``JDIST_LOG=debug`` at the cluster's start adds more."""
        return await collect_logs(self._attachment.link, self._attachment.facts, lines)

    async def console(self, rank: int) -> ConsoleAt:
        """Host and connection file for ``jupyter console --existing``."""
        return await self._attachment.link.query_one(self._attachment.select(rank)[0], Console(), ConsoleAt)
