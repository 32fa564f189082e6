"""Link: queries end when every rank has answered, or when no answer and no progress has come for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jdist.client import link as link_module
from jdist.client.link import CONTROLLER, Link
from jdist.core.errors import ConnectionLost, ProtocolError, UsageError
from jdist.core.messages.base import Message, Progress, QueryFailed
from jdist.core.messages.membership import LivenessLost
from jdist.core.messages.nodes import ClockReading, ReadClock
from jdist.core.messages.observation import GetStack, StackText
from jdist.core.messages.protocol import NodeQuery, NodeReply, RankQuery, RankReply
from jdist.core.messages.runs import Interrupt
from jdist.core.messages.status import Attached, RequestRefused, Stopped
from jdist.wire.transport.keys import Connection, KeyPair
from jdist.wire.transport.streams import AGAIN, MESSAGE, read_head

BRIEF = 0.05
"""Seconds without an answer."""
LONG = 10.0
KEYS = KeyPair.make()
CONNECTION = Connection("c", "0" * 32, "127.0.0.1", 1, 1, KEYS.public, KEYS, 1, "1")


class Answered(Link):
    """A link without a connection; ``answer`` is called with each query, and what it returns comes back."""

    def __init__(self, answer: Callable[[Any], list[Message]]):
        self.connection = CONNECTION
        self.lost = ""
        self.is_orphaned = self.is_dropped = False
        self.successor = None
        self._is_open = True
        self._is_ending = False
        self._local_pid = 0
        self._changed = asyncio.Event()
        self._waiting = {}
        self._answer = answer

    def send(self, message: Any) -> None:
        for each in self._answer(message):
            self._waiting[message.request].put_nowait(each)


def replies(*bodies: tuple[int, Any]) -> Callable[[RankQuery], list[Message]]:
    return lambda query: [RankReply(query.request, rank, body) for rank, body in bodies]


def asked(link: Link, do: Callable[[Link], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        found = await do(link)
        assert link._waiting == {}, "nothing waits for answers any more"
        return found

    return asyncio.run(main())


def test_every_rank_answers() -> None:
    link = Answered(replies((1, StackText("b")), (0, StackText("a"))))
    found = asked(link, lambda k: k.query((0, 1), GetStack(), LONG))
    assert found == {0: StackText("a"), 1: StackText("b")}


def test_a_rank_that_is_silent_has_failed_and_the_others_count() -> None:
    found = asked(Answered(replies((1, StackText("b")))), lambda k: k.query((0, 1), GetStack(), BRIEF))
    assert found[1] == StackText("b")
    assert isinstance(found[0], QueryFailed)
    assert "no answer" in found[0].reason


def test_progress_is_reported_and_is_no_answer() -> None:
    steps: list[tuple[int, int]] = []
    link = Answered(replies((0, Progress(1, 2)), (0, Progress(2, 2)), (0, StackText("a"))))
    found = asked(link, lambda k: k.query((0,), GetStack(), LONG, lambda rank, step: steps.append((rank, step.done))))
    assert found == {0: StackText("a")}
    assert steps == [(0, 1), (0, 2)]


def test_the_controller_answers_for_itself() -> None:
    link = Answered(replies((CONTROLLER, StackText("c"))))
    assert asked(link, lambda k: k.query_one(CONTROLLER, GetStack(), StackText, LONG)) == StackText("c")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (QueryFailed("its process is gone"), "^rank 0: its process is gone"),
        (QueryFailed("rank 0 has no stack"), "^rank 0 has no stack"),
        (ClockReading(1.0), "unexpected answer"),
    ],
)
def test_one_answer_that_is_none(body: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(Answered(replies((0, body))), lambda k: k.query_one(0, GetStack(), StackText, LONG))


def test_answers_that_are_in_time_and_of_the_right_kind() -> None:
    link = Answered(replies((2, StackText("c")), (1, QueryFailed("no"))))
    assert asked(link, lambda k: k.query_within((0, 1, 2), GetStack(), StackText, BRIEF)) == {2: StackText("c")}


def test_nodes_answer() -> None:
    def answer(query: NodeQuery) -> list[Message]:
        return [NodeReply(query.request, 1, ClockReading(1.0))]

    found = asked(Answered(answer), lambda k: k.query_nodes((0, 1), ReadClock(), BRIEF))
    assert found[1] == ClockReading(1.0)
    assert isinstance(found[0], QueryFailed)


def test_a_query_that_is_refused() -> None:
    link = Answered(lambda query: [RequestRefused(query.request, "there is no rank 7")])
    with pytest.raises(UsageError, match="there is no rank 7"):
        asked(link, lambda k: k.query((7,), GetStack(), LONG))


def test_a_cluster_that_is_lost_meanwhile() -> None:
    def answer(_: RankQuery) -> list[Message]:
        link.lost = "its controller is gone"
        return [Stopped(link.lost)]

    link = Answered(answer)
    with pytest.raises(ConnectionLost, match="cluster c: its controller is gone"):
        asked(link, lambda k: k.query((0,), GetStack(), LONG))


class Port:
    """Keeps what is sent."""

    def __init__(self, *args: Any) -> None:
        self.connection_changed = args[-1]
        self.kinds: list[int] = []
        self.is_closed = False

    def send(self, frames: list[bytes]) -> None:
        assert not self.is_closed
        self.kinds.append(read_head(frames).kind)

    def close(self, linger: float) -> None:
        self.is_closed = True


def test_the_hello_is_sent_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the connection is there sooner: a controller answers a stream that it does not know with UNKNOWN."""
    monkeypatch.setattr(link_module, "DialledPort", Port)

    async def scenario() -> list[int]:
        link = Link(CONNECTION, lambda _: None)
        opening = asyncio.ensure_future(link.open("python"))
        asyncio.get_running_loop().call_soon(link._port.connection_changed, True)  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        kinds: list[int] = link._port.kinds  # type: ignore[attr-defined]
        return kinds

    assert asyncio.run(scenario())[:2] == [MESSAGE, AGAIN]


