"""Comms of ranks, such as those of their widgets: the part of a cluster that passes their messages on to one listener,
and what the user does in a page to the ranks.

Events for the same ranks travel together, one batch after another. While a batch is on its way, newer values of the
same traits take the place of older ones. All methods are called on the link's loop.
"""

import asyncio
import itertools
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment
from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.base import Message, QueryFailed
from jdist.core.messages.runs import CommSent, Output, OutputItem, RunEnded
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
from jdist.core.rank_code import take_events
from jdist.core.ranks import RankSet, describe_ranks

_MOST_WAITING = 1000  # Events that wait for the same ranks; of more, the oldest are dropped.
_ANSWER = 2.0  # Seconds for a rank to answer a query.
_HOLD = 0.5  # Seconds for which a rank is held at most, until it hears at which call it takes events.
_RANKS_A_SECOND = 64  # Both are a second longer for each so many ranks, which may share few cores.
_AGAIN = 0.3  # Seconds between two attempts while the ranks are in a cell that does not take events.
_BETWEEN = 0.4  # Seconds between two batches for a cell that runs: each costs it a few milliseconds.
_PART = 1 << 20  # Bytes of events in one query; larger ones would keep other messages waiting.
_LONGEST_PART = 30.0  # Seconds for a rank to take a part of a large event.


class CommReceived(Struct, frozen=True):
    """A whole message of a comm of ranks."""

    ranks: tuple[int, ...]
    comm_id: str
    content: CommContent


class EventsPending(Struct, frozen=True):
    """How far the events for some ranks are. ``text`` is "" once they have been taken."""

    ranks: tuple[int, ...]
    text: str
    gone: tuple[tuple[int, str], ...] = ()  # Comms that a rank does not have any more, as (rank, id).


class EventOutput(Struct, frozen=True):
    """What ranks write while they take events between cells."""

    item: OutputItem


Heard = CommReceived | EventsPending | EventOutput | Stopped


