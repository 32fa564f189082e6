"""Resources as users have them: a table, a summary in which empty columns are left out, and what a browser is sent."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import msgspec
import pytest

from jdist.client.measure.resources import NodeUsage, RankUsage, Resources
from jdist.core.messages.nodes import RunInterval
from jdist.server.snapshots import resources_snapshot

GIB = float(1 << 30)
AGES = (4.0, 2.0, 0.5)


def found(**more: tuple[float, ...]) -> Resources:
    node = {"cpu": (math.nan, 1.0, 2.0), "memory": (GIB, 3 * GIB, 2 * GIB), "received": (0.0, 0.0, 2e6)}
    rank = {"cpu": (0.5, math.nan, 1.0), "memory": (GIB, GIB, GIB)}
    nodes = {0: NodeUsage(0, "a", 8, int(64 * GIB), 0, 0, AGES, node | more)}
    ranks = {r: RankUsage(r, 0, AGES, rank) for r in (0, 1)}
    return Resources(300, nodes, ranks, [RunInterval(7, (0, 1), 3.5, None)], {1: "it is not attached"})


def test_the_table(tmp_path: Path) -> None:
    resources = found()
    rows = list(resources)
    assert [row[1:] for row in rows[:3]] == [(0, None, "cpu", 1.0), (0, None, "cpu", 2.0), (0, None, "memory", GIB)]
    assert rows[1][0] - rows[0][0] == pytest.approx(1.5)
    assert len(rows) == 2 + 3 + 3 + 2 * (2 + 3), "unknown numbers are no points"
    assert set(resources.columns) == {"time", "node", "rank", "name", "value"}
    with resources.to_csv(tmp_path / "r.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == [row[3] for row in rows]


def test_the_summary() -> None:
    assert repr(found()).splitlines() == [
        "resources of the last 5 min · 1 node · 2 ranks",
        "            cores busy  mean  peak  memory   peak  received",
        "node 0 (a)        2.00  1.50  2.00   2 GiB  3 GiB  2.0 MB/s",
        "rank 0            1.00  0.75  1.00   1 GiB  1 GiB",
        "rank 1            1.00  0.75  1.00   1 GiB  1 GiB",
        "node 1 is left out: it is not attached",
    ]
    summary = found(gpu=(0.1, 0.5, 0.9)).summary(ranks=[1])
    assert summary.columns[-3:] == ("GPU busy", "mean", "received")
    assert [row[0] for row in summary.rows] == ["node 0 (a)", "rank 1"]


def test_what_a_browser_is_sent() -> None:
    sent = msgspec.json.decode(msgspec.json.encode(resources_snapshot(found())))
    (node,) = sent["nodes"]
    assert (node["hostname"], node["cores"], node["ages"]) == ("a", 8, list(AGES))
    assert node["series"]["cpu"] == [None, 1.0, 2.0]
    assert node["ranks"][1] == {"rank": 1, "series": {"cpu": [0.5, None, 1.0], "memory": [1.074e9] * 3}}
    assert sent["runs"] == [{"run": 7, "ranks": "0-1", "began": 3.5, "ended": None}]
    assert sent["missing"] == ["node 1 is left out: it is not attached"]
