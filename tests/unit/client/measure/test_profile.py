"""Profiles: how much of each rank's time was communication, who was waited for, and what a file and a browser get."""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jdist.client.measure import chrome, columns
from jdist.client.measure.profile import Profile, ProfileReport
from jdist.client.measure.shares import Intervals, RankOperators, divide, with_ends
from jdist.core.messages.observation import RankTrace
from jdist.core.profile import COLLECTIVE, KERNEL, SCOPE, RankProfile
from support.madeup import answer, call, rank_profile, trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
KINDS = {LOADER: SCOPE, "epoch": SCOPE, "gloo:all_reduce": COLLECTIVE, "gemm": KERNEL, "ncclDevKernel": KERNEL}
LINE = {"line": 4}


def made(profiles: dict[int, RankProfile], traces: dict[int, RankTrace], **absent: str) -> Profile:
    revised, filled = {}, {}
    for rank, each in traces.items():
        revised[rank], filled[rank] = with_ends(each, profiles[rank]) if rank in profiles else (each, frozenset())
    found = trace(dict(revised), (len(traces),), ("box",)).report
    ranks = {r: RankOperators(r, p, found.timeline.shifts[r]) for r, p in profiles.items()}
    return Profile(ProfileReport.of(found, ranks, filled, {int(r[1:]): why for r, why in absent.items()}))


def slow_rank() -> Profile:
    """Rank 1 multiplies for 3 s and loads for 1 s, while rank 0 waits in a blocking call that then takes 0.5 s."""
    profiles = {
        0: rank_profile(
            ("epoch", 0, 9), ("aten::add", 1, 2), ("aten::add", 6, 7), kind=KINDS, table="add 2 s", tabulated=1
        ),
        1: rank_profile(
            ("aten::linear", 1, 5),
            ("aten::mm", 1.5, 4.5),
            (LOADER, 5, 6),
            ("aten::copy_", 5.2, 5.4),
            kind=KINDS,
            table="mm <b> 3 s",
            tabulated=1,
        ),
    }
    traces = {
        0: answer(call("all_reduce", 2, 6.5, **LINE), call("all_reduce", 8, 8.5, number=2, **LINE)),
        1: answer(call("all_reduce", 6, 6.5, **LINE), call("all_reduce", 8, 8.5, number=2, **LINE)),
    }
    return made(profiles, traces)


def test_each_moment_counts_once() -> None:
    table = slow_rank().table
    fast, slow = table[0], table[1]
    assert (fast.waiting, fast.collectives, fast.elsewhere) == pytest.approx((4, 1, 5))
    assert (slow.waiting, slow.collectives, slow.elsewhere) == pytest.approx((0, 1, 9))
    assert (fast.communication, slow.communication) == pytest.approx((0.5, 0.1))
    assert fast.unrecorded == pytest.approx(0)


def test_the_slowest_rank_is_named_with_torchs_own_table_of_its_operators() -> None:
    found = slow_rank()
    (place,) = found.slowest
    assert (place.slowest, place.calls, place.waited, place.caused) == pytest.approx((1, 2, 4, 4))
    lines = repr(found).splitlines()
    assert lines[1:5] == [
        "ranks waited 4 s for rank 1 in all_reduce of world at cell line 4",
        "",
        "rank  node   communication  collectives  waiting  elsewhere",
        "   0  0 box            50%          1 s      4 s        5 s",
    ]
    assert lines[-2:] == ["operators of rank 1, by torch.profiler", "mm <b> 3 s"]
    assert found.operators == {0: "add 2 s", 1: "mm <b> 3 s"}
    page = found._repr_mimebundle_()
    assert "rank 1, 1 of 2 times" in page["text/html"]
    assert "<pre>mm &lt;b&gt; 3 s</pre>" in page["text/html"]
    assert repr(found) == page["text/plain"]


def test_what_an_asynchronous_collective_is_hidden_behind_is_no_waiting() -> None:
    """Rank 0 computes for 2 of the 3 s for which rank 1 lets it wait, in a call whose end only gloo tells."""
    profiles = {
        0: rank_profile(("aten::mm", 1, 4), ("gloo:all_reduce", 2.01, 6), kind=KINDS),
        1: rank_profile(("aten::mm", 0, 5), ("gloo:all_reduce", 5.01, 6), kind=KINDS),
    }
    traces = {0: answer(call("all_reduce", 2)), 1: answer(call("all_reduce", 5))}
    found = made(profiles, traces)
    assert [bar.ended for row in found.report.trace.timeline.rows for bar in row.bars] == pytest.approx([6, 6])
    assert found.table[0].waiting == pytest.approx(1)
    assert found.table[0].collectives == pytest.approx(1)
    assert found.slowest[0].waited == pytest.approx(1)
    assert "≈" not in repr(found)


def test_a_gpu_counts_before_its_host() -> None:
    ops = [("aten::mm", 0, 1), ("gemm", 0.5, 4), ("ncclDevKernel", 3, 6), ("aten::add", 5, 7)]
    found = made({0: rank_profile(*ops, kind=KINDS)}, {0: answer()})
    share = found.table[0]
    assert (share.elsewhere, share.collectives) == pytest.approx((8, 2))


