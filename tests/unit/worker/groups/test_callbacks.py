"""Callbacks: waits outside the main thread are ended, and only those of the generation that is meant."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jdist.worker.groups.gloo import CallbackWaits


class NeverDone:
    """A future of a collective that does not end."""

    def __init__(self) -> None:
        self.is_waited_for = threading.Event()

    def done(self) -> bool:
        return False

    def add_done_callback(self, _: Callable[[Any], None]) -> None:
        self.is_waited_for.set()


@pytest.fixture
def waits() -> CallbackWaits:
    return CallbackWaits()


def test_a_wait_is_ended_and_so_are_later_ones_until_the_generation_is_left(waits: CallbackWaits) -> None:
    future = NeverDone()
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(waits._wait, future)
        assert future.is_waited_for.wait(10)
        waits.end(waits.generation)
        with pytest.raises(RuntimeError, match="the run was ended"):
            waiting.result(10)
        with pytest.raises(RuntimeError, match="the run was ended"):
            waits._wait(NeverDone())
        waits.resume()
        again = NeverDone()
        waiting = threads.submit(waits._wait, again)
        assert again.is_waited_for.wait(10)
        assert not waiting.done()
        waits.end(waits.generation)
        assert isinstance(waiting.exception(10), RuntimeError)


def test_an_end_that_comes_late_does_not_end_the_waits_of_the_next_generation(waits: CallbackWaits) -> None:
    left = waits.generation
    waits.resume()
    waits.end(left)
    future = NeverDone()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waits._wait, future)
        assert future.is_waited_for.wait(10)
        assert not waiting.done()
        waits.end(waits.generation)
        assert isinstance(waiting.exception(10), RuntimeError)
