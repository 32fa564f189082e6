"""Snapshots: what a browser is sent of a cluster, and which rows of it have changed."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from jdist.core.errors import Remedy
from jdist.core.messages.membership import GroupSpec
from jdist.core.messages.nodes import GpuUse
from jdist.core.messages.observation import Activity, Call, GroupProgress, Observation, Verdict
from jdist.core.messages.status import ClusterFacts, RankFacts, StatusReport
from jdist.server.snapshots import ClusterSnapshot, redacted, snapshot_of

FACTS = ClusterFacts(
    "c1", "ready", 2, "gloo", 2, (2, 1), ("alpha", "beta"), 3, {"odd": (1,)}, (("dp",), (3,)), unreachable=(1,)
)


def row(rank: int, run: int = 0, death_age: float = 0.0) -> RankFacts:
    return RankFacts(rank, rank // 2, "alpha", 40 + rank, "running" if run else "idle", run, "", False, "", death_age)


def found(*on_run: int) -> StatusReport:
    rows = tuple(row(r, 7 if r in on_run else 0) for r in range(3))
    verdict = Verdict(7, "missing", (1,), (0,), "rank 1 will not come", remedies=(Remedy("interrupt", "stop it"),))
    runs = ((7, "running", (0, 1, 2), 1.5), (8, "queued", (0,), 0.0))
    return StatusReport("q", FACTS, rows, runs, (GroupSpec((0, 2)),), (verdict,), ("node 1 is silent",))


def looked(seconds: float = 1.0, op: str = "all_reduce") -> Observation:
    doing = Activity("collective", op, 3, "dist.all_reduce(x)", seconds, 0.04, (Call(op, "0", 12),))
    return Observation("cpu", doing, 5_000_000, (GroupProgress.of("0", (0, 1, 2), 12, 11, "world"),))


NOTHING = ClusterSnapshot(name="c1", cluster="random", version="1.0")


def snapshot(report: StatusReport, observations: dict[int, Observation]) -> ClusterSnapshot:
    return snapshot_of(report, observations, NOTHING)


def sent(value: object) -> Any:
    """As the browser gets it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def test_a_snapshot_for_the_browser() -> None:
    picture = sent(snapshot(found(0, 1), {0: looked()}))
    assert (picture["state"], picture["cluster"], picture["version"]) == ("ready", "random", "1.0")
    assert picture["nodes"][1] == {"node": 1, "hostname": "beta", "is_here": True, "is_unreachable": True, "ranks": [2]}
    assert [(r["number"], r["count"], r["done"]) for r in picture["runs"]] == [(7, 3, 1), (8, 1, 0)]
    assert picture["ranks"][0]["doing"]["number"] == 12
    assert picture["ranks"][0]["progress"] == [{"group": "world", "begun": 12, "ended": 11}]
    assert picture["ranks"][1]["doing"] is None
    assert picture["ranks"][1]["local_rank"] == 1
    assert picture["verdicts"][0]["remedies"] == [{"action": "interrupt", "effect": "stop it"}]
    assert picture["mesh"] == {"names": ["dp"], "sizes": [3]}


def test_only_rows_that_say_something_new() -> None:
    before = snapshot(found(0, 1), {0: looked(1.0)})
    assert snapshot(found(0, 1), {0: looked(2.0)}).changed_rows(before) == ()
    assert [r.rank for r in snapshot(found(0), {0: looked(2.0, "broadcast")}).changed_rows(before)] == [0, 1]
    assert [r.rank for r in before.changed_rows(None)] == [0, 1, 2]
    assert before.timeless() == snapshot(found(0, 1), {0: looked(9.0)}).timeless()
    assert before.timeless() != snapshot(found(0, 1, 2), {0: looked(1.0)}).timeless()


def test_what_a_rank_has_of_its_gpu() -> None:
    use = GpuUse("GPU 0 (NVIDIA H200)", 80 << 30, 3 << 30, 1 << 30, 0.9)
    busy = structs.replace(looked(), gpu=use)
    before = snapshot(found(0, 1), {0: busy, 1: looked()})
    row, other, _ = sent(before.rows)
    assert (row["gpu_name"], row["gpu_total"], row["gpu_used"], row["gpu_own"], row["gpu_busy"]) == (
        "GPU 0 (NVIDIA H200)",
        80 << 30,
        3 << 30,
        1 << 30,
        0.9,
    )
    assert not any(key.startswith("gpu") for key in other)
    kept = sent(snapshot_of(found(), {}, before).rows[0])
    assert (kept["gpu_own"], "gpu_busy" in kept) == (1 << 30, False), "how busy it is, is known of a moment"
    idle = sent(snapshot_of(found(), {0: structs.replace(busy, doing=Activity("idle"))}, before).rows[0])
    assert (idle["gpu_own"], idle["gpu_busy"]) == (1 << 30, None)
    gone = sent(snapshot_of(found(), {0: looked()}, before).rows[0])
    assert "gpu_own" not in gone, "the driver does not tell any more"


def test_no_join_line_is_shown() -> None:
    text = "run this there: echo jdist1.abc-_=.Zz | jdist join --node-rank 1 -"
    assert "abc" not in redacted(text)
    assert redacted(text).endswith("| jdist join --node-rank 1 -")
    failed = structs.replace(found(), facts=structs.replace(FACTS, reason=text))
    assert "abc" not in str(sent(snapshot(failed, {})))