def test_what_was_left_out_is_said() -> None:
    short = {"left_out": 70_000, "longest_left_out": 12_000}
    profiles = {
        0: rank_profile(("aten::mm", 0, 1), **short),
        1: rank_profile(("aten::mm", 0, 1), windows=((0.0, 2.0),), reason="torch.profiler could not be read"),
    }
    found = made(profiles, {r: answer() for r in (0, 1, 2)}, r2="no profile of run 3 is kept there")
    assert found.table[1].unrecorded == pytest.approx(8)
    text = repr(found)
    assert "70,000 operators of at most 12 µs each were omitted from the timeline" in text
    assert "rank 1: torch.profiler could not be read" in text
    assert "rank 2: no profile of run 3" in text
    assert "rank 1: operators were recorded in 1 window, with up to 8 s not recorded" in text
    assert "by torch.profiler" not in text, "there is no table"


def test_an_asynchronous_call_whose_end_nothing_shows_is_no_waiting_of_its_rank() -> None:
    profiles = {r: rank_profile(windows=((0.0, 1.0),)) for r in (0, 1)}
    found = made(profiles, {0: answer(call("all_reduce", 2)), 1: answer(call("all_reduce", 5))})
    assert found.table[0].elsewhere == pytest.approx(10)


def test_the_chrome_trace_has_a_process_for_each_rank(tmp_path: Path) -> None:
    found = slow_rank()
    plain, packed = found.save(tmp_path / "p.json"), found.save(tmp_path / "p.json.gz")
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    data = json.loads(plain.read_text())
    events = data["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    multiplied = next(e for e in events if e["name"] == "aten::mm")
    assert (multiplied["pid"], multiplied["ts"], multiplied["dur"]) == (1, 1.5e6, 3e6)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "rank 0 (node 0 box)",
        "rank 1 (node 0 box)",
    }
    (waited,) = (e for e in events if e["name"] == "waiting")
    assert (waited["pid"], waited["dur"], waited["args"]["for"]) == (0, 4e6, {"rank 1": 4.0})
    steps = [e for e in events if e["name"].startswith("step")]
    assert not steps
    threads = {e["tid"] for e in events if e["pid"] == 1}
    assert not threads & {e["tid"] for e in events if e["pid"] == 0}
    with pytest.raises(Exception, match="cannot be written"):
        found.save(tmp_path / "none" / "p.json")


def test_a_file_that_would_be_too_large_leaves_out_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [("aten::add", i * 1e-3, i * 1e-3 + (i % 10 + 1) * 1e-5) for i in range(5000)]
    found = made({0: rank_profile(*ops)}, {0: answer()})
    monkeypatch.setattr(chrome, "MOST_BYTES", 100_000)
    text = "".join(chrome.chrome(found.report.trace, found.report.ranks))
    assert len(text) < 100_000
    data = json.loads(text)
    kept = [e["dur"] for e in data["traceEvents"] if e["name"] == "aten::add"]
    assert len(kept) > 500
    assert min(kept) > 50
    assert any("omitted from this file" in note for note in data["otherData"]["notes"])


def test_a_browser_gets_the_longest_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(profile: Profile) -> dict[str, Any]:
        data = json.loads(json.dumps(profile._repr_mimebundle_()[columns.MIME]))
        types = {"began": "I", "ended": "I", "name": "I", "depth": "B"}
        held = {
            n: array(types[n], zlib.decompress(base64.b64decode(t))) for n, t in data["operators"]["columns"].items()
        }
        return {**data, "held": held}

    data = drawn(slow_rank())
    held, names = data["held"], data["operators"]["names"]
    assert data["operators"]["counts"] == [3, 4]
    assert [names[i] for i in held["name"]] == [
        "epoch",
        "aten::add",
        "aten::add",
        "aten::linear",
        "aten::mm",
        LOADER,
        "aten::copy_",
    ]
    assert list(held["depth"]) == [0, 1, 1, 0, 1, 0, 1]
    assert held["began"][3] * data["tick"] == pytest.approx(1, abs=1e-6)
    assert data["headline"].startswith("profile of run 3")
    monkeypatch.setattr(columns, "_MOST_OPERATORS", 2)
    data = drawn(slow_rank())
    assert (data["operators"]["counts"], data["operators"]["left_out"]) == ([1, 1], 5)


def test_ends_are_matched_in_order_within_what_was_recorded() -> None:
    profile = rank_profile(*[("gloo:all_reduce", t, t + 0.5) for t in (4, 5)], kind=KINDS, windows=((3.0, 10.0),))
    calls = [call("all_reduce", t, number=i + 1) for i, t in enumerate((1, 4, 5, 7))]
    found, filled = with_ends(answer(*calls), profile)
    began = found.calls[0].started - 1
    assert [c.ended and round(c.ended - began, 3) for c in found.calls] == [None, 4.5, 5.5, None]
    assert filled == {1, 2}


def test_intervals() -> None:
    times = Intervals([5, 1, 2, 5], [6, 3, 4, 5.5])
    assert list(zip(times.starts, times.ends, strict=True)) == [(1, 4), (5, 6)]
    assert times.within(3, 5.5) == pytest.approx(1.5)
    assert list(times.holds(np.array([0.5, 1, 4.5, 5.9, 6]))) == [False, True, False, True, False]
    assert divide(Intervals([0], [10]), [times, Intervals([3], [8])]) == pytest.approx([4, 3, 3])
    assert divide(Intervals(), [times]) == pytest.approx([0, 0])
    assert Intervals().within(0, 5) == 0
