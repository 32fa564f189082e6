"""Columns: what a browser is given of a trace says what the trace says, and takes little room."""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from typing import Any

import pytest

from jdist.client.measure.columns import columns, nbytes
from jdist.client.measure.trace import Trace
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.observation import GroupProgress
from support.madeup import answer, call, noise, steps, trace

TYPES = {"began": "I", "work": "I", "ended": "I", "waited": "I", "kind": "H", "number": "I", "whom": "H", "last": "i"}
TYPES |= {"meeting": "I", "flags": "B"}


def unpacked(data: dict[str, Any]) -> dict[str, array[int]]:
    found = {}
    for name, packed in json.loads(json.dumps(data))["columns"].items():
        found[name] = array(TYPES[name], zlib.decompress(base64.b64decode(packed)))
    return found


def straggler() -> Trace:
    return trace(dict(steps(4, 3, lambda r, s: 3.0 if (r, s) == (2, 2) else 1.0)), (2, 2), ("box", "box"))


def test_every_call_is_there_with_its_times_and_for_whom_it_waited() -> None:
    found = straggler()
    data = columns(found.report, "mine")
    held = unpacked(data)
    assert [row["calls"] for row in data["rows"]] == [3, 3, 3, 3]
    assert {len(column) for column in held.values()} == {12}
    bars = [bar for row in found.report.timeline.rows for bar in row.bars]
    for i, bar in enumerate(bars):
        kind = data["kinds"][held["kind"][i]]
        assert (kind["op"], kind["line"], kind["bytes"]) == ("all_reduce", 4, 64)
        assert kind["detail"] == "[16] float32 op=SUM"
        assert data["groups"][kind["group"]] == "world"
        assert held["number"][i] == bar.call.number
        for name in ("began", "work", "ended", "waited"):
            assert held[name][i] * data["tick"] == pytest.approx(getattr(bar, name), abs=1e-6)
        late = bar.call.number == 2 and bar.rank != 2
        assert (held["last"][i], data["whom"][held["whom"][i]]) == ((2, "for rank 2") if late else (-1, ""))
    assert len({held["meeting"][i] for i in range(12)}) == 3
    assert (data["cluster"], data["run"]) == ("mine", 3)
    assert data["rows"][2]["caused"] == pytest.approx(6)


def test_a_call_that_never_ended_and_a_rank_that_never_came_are_said() -> None:
    world = GroupProgress.of("0", (0, 1, 2), 1, 0, "world")
    stuck = call("all_reduce", 1.0, None, is_done=False)
    found = trace({0: answer(stuck, ended=None), 1: answer(), 2: QueryFailed("died")}, (3,), ("box",), (world,))
    data = columns(found.report)
    held = unpacked(data)
    assert held["flags"][0] & 1
    assert "rank 1 never entered it" in data["whom"][held["whom"][0]]
    assert data["absent"]["2"]


def test_ten_thousand_calls_take_little_room_and_few_words() -> None:
    found = trace(dict(steps(16, 640, noise(1, 0.01))), (16,), ("box",))
    data = columns(found.report)
    assert sum(row["calls"] for row in data["rows"]) == 10_240
    assert len(json.dumps(data)) < 25 * 10_240
    assert len(data["kinds"]) == 1


@pytest.mark.parametrize(
    ("shapes", "dtypes", "size"),
    [
        ((), (), 0),
        (((3, 4),), ("bfloat16",), 24),
        (((2,), (5,)), ("int64", "bool"), 21),
        (((7,),), ("float8_e4m3fn",), 7),
        (((),), ("complex64",), 8),
    ],
)
def test_bytes_of_tensors(shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], size: int) -> None:
    assert nbytes(call("all_reduce", 0.0, shapes=shapes, dtypes=dtypes)) == size
