"""Comms of ranks: large messages are put together, and events reach all ranks at the same call, newest first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from jdist.client import comms
from jdist.client.comms import CommReceived, EventOutput, EventsPending, Heard, RankComms
from jdist.core.errors import UsageError
from jdist.core.messages.base import Ack, Message, QueryFailed
from jdist.core.messages.runs import CommSent, Output, RunEnded, Text
from jdist.core.messages.status import Stopped
from jdist.core.messages.widgets import (
    TAKEN,
    CommContent,
    CommEvent,
    DeliverEvents,
    EventPoint,
    PrepareEvents,
    StoreEvents,
)


def sent(rank: int, data: object, comm_id: str = "a") -> tuple[CommSent, ...]:
    content = msgspec.msgpack.encode(CommContent("msg", "", json.dumps(data).encode()))
    half = len(content) // 2
    return CommSent((rank,), comm_id, content[:half], has_more=True), CommSent((rank,), comm_id, content[half:])


def events_of(delivery: DeliverEvents, stored: bytes = b"") -> tuple[CommEvent, ...]:
    return msgspec.msgpack.decode(stored + delivery.events, type=tuple[CommEvent, ...])


class Run:
    """A cell of jdist's own."""

    def __init__(self, writes: str, *behind: int) -> None:
        self._writes, self.behind = writes, behind

    def watch(self, watcher: Callable[[Message | None], None]) -> None:
        watcher(Output(9, (Text((0,), "stdout", self._writes), *sent(0, {}))))
        watcher(None)


class Cluster:
    """Ranks that answer queries as ``points`` says, and take events that are delivered to them at a call."""

    def __init__(self) -> None:
        self.link = self
        self.host = None
        self.may_be_replaced = False
        self.points: list[Mapping[int, Any]] = [{0: EventPoint(0), 1: EventPoint(0)}]
        self.delivered: list[DeliverEvents] = []
        self.own_cells: list[tuple[int, ...]] = []
        self.route: Callable[[Callable[[Message], None]], None] = self._set_route
        self.active = {7}
        self.late: dict[int, int] = {}
        self.unknown: dict[int, list[str]] = {}
        self.is_refused = False
        self.stored: list[StoreEvents] = []
        self.full = ""
        self.behind: tuple[int, ...] = ()  # What the next cell of jdist's own waits for.

    def _set_route(self, handler: Callable[[Message], None]) -> None:
        self.receive = handler

    def on_close(self, closer: Callable[[], None]) -> None:
        self.close = closer

    def __contains__(self, run: int) -> bool:
        return run in self.active

    async def query(self, ranks: tuple[int, ...], op: Any, _timeout: float) -> Mapping[int, Any]:
        await asyncio.sleep(0)
        if isinstance(op, PrepareEvents):
            points = self.points.pop(0) if len(self.points) > 1 else self.points[0]
            return {rank: points[rank] for rank in ranks}
        if isinstance(op, StoreEvents):
            self.stored.append(op)
            return {rank: QueryFailed(self.full) if self.full else Ack() for rank in ranks}
        if isinstance(op, DeliverEvents) and op.batch:
            self.delivered.append(op)
        if op.call:
            for rank in ranks:
                taken = {"batch": op.batch, "call": self.late.get(rank, op.call), "unknown": self.unknown.get(rank, [])}
                self.receive(Output(7, sent(rank, taken, TAKEN)))
        return dict.fromkeys(ranks, Ack())

    async def submit(self, _code: str, ranks: tuple[int, ...], **_: object) -> Run:
        if self.is_refused:
            raise UsageError("the cluster is stopping")
        self.own_cells.append(ranks)
        behind, self.behind = self.behind, ()
        return Run("printed", *behind)

    async def wait(self, run: Run) -> Run:
        return run


def play(scene: Callable[[RankComms, Cluster, list[Heard]], Awaitable[None]]) -> list[Heard]:
    heard: list[Heard] = []

    async def main() -> None:
        cluster: Any = Cluster()
        made = RankComms(cluster, cluster)
        made.listen(heard.append)
        await scene(made, cluster, heard)
        await asyncio.gather(*made._tasks.values())

    asyncio.run(asyncio.wait_for(main(), 20))
    return heard


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comms, "_AGAIN", 0.001)
    monkeypatch.setattr(comms, "_BETWEEN", 0.001)


def update(value: int) -> dict[str, Any]:
    return {"method": "update", "state": {"value": value}}


IDS = {0: "a", 1: "b"}


def test_a_message_in_parts_is_heard_as_one() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        first, second = sent(3, {"method": "custom"})
        cluster.receive(Output(7, (first,)))
        cluster.receive(Output(7, (CommSent((4,), "a", first.content, has_more=True), second)))
        cluster.receive(Output(7, (CommSent((5,), "a", b"the end of one whose beginning was lost"),)))
        made.listen(None)
        cluster.receive(Output(7, sent(3, {})))

    content = CommContent("msg", "", b'{"method": "custom"}')
    assert play(scene) == [CommReceived((3,), "a", content)]


