"""What the main thread is found to wait in, without a world."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import pytest

from jdist.worker.observe import main_thread
from jdist.worker.observe.call_log import CallLog
from jdist.worker.observe.main_thread import MainThread

LOOKS = 5


class Recorder:
    """A flight recorder by which a collective is in flight; ``asked``: how often that was asked."""

    status = b""

    def __init__(self) -> None:
        self.asked = 0

    def is_on_gpu(self) -> bool:
        return False

    def is_in_flight(self) -> bool:
        self.asked += 1
        return True


def looks_at_a_wait(recorder: Any) -> list[str]:
    """What each of several looks says of the main thread, which waits for another."""
    observed, held, found = MainThread(CallLog(), recorder), threading.Lock(), list[str]()

    def look() -> None:
        until = time.monotonic() + 20
        while not main_thread._waits_for_a_thread(os.getpid()) and time.monotonic() < until:
            time.sleep(0.001)
        for _ in range(LOOKS):
            found.append(observed.glance().activity.kind)
            time.sleep(2 * main_thread._SETTLE)
        held.release()

    held.acquire()
    thread = threading.Thread(target=look)
    thread.start()
    wait = held.acquire
    wait()
    thread.join()
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="what a thread waits for is read from /proc")
def test_a_thread_that_waits_while_a_collective_is_in_flight_is_blocked_from_the_second_look_on() -> None:
    recorder = Recorder()
    found = looks_at_a_wait(recorder)
    assert found[0] == "python"
    assert found[-1] == "collective"
    assert recorder.asked == found.count("collective")


@pytest.mark.skipif(sys.platform != "linux", reason="what a thread waits for is read from /proc")
def test_of_a_thread_that_computes_in_between_the_recorder_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its whole content would be read in each look at a training."""
    recorder = Recorder()
    monkeypatch.setattr(main_thread, "_cpu_seconds", lambda _: time.monotonic())
    assert looks_at_a_wait(recorder) == ["python"] * LOOKS
    assert recorder.asked == 0
