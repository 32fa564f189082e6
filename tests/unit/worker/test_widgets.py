"""Events of widgets on a rank: taken at the call that was agreed, and held for no longer than a moment."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator
from typing import Any

import comm
import msgspec
import pytest
from comm.base_comm import BaseComm

from jdist.core.messages.widgets import CommEvent, DeliverEvents, EventPoint, PrepareEvents, StoreEvents
from jdist.worker import widgets
from jdist.worker.widgets import EventQueue, process_events, take_events


class Kernel:
    """What an event queue uses of a kernel."""

    iopub_socket = None

    def __init__(self) -> None:
        self.session = self.shell = self
        self.sent: list[dict[str, Any]] = []
        self._showtraceback = None

    def get_parent(self) -> dict[str, Any]:
        return {}

    def send(self, _socket: object, _kind: str, content: dict[str, Any], **_: object) -> None:
        self.sent.append(content["data"])


def encoded(*events: tuple[str, bytes]) -> bytes:
    """Events, as ids of comms and data."""
    return msgspec.msgpack.encode([CommEvent({2: comm_id}, data) for comm_id, data in events])


class Rank:
    """A rank with one comm, in a run."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.run = 7
        self.got: list[Any] = []
        self.queue = EventQueue(self.kernel, lambda: 2, lambda: self.run)
        self.comm = BaseComm.__new__(BaseComm)
        self.comm.handle_msg = self._handle  # type: ignore[method-assign]

    def _handle(self, message: dict[str, Any]) -> None:
        if message["content"]["data"] == "fail":
            raise ValueError("of an observer")
        self.got.append(message["content"]["data"])

    def calls(self, times: int) -> None:
        for _ in range(times):
            process_events()

    def point(self, hold: float = 30.0) -> EventPoint:
        point = self.queue.answer(PrepareEvents(hold))
        assert isinstance(point, EventPoint)
        return point

    def event(self, *data: bytes) -> bytes:
        """Events for its comm; by default one."""
        return encoded(*(("a", each) for each in data or (b"1",)))


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(widgets, "_queues", [])
    made = Rank()
    monkeypatch.setattr(comm, "create_comm", comm.create_comm)  # as it was, after the test
    monkeypatch.setattr(comm.get_comm_manager(), "comms", {"a": made.comm})
    loop = asyncio.new_event_loop()
    made.queue.connect(loop, contextvars.copy_context())
    yield made
    loop.close()


def test_events_are_taken_at_their_call_and_not_before(rank: Rank) -> None:
    rank.calls(3)
    point = rank.point()
    assert point.run == 7
    assert point.call > 3
    rank.queue.answer(DeliverEvents(1, rank.event(), 7, point.call + 2))
    rank.calls(point.call + 1 - 3)
    assert rank.got == []
    rank.calls(1)
    assert rank.got == [1]
    assert rank.kernel.sent == [{"batch": 1, "call": point.call + 2, "unknown": []}]
    rank.calls(5)
    assert rank.got == [1]


def test_a_rank_does_not_pass_the_call_that_it_has_told_before_it_hears_which_it_is(rank: Rank) -> None:
    rank.calls(1)
    point = rank.point()
    made: list[int] = []

    def work() -> None:
        for number in range(2, 200):
            process_events()
            made.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    while len(made) < point.call - 2:
        time.sleep(0.001)
    time.sleep(0.05)
    assert made[-1] == point.call - 1  # it is in the call that it told
    rank.queue.answer(DeliverEvents(1, rank.event(), 7, point.call))
    thread.join(10)
    assert not thread.is_alive()
    assert rank.kernel.sent[0]["call"] == point.call


def test_a_rank_that_hears_nothing_goes_on(rank: Rank) -> None:
    rank.calls(1)
    point = rank.point(hold=0.01)
    rank.calls(point.call + 5)
    rank.queue.answer(DeliverEvents(1, rank.event(), 7, point.call))
    rank.calls(1)
    assert rank.kernel.sent == [{"batch": 1, "call": point.call + 7, "unknown": []}]  # late, and it says so


def test_nothing_is_held_where_no_call_was_made_and_after_a_refusal(rank: Rank) -> None:
    assert rank.point().call == 0
    rank.calls(1)
    assert rank.point().call
    rank.queue.answer(DeliverEvents(0))
    began = time.monotonic()
    rank.calls(1000)
    assert time.monotonic() - began < 30.0
    rank.run = 0
    assert rank.point() == EventPoint(0)


def test_what_was_not_taken_in_a_run_is_taken_by_jdists_own_cell(rank: Rank) -> None:
    rank.calls(1)
    rank.queue.answer(DeliverEvents(1, rank.event(), 7, 100))
    rank.run = 8
    rank.calls(200)
    assert rank.got == []
    take_events()
    assert rank.got == [1]


def test_events_that_wait_may_be_told_another_call_and_are_taken_once(rank: Rank) -> None:
    rank.queue.answer(DeliverEvents(1, rank.event()))
    rank.calls(1)
    assert rank.got == []
    for _ in range(2):
        rank.queue.answer(DeliverEvents(1, b"", 7, 3))
        rank.calls(2)
    assert rank.kernel.sent == [{"batch": 1, "call": 3, "unknown": []}]
    assert rank.got == [1]


def test_a_comm_that_is_not_there_any_more_is_reported(rank: Rank) -> None:
    rank.queue.answer(DeliverEvents(1, encoded(("a", b"1"), ("gone", b"1"))))
    take_events()
    assert rank.kernel.sent == [{"batch": 1, "call": 0, "unknown": ["gone"]}]


def test_the_parts_of_a_batch_are_put_together_and_those_of_clients_that_are_gone_dropped(rank: Rank) -> None:
    data = rank.event(b'"%s"' % (b"x" * 1000))
    for batch in range(2, 10):
        rank.queue.answer(StoreEvents(batch, data[:500]))
    rank.queue.answer(StoreEvents(9, data[500:900]))
    rank.queue.answer(DeliverEvents(9, data[900:]))
    take_events()
    assert rank.got == ["x" * 1000]
    assert len(rank.queue._stored) < 5


def test_an_observers_error_is_written_and_the_next_event_is_taken(
    rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.queue.answer(DeliverEvents(1, rank.event(b'"fail"', b"2")))
    take_events()
    assert rank.got == [2]
    assert "ValueError: of an observer" in capsys.readouterr().err


def test_comms_have_the_same_ids_on_ranks_that_make_the_same_ones(rank: Rank) -> None:
    assert [comm.create_comm(target_name="x").comm_id for _ in range(2)] == ["7.0", "7.1"]
    rank.run = 9
    assert comm.create_comm(target_name="x").comm_id == "9.0"
    assert comm.create_comm(target_name="x", comm_id="own").comm_id == "own"