def test_between_cells_a_cell_of_jdists_own_takes_events() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        made.send(IDS, update(1))
        await asyncio.gather(*made._tasks.values())
        assert cluster.own_cells == [(0, 1)]
        assert [(d.run, d.call) for d in cluster.delivered] == [(0, 0)]
        assert events_of(cluster.delivered[0])[0].comm_ids == IDS

    assert play(scene) == [EventOutput(Text((0,), "stdout", "printed")), EventsPending((0, 1), "")]


def test_in_a_cell_all_ranks_take_them_at_the_last_call_that_one_told() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        cluster.points = [{0: EventPoint(7, 5), 1: EventPoint(7, 9)}]
        made.send(IDS, update(1))
        await asyncio.gather(*made._tasks.values())
        assert [(d.run, d.call) for d in cluster.delivered] == [(7, 9)]
        assert cluster.own_cells == []

    assert play(scene) == [EventsPending((0, 1), "")]


def test_a_rank_that_took_them_at_another_call_is_named() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        cluster.points, cluster.late = [{0: EventPoint(7, 5), 1: EventPoint(7, 9)}], {1: 12}
        made.send(IDS, update(1))

    (pending,) = play(scene)
    assert isinstance(pending, EventsPending)
    assert pending.text.startswith("not in step: rank 1 took")


def test_while_ranks_are_busy_the_newest_value_waits_and_clicks_do_all() -> None:
    async def scene(made: RankComms, cluster: Cluster, heard: list[Heard]) -> None:
        cluster.points = [{0: EventPoint(7), 1: EventPoint(7)}] * 5 + [{0: EventPoint(0), 1: EventPoint(0)}]
        for value in range(500):
            made.send(IDS, update(value))
        for click in range(3):
            made.send(IDS, {"method": "custom", "content": click})
        made.send({0: "a"}, update(1))  # of one rank: by itself
        await asyncio.gather(*made._tasks.values())
        first = next(found for d in cluster.delivered if len(found := events_of(d)) > 1)
        assert [json.loads(event.data) for event in first] == [
            update(499),
            *({"method": "custom", "content": click} for click in range(3)),
        ]
        assert any("at the next jdist.process_events()" in h.text for h in heard if isinstance(h, EventsPending))

    play(scene)


def test_a_large_event_travels_in_parts_and_ranks_are_held_only_once_they_have_it() -> None:
    large = bytes(range(256)) * (10 << 12)

    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        cluster.points = [{0: EventPoint(7, 5), 1: EventPoint(7, 5)}, {0: EventPoint(7, 80), 1: EventPoint(7, 81)}]
        made.send(IDS, update(1), (large,))
        await asyncio.gather(*made._tasks.values())
        (delivery,) = cluster.delivered
        assert delivery.call == 81
        assert {each.batch for each in cluster.stored} == {delivery.batch}
        assert max(len(each.part) for each in cluster.stored) <= 1 << 20
        (event,) = events_of(delivery, b"".join(each.part for each in cluster.stored))
        assert event.buffers == (large,)
        cluster.full = "no memory"
        made.send(IDS, update(1), (large,))

    assert play(scene) == [
        EventsPending((0, 1), ""),
        EventsPending((0, 1), "rank 0 could not take a large event: no memory"),
    ]


def test_ranks_in_different_places_are_asked_again_and_those_held_go_free() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        silent = QueryFailed("no answer")
        cluster.points = [
            {0: EventPoint(7, 5), 1: EventPoint(0)},
            {0: EventPoint(7, 5), 1: silent},
            {0: EventPoint(7, awaits=True), 1: EventPoint(7, awaits=True)},
        ]
        made.send(IDS, update(1))
        await asyncio.gather(*made._tasks.values())
        assert [(d.run, d.call) for d in cluster.delivered] == [(7, -1)]

    texts = [h.text for h in play(scene) if isinstance(h, EventsPending)]
    assert "of the cell that runs on rank 0" in texts[0]
    assert texts[1] == "rank 1 does not answer; the change is delivered as soon as all ranks do"


def test_what_is_left_when_the_run_ends_is_taken_after_it() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        cluster.points = [{0: EventPoint(7, 5), 1: EventPoint(7, 9)}]
        ask = cluster.query

        async def query(ranks: tuple[int, ...], op: Any, timeout: float) -> Mapping[int, Any]:
            if isinstance(op, DeliverEvents):  # only rank 0 comes to that call
                return await ask((0,), op, timeout)
            return await ask(ranks, op, timeout)

        cluster.query = query  # type: ignore[method-assign]
        made.send(IDS, update(1))
        await asyncio.sleep(0.02)
        assert cluster.own_cells == []
        cluster.active.clear()
        cluster.points = [{1: EventPoint(0)}]
        cluster.receive(RunEnded(7, "", 1.0))
        await asyncio.gather(*made._tasks.values())
        assert cluster.own_cells == [(1,)]
        assert [(d.run, d.call, bool(d.events)) for d in cluster.delivered] == [(7, 9, True), (0, 0, False)]

    play(scene)