class RankComms:
    """The comms of one cluster's ranks."""

    def __init__(self, attachment: Attachment, runs: ActiveRuns) -> None:
        self._attachment = attachment
        self._runs = runs
        self._listener: Callable[[Heard], None] | None = None
        self._parts: dict[tuple[tuple[int, ...], str], list[bytes]] = {}
        self._waiting: dict[tuple[int, ...], dict[object, CommEvent]] = {}  # By ranks; None of them: a batch goes on.
        self._tasks: dict[tuple[int, ...], asyncio.Task[None]] = {}
        self._batches = itertools.count(secrets.randbits(48))  # Another client's are other numbers.
        self._taken: dict[int, dict[int, Mapping[str, Any]]] = {}  # By batch and rank.
        self._changed = asyncio.Event()  # Set when a rank has taken a batch, or a run has ended.
        attachment.route(self._handle)
        attachment.on_close(self._close)

    def listen(self, listener: Callable[[Heard], None] | None) -> None:
        """Call ``listener`` with what is heard from now on, on the link's loop; before that, nothing is kept."""
        self._listener = listener

    def send(self, comm_ids: Mapping[int, str], data: Any, buffers: tuple[bytes, ...] = ()) -> None:
        """Send a message to the comm of each of these ranks."""
        event = CommEvent(dict(comm_ids), msgspec.json.encode(data), buffers)
        key = _replaced_by(event, data)
        ranks = tuple(sorted(event.comm_ids))
        waiting = self._waiting.setdefault(ranks, {})
        waiting.pop(key, None)
        waiting[key] = event
        if len(waiting) > _MOST_WAITING:
            del waiting[next(iter(waiting))]
        if ranks not in self._tasks:
            self._tasks[ranks] = asyncio.ensure_future(self._deliver_all(ranks))

    def is_sending(self, ranks: tuple[int, ...]) -> bool:
        """Whether messages to comms of exactly these ranks have not been taken yet; from any thread."""
        return ranks in self._tasks

    def _tell(self, heard: Heard) -> None:
        if self._listener is not None:
            self._listener(heard)

    # ------------------------------------------------------------ what ranks say

    def _handle(self, message: Message) -> None:
        match message:
            case Output(items=items):
                for item in items:
                    if isinstance(item, CommSent):
                        self._handle_part(item)
            case RunEnded():
                self._changed.set()
            case Stopped() if not self._attachment.link.may_be_replaced:
                self._tell(message)

    def _handle_part(self, sent: CommSent) -> None:
        if self._listener is None:
            return
        key = sent.ranks, sent.comm_id
        if sent.has_more:
            self._parts.setdefault(key, []).append(sent.content)
            return
        data = b"".join((*self._parts.pop(key, ()), sent.content))
        try:
            content = msgspec.msgpack.decode(data, type=CommContent)
        except msgspec.MsgspecError:  # its beginning was lost with a connection
            return
        if sent.comm_id == TAKEN:
            taken = msgspec.json.decode(content.data)
            for rank in sent.ranks:
                self._taken.get(taken["batch"], {})[rank] = taken
            self._changed.set()
        else:
            self._tell(CommReceived(sent.ranks, sent.comm_id, content))

    # ------------------------------------------------------------ what ranks are told

    async def _deliver_all(self, ranks: tuple[int, ...]) -> None:
        """Deliver what waits for these ranks, batch after batch, until nothing does."""
        final = EventsPending(ranks, "")
        try:
            while self._waiting.get(ranks):
                final = await self._deliver(ranks)
                if final.gone:
                    self._tell(final)  # else the next batch would hide it
        except JdistError as e:
            final = EventsPending(ranks, e.message)
        finally:
            self._waiting.pop(ranks, None)
            del self._tasks[ranks]
            self._tell(final)

    async def _deliver(self, ranks: tuple[int, ...]) -> EventsPending:
        """Deliver one batch; what is to be said of it. Raises JdistError."""
        batch, link = next(self._batches), self._attachment.link
        at = await self._wait_for_point(ranks)
        events = msgspec.msgpack.encode(tuple(self._waiting.pop(ranks).values()))
        self._waiting[ranks] = {}
        taken = self._taken[batch] = {}
        failed: dict[int, str] = {}
        try:
            if len(events) > _PART:  # that takes longer than ranks are held
                for i in range(0, len(events), _PART):
                    part = StoreEvents(batch, events[i : i + _PART])
                    for rank, answer in (await link.query(ranks, part, _LONGEST_PART)).items():
                        if isinstance(answer, QueryFailed):
                            raise UsageError(f"rank {rank} could not take a large event: {answer.reason}")
                events, at = b"", await self._wait_for_point(ranks)
            left, call = ranks, 0
            while left:
                call = at.call or call
                answers = await link.query(left, DeliverEvents(batch, events, at.run, at.call), _within(_ANSWER, left))
                failed |= {rank: body.reason for rank, body in answers.items() if isinstance(body, QueryFailed)}
                left = tuple(rank for rank in left if rank not in failed)
                if at.run:
                    await self._wait_until_taken(batch, left, at.run)
                    await asyncio.sleep(_BETWEEN)
                elif not left or await self._take_between_cells(left):
                    break
                left = tuple(rank for rank in left if rank not in taken)
                if left:  # the run ended before that call, or another cell started first
                    events, at = b"", await self._wait_for_point(left)
            return _result(ranks, taken, failed, call)
        finally:
            del self._taken[batch]

    async def _take_between_cells(self, ranks: tuple[int, ...]) -> bool:
        """Run a cell of jdist's own that takes the delivered events; False if it is queued behind another cell."""
        run = await self._runs.submit(take_events(), ranks, is_internal=True)
        run.watch(self._pass_output)
        if run.behind:
            await asyncio.sleep(_AGAIN)
            return False
        await self._runs.wait(run)
        return True

    def _pass_output(self, message: Message | None) -> None:
        for item in message.items if isinstance(message, Output) else ():
            if not isinstance(item, CommSent):
                self._tell(EventOutput(item))

    async def _wait_for_point(self, ranks: tuple[int, ...]) -> EventPoint:
        """Where all ranks can take events, once there is such a place."""
        while (at := await self._find_point(ranks)) is None:  # noqa: ASYNC110 — what it waits for is on the ranks
            await asyncio.sleep(_AGAIN)
        return at

    async def _find_point(self, ranks: tuple[int, ...]) -> EventPoint | None:
        """Where all ranks can take events; None if they cannot at present, which the listener is told."""
        answers = await self._attachment.link.query(
            ranks, PrepareEvents(_within(_HOLD, ranks)), _within(_ANSWER, ranks)
        )
        points = {rank: body for rank, body in answers.items() if isinstance(body, EventPoint)}
        runs = {point.run for point in points.values()}
        if len(points) == len(ranks) and len(runs) == 1:
            run = runs.pop()
            if not run or all(point.awaits for point in points.values()):
                return EventPoint(run, -1 if run else 0)
            if all(point.call for point in points.values()):
                return EventPoint(run, max(point.call for point in points.values()))
        if any(point.call for point in points.values()):
            await self._attachment.link.query(tuple(points), DeliverEvents(0), _within(_ANSWER, ranks))
        busy = [rank for rank, point in points.items() if point.run]
        silent = [rank for rank in ranks if rank not in points]
        if silent:
            text = f"{describe_ranks(silent, 'does')} not answer; the change is delivered as soon as all ranks do"
        else:
            text = _awaited(ranks, busy)
        self._tell(EventsPending(ranks, text))
        return None

    async def _wait_until_taken(self, batch: int, ranks: tuple[int, ...], run: int) -> None:
        """Wait until all ranks have taken a batch, or the run in which they were to is over."""
        while not self._taken[batch].keys() >= set(ranks) and run in self._runs:
            self._changed.clear()
            try:
                async with asyncio.timeout(_ANSWER):
                    await self._changed.wait()
            except TimeoutError:
                self._tell(EventsPending(ranks, _awaited(ranks, [r for r in ranks if r not in self._taken[batch]])))

    def _close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tell(Stopped("this process has detached from the cluster"))


