"""The awake loop: a pause of the process counts for nothing, and a silence that it has heard counts in full."""

from __future__ import annotations

import asyncio
import time

import pytest

from jdist.wire import awake_loop
from jdist.wire.awake_loop import AwakeClock


def test_the_clock_leaves_out_the_time_in_which_nobody_asked() -> None:
    at = 100.0
    clock = AwakeClock(lambda: at)
    for _ in range(10):
        at += 1.0
        clock()
    assert clock() == 110.0
    at += 3600.0
    paused = clock()
    assert paused - 110.0 <= 1.0
    at += 1.5
    assert clock() == paused + 1.5


def test_timers_come_in_time_and_a_pause_delays_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake_loop, "_PAUSE", 0.2)
    monkeypatch.setattr(awake_loop, "_LOOK", 0.05)

    async def main() -> tuple[float, float]:
        loop, began = asyncio.get_running_loop(), time.monotonic()
        await asyncio.sleep(0.3)
        in_time = time.monotonic() - began
        fired = asyncio.Event()
        loop.call_later(1.0, fired.set)
        time.sleep(1.5)  # noqa: ASYNC251 — the process is stopped, as it were
        assert not fired.is_set()
        await asyncio.sleep(0.1)
        assert not fired.is_set(), "most of the pause does not count"
        await asyncio.wait_for(fired.wait(), 60)
        return in_time, time.monotonic() - began

    in_time, in_all = awake_loop.run(main())
    assert in_time >= 0.3
    assert in_all >= 0.3 + 1.5 + 0.8
