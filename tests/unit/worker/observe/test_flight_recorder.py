"""What the flight recorder's dumps say."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.worker.compat import torch as torch_compat
from jdist.worker.observe.call_log import CallLog
from jdist.worker.observe.flight_recorder import FlightRecorder


def _entry(number: int, *, is_done: bool) -> dict[str, Any]:
    return {
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "op_id": number,
        "collective_seq_id": number,
        "is_p2p": False,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [(4,)],
        "input_dtypes": ["Float"],
        "time_created_ns": number,
        "thread_id": 1,
        "retired": is_done,
        "state": "completed" if is_done else "started",
    }


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    """A counter of completed collectives that is one behind; whether the second has completed, by the dump."""
    is_done = bool(request.param)
    counters = {"0": {"last_enqueued_collective": 2, "last_started_collective": 2, "last_completed_collective": 1}}
    entries = [_entry(1, is_done=True), _entry(2, is_done=is_done)]

    def dump(*, with_entries: bool) -> bytes:
        return pickle.dumps({"pg_status": counters} | ({"entries": entries} if with_entries else {}))

    monkeypatch.setattr(torch_compat, "flight_record", dump)
    monkeypatch.setattr(torch_compat, "world_name", lambda: "0")
    return is_done


@pytest.mark.parametrize("completed", [True, False], indirect=True)
def test_a_collective_is_in_flight_until_a_dump_marks_it_as_retired(completed: bool) -> None:
    assert FlightRecorder(CallLog(), dict).is_in_flight() is not completed


@pytest.mark.parametrize("completed", [True, False], indirect=True)
def test_exact_progress_counts_what_a_dump_marks_as_retired(completed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(group_desc="default_pg")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(torch_compat, "groups", lambda: [(group, "0", (0, 1))])
    (progress,) = FlightRecorder(CallLog(), dict).progress(exact=True)
    assert (progress.begun, progress.ended) == (2, 2 if completed else 1)