def _result(
    ranks: tuple[int, ...], taken: Mapping[int, Mapping[str, Any]], failed: Mapping[int, str], call: int
) -> EventsPending:
    """What to report of a batch: ranks that did not get it, or that took it at another call than the others."""
    gone = tuple((rank, comm_id) for rank in ranks for comm_id in taken.get(rank, {}).get("unknown", ()))
    if gone:
        return EventsPending(ranks, "", gone)
    if failed:
        rank, why = next(iter(failed.items()))
        return EventsPending(ranks, f"{_named(failed)} did not get the last change: rank {rank}: {why}")
    late = [rank for rank, each in taken.items() if each["call"] != call]
    if call > 0 and late and len({each["call"] for each in taken.values()}) > 1:
        text = f"not in step: {_named(late)} took the last change at another call of jdist.process_events()"
        return EventsPending(ranks, text)
    return EventsPending(ranks, "")


def _within(seconds: float, ranks: Collection[int]) -> float:
    return seconds + len(ranks) / _RANKS_A_SECOND


def _awaited(ranks: Collection[int], busy: Collection[int]) -> str:
    return (
        f"the change reaches {_named(ranks)} at the next jdist.process_events() of the cell that runs on "
        f"{_named(busy)}, or at its end"
    )


def _named(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {RankSet(ranks)}"


def _replaced_by(event: CommEvent, data: Any) -> object:
    """What an event has in common with those whose place it takes: of values of traits, the comms and the names."""
    if isinstance(data, dict) and data.get("method") == "update":
        return (*event.comm_ids.items(), *sorted(data.get("state", ())))
    return object()
