"""Waits for the client's thread: on Windows they are made of short ones, and mean the same."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future

import pytest

from jdist.client import threads
from jdist.client.threads import result_of


@pytest.fixture(params=["linux", "win32"], autouse=True)
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", request.param)
    monkeypatch.setattr(threads, "_LOOK", 0.01)


def test_a_result_is_waited_for() -> None:
    future: Future[int] = Future()
    threading.Timer(0.1, future.set_result, (3,)).start()
    assert result_of(future) == 3
    assert result_of(future, 0.0) == 3


def test_an_error_is_raised_even_if_it_is_a_timeout() -> None:
    future: Future[int] = Future()
    future.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_of(future, 60.0)


def test_a_wait_ends_at_its_timeout() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        result_of(future, 0.05)
    future.cancel()
    with pytest.raises(CancelledError):
        result_of(future)
