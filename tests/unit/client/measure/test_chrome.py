"""Chrome: the file that Perfetto opens: events nest on their thread, and arrows lead from one call to another."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from jdist.client.measure.trace import Trace
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from support.madeup import answer, call, noise, steps, trace

Event = dict[str, Any]


def saved(found: Trace, folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(found.save(folder / "t.json").read_text())
    return loaded


def by_thread(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[e["pid"], e["tid"]].append(e)
    return found


def check_nesting(events: list[Event]) -> None:
    """As Perfetto needs it: within a thread an event ends before whatever it began in."""
    for spans in by_thread(events).values():
        stack: list[float] = []
        for e in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
            start, end = round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)  # whole nanoseconds
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)


def test_a_process_per_rank(tmp_path: Path) -> None:
    events = saved(trace(dict(steps(4, 2, noise(1, 0.1))), (2, 2), ("alpha", "beta")), tmp_path)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0 (node 0 alpha)", 1: "rank 1 (node 0 alpha)"} | {
        rank: f"rank {rank} (node 1 beta)" for rank in (2, 3)
    }
    threads = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert sorted((pid, name) for pid, _, name in threads) == [(rank, "torch.distributed") for rank in range(4)]
    assert len({tid for _, tid, _ in threads}) == 4, "no two ranks share a thread's number"


def test_a_call_with_its_waiting_inside(tmp_path: Path) -> None:
    found = trace(dict(steps(2, 1, lambda r, s: 1.0 + r)), (2,), ("a",))
    events = [e for e in saved(found, tmp_path)["traceEvents"] if e["ph"] == "X"]
    first = next(e for e in events if e["name"] == "all_reduce" and e["args"].get("waited_s"))
    assert (first["ts"], first["dur"]) == pytest.approx((1e6, 1.002e6), abs=1)
    assert first["args"]["shapes"] == [[16]]
    assert first["args"]["dtypes"] == ["float32"]
    assert (first["args"]["group"], first["args"]["number"], first["args"]["line"]) == ("world", 1, 4)
    waiting = next(e for e in events if e["name"] == "waiting")
    assert (waiting["ts"], waiting["dur"], waiting["tid"]) == pytest.approx((1e6, 1e6, first["tid"]), abs=1)
    assert waiting["args"]["for"].keys() == {"rank 1"}


def test_events_nest(tmp_path: Path) -> None:
    check_nesting(saved(trace(dict(steps(4, 50, noise(3, 0.01))), (2, 2), ("a", "b")), tmp_path)["traceEvents"])


def test_calls_that_overlap_get_threads_of_their_own(tmp_path: Path) -> None:
    calls = (call("all_reduce", 1, 3), call("all_reduce", 2, 5, number=2), call("all_gather", 4, 6, number=3))
    events = saved(trace({0: answer(*calls), 1: answer(*calls)}, (2,), ("a",)), tmp_path)["traceEvents"]
    check_nesting(events)
    assert len(by_thread(events)) == 4
    assert sum(e["ph"] == "X" and e["name"].startswith("all_") for e in events) == 6


def test_arrows_lead_from_the_last_to_those_who_waited(tmp_path: Path) -> None:
    found = trace(dict(steps(3, 1, lambda r, s: 3.0 if r == 1 else 1.0)), (3,), ("a",))
    events = saved(found, tmp_path)["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2
    assert {e["pid"] for e in starts.values()} == {1}
    assert {e["pid"] for e in ends.values()} == {0, 2}
    for e in [*starts.values(), *ends.values()]:  # an arrow binds to the event around its end
        around = [x for x in by_thread(events)[e["pid"], e["tid"]] if x["ts"] <= e["ts"] <= x["ts"] + x["dur"]]
        assert any(x["name"] == "all_reduce" for x in around)
    assert all(e["bp"] == "e" for e in ends.values())


def test_what_is_unfinished_or_missing(tmp_path: Path) -> None:
    stuck = answer(call("barrier", 2, None, is_done=False), ended=None, now=9, left_out=7)
    found = saved(trace({0: stuck, 1: answer(ended=1), 2: QueryFailed("gone")}, (3,), ("a",)), tmp_path)
    barrier = next(e for e in found["traceEvents"] if e["name"] == "barrier")
    assert barrier["args"]["end"] == "in flight"
    assert found["otherData"]["absent"] == {"2": "gone"}
    assert any("7 oldest calls" in note for note in found["otherData"]["notes"])
    check_nesting(found["traceEvents"])


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; name another file"):
        trace({0: answer()}, (1,), ("a",)).save(tmp_path / "none" / "t.json")
