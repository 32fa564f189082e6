"""The recorder: what a cell did is there, bounded, and its windows begin and end without harm to the cell."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
import torch
from torch.autograd.profiler import record_function

from jdist.core.profile import COLLECTIVE, OPERATOR, SCOPE, ProfileOptions, RankProfile
from jdist.worker import profile as module
from jdist.worker.compat import profiler
from jdist.worker.profile import OperatorTable, Recorder


def recorded(cell: Callable[[Recorder], None], options: ProfileOptions | None = None) -> RankProfile:
    recorder = Recorder(7, options or ProfileOptions(), lambda: False, lambda: None)
    with recorder.recording():
        cell(recorder)
    assert recorder.done.is_set()
    return recorder.read()


def names_of(profile: RankProfile) -> list[str]:
    return [profile.names[i] for i in np.frombuffer(profile.name, "<u4")]


def test_operators_and_scopes_of_the_cell_are_there() -> None:
    x = torch.ones(8, 8)

    def cell(_: Recorder) -> None:
        with record_function("mine"):
            x @ x

    profile = recorded(cell)
    names = names_of(profile)
    assert names[0] == "mine"
    assert "aten::mm" in names
    kinds = np.frombuffer(profile.kind, "u1")
    assert (kinds[0], kinds[names.index("aten::mm")]) == (SCOPE, OPERATOR)
    assert set(np.frombuffer(profile.thread, "<u2")) == {0}
    starts = np.frombuffer(profile.starts, "<i8")
    assert (starts >= 0).all()
    assert (np.diff(starts) >= 0).all()
    assert profile.began <= profile.ended <= time.time()
    assert (profile.reason, profile.left_out, len(profile.windows)) == ("", 0, 1)


def test_a_cell_that_fails_has_a_profile() -> None:
    recorder = Recorder(7, ProfileOptions(), lambda: False, lambda: None)
    with pytest.raises(ZeroDivisionError), recorder.recording():
        print(torch.ones(3).sum(), 1 / 0)
    assert "aten::sum" in recorder.read().names


def test_steps_of_an_optimizer_follow_the_schedule() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)

    def cell(_: Recorder) -> None:
        for step in range(8):
            with record_function(f"step {step}"):
                weight.sum().backward()
            optimizer.step()

    profile = recorded(cell, ProfileOptions(wait=1, warmup=1, active=2, repeat=1))
    assert [n for n in names_of(profile) if n.startswith("step ")] == ["step 2", "step 3"]
    assert len(profile.steps) == 8
    assert len(profile.windows) == 1


def test_steps_that_the_cell_marks_count_instead() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)

    def cell(recorder: Recorder) -> None:
        for _ in range(3):
            recorder.steps.mark()
            optimizer.step()
            threading.Thread(target=recorder.steps.mark).start()

    assert len(recorded(cell).steps) == 3


def turning(monkeypatch: pytest.MonkeyPatch, windows: int) -> Callable[[Recorder], bool]:
    """Have windows end as soon as they may; whether there have been so many."""
    monkeypatch.setattr(module, "_FIRST", 0.0)
    monkeypatch.setattr(module, "_TICK", 0.001)
    monkeypatch.setattr(module, "_LONGEST", 0.0)
    deadline = time.monotonic() + 60

    def is_over(recorder: Recorder) -> bool:
        assert time.monotonic() < deadline, recorder.reason
        return len(recorder._windows) >= windows

    return is_over


def test_a_long_cell_is_recorded_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = turning(monkeypatch, 5)
    x = torch.ones(4)
    rounds = 0

    def cell(recorder: Recorder) -> None:
        nonlocal rounds
        while not is_over(recorder) or rounds < 100:
            with record_function("round"):
                x + 1
            rounds += 1

    profile = recorded(cell)
    assert len(profile.windows) >= 5
    moments = [moment for window in profile.windows for moment in window]
    assert moments == sorted(moments)
    found = names_of(profile)
    assert rounds * 0.2 < found.count("round") <= rounds
    assert found.count("round") <= found.count("aten::add") + len(profile.windows)


def test_no_window_begins_within_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would end the scope in freed memory."""
    is_over = turning(monkeypatch, 1)
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    x = torch.ones(4)

    def cell(recorder: Recorder) -> None:
        with record_function("outer"):
            while recorder._recording is not None:
                is_over(recorder)
                x + 1
            begun = len(recorder._windows)
            refused = threading.Event()
            threading.Timer(0.1, refused.set).start()
            while not refused.is_set():
                x + 1
            assert recorder._recording is None
            assert len(recorder._windows) == begun
        while recorder._recording is None:
            is_over(recorder)

    assert len(recorded(cell).windows) >= 2


def test_a_window_that_is_full_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = turning(monkeypatch, 1)
    monkeypatch.setattr(module, "_MOST_RECORDED", 100)
    x = torch.ones(4)

    def cell(recorder: Recorder) -> None:
        while not is_over(recorder) or recorder._recording is not None:
            x + 1
        assert recorder._resumes_at >= 10

    recorded(cell)


