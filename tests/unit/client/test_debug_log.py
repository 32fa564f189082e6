"""The debug log: records of all processes are merged by time, which is corrected by the nodes' clocks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from jdist.client.link import CONTROLLER
from jdist.client.reports import DebugLogs, collect_logs
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import ClockReading, ReadClock
from jdist.core.messages.status import ClusterFacts
from jdist.core.messages.values import DebugLog, DebugRecord

NOW = time.time()
AHEAD = 3600.0
"""By so many seconds the clock of node 1 is ahead."""


def logged(at: float, text: str) -> DebugLog:
    return DebugLog((DebugRecord(at, "INFO", "agent", text),))


class FakeLink:
    """A link to two nodes with a rank each."""

    async def query(self, ranks: tuple[int, ...], *_: Any) -> dict[int, Any]:
        if not ranks:
            return {CONTROLLER: logged(NOW + 2, "third")}
        return {0: QueryFailed("it holds the GIL"), 1: logged(NOW + 3 + AHEAD, "fourth")}

    async def query_nodes(self, nodes: Any, op: object, *_: Any) -> dict[int, Any]:
        if isinstance(op, ReadClock):
            return {n: ClockReading(time.time() + AHEAD * n) for n in nodes}
        return {0: logged(NOW, "first"), 1: logged(NOW + 1 + AHEAD, "second")}


def found(lines: int) -> DebugLogs:
    facts = ClusterFacts("c", "ready", 1, "gloo", 2, (1, 1), ("a", "b"), 2)
    return asyncio.run(collect_logs(FakeLink(), facts, lines))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that other tests have logged in this process."""
    monkeypatch.setattr("jdist.client.reports.log.newest", lambda _: ())


def test_records_are_merged_by_corrected_time() -> None:
    logs = found(10)
    assert [e.record.text for e in logs.entries if e.process != "client"] == ["first", "second", "third", "fourth"]
    assert [e.process for e in logs.entries if e.process != "client"] == ["node 0", "node 1", "controller", "rank 1"]
    assert str(logs).splitlines()[-1] == "rank 0 did not answer: it holds the GIL"
    first = next(line for line in str(logs).splitlines() if line.endswith("first"))
    assert first[12:] == " node 0 agent INFO: first"


def test_the_newest_lines_are_kept() -> None:
    assert [e.record.text for e in found(1).entries] == ["fourth"]