def test_what_was_sent_last_leaves_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "DialledPort", Port)

    async def scenario() -> list[int]:
        link = Link(CONNECTION, lambda _: None)
        link.send(Interrupt())
        link.close()
        kinds: list[int] = link._port.kinds  # type: ignore[attr-defined]
        return kinds

    assert asyncio.run(scenario()) == [MESSAGE]


OPENINGS = [
    ([], asyncio.CancelledError, "^$"),
    ([RequestRefused("", "another version")], ProtocolError, "another version"),
    ([Attached("l", "0" * 32, "1", 7), Stopped("stopped by a client")], ConnectionLost, "c: stopped by a client"),
]


@pytest.mark.parametrize(("messages", "error", "text"), OPENINGS)
def test_who_opens_a_link_gets_its_failure_and_nobody_else_is_told(
    messages: list[Message], error: type[BaseException], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that fails at news of a link that was never used would replace the error, even a cancellation."""
    monkeypatch.setattr(link_module, "DialledPort", Port)
    told: list[Message] = []

    async def scenario() -> None:
        link = Link(CONNECTION, told.append)
        opening = asyncio.ensure_future(link.open("python"))
        await asyncio.sleep(0)
        for each in messages:
            link._on_message(each)
        if not messages:
            opening.cancel()
        async with asyncio.timeout(LONG):
            await opening

    with pytest.raises(error, match=text):
        asyncio.run(scenario())
    assert told == []


def test_a_controller_that_hangs_is_told_from_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "DialledPort", Port)
    monkeypatch.setattr(link_module, "HELLO_TIMEOUT", BRIEF)

    async def scenario() -> None:
        await Link(CONNECTION, lambda _: None).open("python")

    with pytest.raises(ConnectionLost, match=r"no answer from 127\.0\.0\.1:1; its controller hangs, or cannot"):
        asyncio.run(scenario())


def orphaned(successor: Link | None) -> Answered:
    """A link whose controller has died, and the one that would replace it."""
    link = Answered(lambda _: [])
    link.lost, link.is_orphaned = "its controller is gone", True

    async def succeed() -> Link:
        if successor is None:
            raise link.loss()
        return successor

    link.successor = succeed
    return link


def test_what_is_asked_after_the_controllers_death_is_asked_on_the_link_that_replaces_it() -> None:
    link = orphaned(orphaned(Answered(replies((0, StackText("a"))))))
    assert asked(link, lambda k: k.query((0,), GetStack(), LONG)) == {0: StackText("a")}


def test_what_is_asked_after_its_death_fails_if_it_is_not_started_again() -> None:
    with pytest.raises(ConnectionLost, match="its controller is gone"):
        asked(orphaned(None), lambda k: k.query((0,), GetStack(), LONG))


def test_what_is_asked_between_the_death_and_its_notice_waits_for_the_notice() -> None:
    async def scenario() -> dict[int, Any]:
        link = orphaned(Answered(replies((0, StackText("a")))))
        link.lost, link.is_orphaned = "", False
        link._is_ending = True
        asking = asyncio.create_task(link.query((0,), GetStack(), LONG))
        await asyncio.sleep(0)
        assert not asking.done()
        link.lost, link.is_orphaned = "its controller is gone", True
        link._wake()
        return await asking

    assert asyncio.run(scenario()) == {0: StackText("a")}


def test_a_link_that_was_given_up_says_why_and_suggests_what_is_possible() -> None:
    link = orphaned(None)
    link.give_up("no luck", is_final=False)
    assert [r.action for r in link.remedies] == ["attach"]
    link.give_up("too late", is_final=True)
    assert [r.action for r in link.remedies] == ["start"]
    with pytest.raises(ConnectionLost, match="too late"):
        asked(link, lambda k: k.current())


@pytest.mark.parametrize("is_here", [True, False])
def test_a_connection_that_is_reset_says_nothing_unless_the_process_is_known_to_have_ended(
    is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_LAST_WORDS", 0.0)
    monkeypatch.setattr(link_module, "has_ended", lambda *_: True)

    async def scenario() -> Link:
        told = asyncio.Event()

        def answer(message: Message) -> list[Message]:
            assert isinstance(message, LivenessLost)
            told.set()
            return []

        link = Answered(answer)
        link._on_event = lambda _: told.set()
        link._liveness_ended(is_dead=False)
        link._local_pid = 7 if is_here else 0
        async with asyncio.timeout(LONG):
            await told.wait()
        return link

    link = asyncio.run(scenario())
    assert link.is_orphaned == bool(link.lost) == is_here