def test_a_cell_that_begins_before_ranks_took_them_takes_them() -> None:
    """They would wait for its end otherwise, and all later events with them."""

    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        cluster.points = [{0: EventPoint(0), 1: EventPoint(0)}, {0: EventPoint(7, 3), 1: EventPoint(7, 2)}]
        cluster.behind = (7,)
        made.send(IDS, update(1))
        await asyncio.gather(*made._tasks.values())
        first, second = cluster.delivered
        assert (second.run, second.call, second.batch, second.events) == (7, 3, first.batch, b"")
        assert cluster.own_cells == [(0, 1)]

    assert play(scene) == [EventOutput(Text((0,), "stdout", "printed")), EventsPending((0, 1), "")]


def test_ranks_that_do_not_answer_are_named_and_sent_no_cell() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        ask = cluster.query

        async def query(ranks: tuple[int, ...], op: Any, timeout: float) -> Mapping[int, Any]:
            if isinstance(op, DeliverEvents):
                return dict.fromkeys(ranks, QueryFailed("no answer for 2 s"))
            return await ask(ranks, op, timeout)

        cluster.query = query  # type: ignore[method-assign]
        made.send(IDS, update(1))
        await asyncio.gather(*made._tasks.values())
        assert cluster.own_cells == []

    text = "ranks 0-1 did not get the last change: rank 0: no answer for 2 s"
    assert play(scene) == [EventsPending((0, 1), text)]


def test_comms_that_are_gone_and_errors_are_told() -> None:
    async def scene(made: RankComms, cluster: Cluster, heard: list[Heard]) -> None:
        cluster.points, cluster.unknown = [{0: EventPoint(7, 5), 1: EventPoint(7, 5)}], {1: ["b"]}
        made.send(IDS, update(1))
        await asyncio.gather(*made._tasks.values())
        assert heard[-1] == EventsPending((0, 1), "", ((1, "b"),))
        cluster.points, cluster.is_refused = [{0: EventPoint(0), 1: EventPoint(0)}], True
        made.send(IDS, update(2))
        await asyncio.gather(*made._tasks.values())
        assert heard[-1] == EventsPending((0, 1), "the cluster is stopping")
        cluster.close()
        assert isinstance(heard[-1], Stopped)

    play(scene)


def test_ranks_that_took_them_at_the_end_of_the_run_are_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cell went on after its last call; meanwhile the listener is told what the events wait for."""
    monkeypatch.setattr(comms, "_ANSWER", 0.01)

    async def scene(made: RankComms, cluster: Cluster, heard: list[Heard]) -> None:
        cluster.points = [{0: EventPoint(7, 5), 1: EventPoint(7, 5)}]

        async def query(ranks: tuple[int, ...], op: Any, _timeout: float) -> Mapping[int, Any]:
            if isinstance(op, PrepareEvents):
                return {rank: cluster.points[0][rank] for rank in ranks}
            return dict.fromkeys(ranks, Ack())

        async def submit(_code: str, ranks: tuple[int, ...], **_: object) -> Run:
            for rank in ranks:
                cluster.receive(Output(8, sent(rank, {"batch": 1, "call": 0, "unknown": []}, TAKEN)))
            return Run("")

        cluster.query, cluster.submit = query, submit  # type: ignore[method-assign]
        told = asyncio.Event()
        made.listen(lambda what: (heard.append(what), told.set()))
        made.send(IDS, update(1))
        assert made.is_sending((0, 1))
        await told.wait()
        cluster.active.clear()
        cluster.points = [{0: EventPoint(0), 1: EventPoint(0)}]
        cluster.receive(RunEnded(7, "", 1.0))

    first, *_, last = [h for h in play(scene) if isinstance(h, EventsPending)]
    assert "at the next jdist.process_events() of the cell that runs on ranks 0-1" in first.text
    assert last == EventsPending((0, 1), "")


def test_that_a_comm_is_gone_is_told_although_more_events_follow() -> None:
    async def scene(made: RankComms, cluster: Cluster, _: list[Heard]) -> None:
        cluster.points, cluster.unknown = [{0: EventPoint(7, 5), 1: EventPoint(7, 5)}], {1: ["b"]}
        ask = cluster.query

        async def query(ranks: tuple[int, ...], op: Any, timeout: float) -> Mapping[int, Any]:
            answers = await ask(ranks, op, timeout)
            if isinstance(op, DeliverEvents) and cluster.unknown:
                cluster.unknown = {}
                made.send({0: "c", 1: "d"}, update(1))
            return answers

        cluster.query = query  # type: ignore[method-assign]
        made.send(IDS, {"method": "custom"})

    assert EventsPending((0, 1), "", ((1, "b"),)) in play(scene)