def test_a_profiler_of_the_cell_itself_is_reported() -> None:
    with torch.profiler.profile(acc_events=True):  # without it, torch 2.12 warns
        profile = recorded(lambda _: None)
    assert "torch.profiler could not be started: RuntimeError: a profiler of the cell's own" in profile.reason


def test_a_profiler_that_the_cell_starts_itself_is_reported() -> None:
    x = torch.ones(3)

    def cell(_: Recorder) -> None:
        with torch.profiler.profile(acc_events=True) as own:
            x + 1
        assert any(event.name == "aten::add" for event in own.events())

    assert "a profiler of its own, which replaced this one" in recorded(cell).reason


def test_frames_of_torch_may_have_scopes() -> None:
    assert not profiler.may_have_scopes(sys._getframe())
    seen = []
    torch.ones(3, requires_grad=True).register_hook(lambda g: seen.append(profiler.may_have_scopes(sys._getframe())))
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: seen.append(profiler.may_have_scopes(sys._getframe())))
    x.sum().backward()
    assert seen == [True]


def test_the_shortest_operators_are_left_out_and_collectives_last() -> None:
    kept = OperatorTable(10)
    ops = [("aten::add", i * 1000, i + 1, 1, False, False, -1) for i in range(100)]
    kept.add([*ops, ("gloo:all_reduce", 150_000, 2, 3, True, True, -1)], 1, (0, 10**6))
    columns = kept.columns()
    assert len(columns) == 10
    names = [kept.names[i] for i in columns["name"]]
    assert names.count("gloo:all_reduce") == 1
    assert (columns["kind"] == COLLECTIVE).sum() == 1
    assert sorted(columns["duration"][columns["kind"] == OPERATOR]) == list(range(92, 101))
    assert (kept.left_out, kept.longest_left_out) == (91, 91)
    assert kept.threads == ("main thread", "thread 3")


def test_an_operator_without_an_end_is_cut_at_the_end_of_its_window() -> None:
    kept = OperatorTable(10)
    kept.add([("aten::mm", 100, -50, 1, False, False, -1), ("early", -5, 3, 1, False, False, -1)], 1, (0, 1000))
    assert [tuple(c)[:2] for c in kept.columns()] == [(100, 900)]


def test_torchs_own_table_adds_up_windows() -> None:
    x = torch.ones(8, 8)

    def cell(recorder: Recorder) -> None:
        for _ in range(2):
            for _ in range(5):
                x @ x
            recorder._end()
            recorder._begin()

    profile = recorded(cell)
    lines = profile.table.splitlines()
    assert "Self CPU" in lines[1]
    assert any(line.split()[0] == "aten::mm" and line.split()[-1] == "10" for line in lines)
    assert profile.tabulated == len(profile.windows) == 3


def test_a_profile_is_read_again_without_the_recording() -> None:
    x = torch.ones(8, 8)
    recorder = Recorder(7, ProfileOptions(), lambda: False, lambda: None)
    with recorder.recording():
        x @ x
    assert recorder.read() == recorder.read()


def test_operators_that_torch_cannot_sum_up_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd.profiler.profile, "key_averages", lambda _self: 1 / 0)
    profile = recorded(lambda _: None)
    assert "could not sum up the operators: ZeroDivisionError" in profile.reason
    assert len(profile.windows) == 1


def test_a_table_of_more_operators_than_torch_can_read_soon_leaves_windows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TABULATED", 10)
    x = torch.ones(8, 8)
    profile = recorded(lambda _: [x + 1 for _ in range(50)] and None)
    assert (profile.table, profile.tabulated, len(profile.windows)) == ("", 0, 1)


@pytest.mark.parametrize("is_marked", [False, True])
def test_where_every_line_is_torchs_windows_turn_between_steps(
    monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    """A pending call would hardly ever find the cell's own code."""
    is_over = turning(monkeypatch, 4)
    monkeypatch.setattr(module.profiler, "may_have_scopes", lambda frame: frame is None or is_torchs(frame))
    monkeypatch.setattr(Recorder, "_looked", lambda _self, _: 0)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)

    def is_torchs(frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(os.path.dirname(torch.__file__))

    def cell(recorder: Recorder) -> None:
        while not is_over(recorder):
            weight.sum().backward()
            if is_marked:
                recorder.steps.mark()
            else:
                optimizer.step()

    profile = recorded(cell)
    assert len(profile.windows) >= 4
    assert not profile.reason


def test_an_optimizer_that_steps_within_backward_turns_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of autograd is open around it, which torch would close in freed memory."""
    turning(monkeypatch, 1)
    monkeypatch.setattr(module, "_PATIENCE", 60)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    seen = []

    def cell(recorder: Recorder) -> None:
        monkeypatch.setattr(recorder, "_turn", lambda frame: seen.append(profiler.may_have_scopes(frame)))
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            recorder._is_asked = True
            (weight * 2).sum().backward()

    recorded(cell)
    assert seen
    assert sum(seen) > len(seen) / 2
