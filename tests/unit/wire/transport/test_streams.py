"""Streams: whatever the connections lose, each message counts once and in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.core.errors import Overrun, ProtocolError
from jdist.wire.transport.streams import AGAIN, BACK, MESSAGE, NOTE, UNKNOWN, Frames, Head, Stream, read_head, unknown


class End:
    """One end with what it sent and took; ``out`` is on its way."""

    def __init__(self) -> None:
        self.stream = Stream(1)
        self.out: deque[Frames] = deque()
        self.taken: list[bytes] = []
        self.sent: list[bytes] = []

    def say(self) -> None:
        payload = f"{len(self.sent)}".encode()
        self.sent.append(payload)
        self.out.append(self.stream.message(payload))

    def hear(self, frames: Frames) -> None:
        payload, answers = self.stream.receive(read_head(frames), frames[1])
        if payload:
            self.taken.append(payload)
        self.out.extend(answers)


def pump(one: End, other: End) -> None:
    while one.out or other.out:
        if one.out:
            other.hear(one.out.popleft())
        if other.out:
            one.hear(other.out.popleft())


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["dialler says", "other says", "dialler's arrives", "other's arrives", "break"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(ACTIONS)
def test_every_message_counts_once_and_in_order_whatever_is_lost(actions: list[tuple[str, int]]) -> None:
    dialler, other = End(), End()
    for what, number in actions:
        match what:
            case "dialler says":
                dialler.say()
            case "other says":
                other.say()
            case "dialler's arrives" if dialler.out:
                other.hear(dialler.out.popleft())
            case "other's arrives" if other.out:
                dialler.hear(other.out.popleft())
            case "break":  # some of what is underway from the dialler survives in its own queue, as in zmq's
                for _ in range(min(number, len(dialler.out))):
                    dialler.out.popleft()
                other.out.clear()
                dialler.out.append(dialler.stream.note(kind=AGAIN))
    dialler.out.append(dialler.stream.note(kind=AGAIN))
    pump(dialler, other)
    dialler.out.append(dialler.stream.note(b"beat"))
    assert other.taken == dialler.sent
    other.hear(dialler.out.popleft())
    dialler.hear(other.out.pop())
    assert dialler.taken == other.sent
    assert dialler.stream.kept == 0
    assert other.stream.kept == 0, "what the other end has is not kept"


def test_what_is_not_lost_is_kept_until_a_beat_or_a_pile_confirms_it() -> None:
    one, other = End(), End()
    for _ in range(63):
        one.say()
    pump(one, other)
    assert one.stream.kept == 63
    one.say()
    pump(one, other)
    assert one.stream.kept == 0
    one.out.append(one.stream.message(b"x" * (1 << 20)))
    pump(one, other)
    assert one.stream.kept == 0, "large messages are confirmed at once"
    one.say()
    one.out.append(one.stream.note(b"beat"))
    pump(one, other)
    assert one.stream.kept == 0


def test_a_message_after_a_gap_does_not_count_and_nor_does_one_that_came_before() -> None:
    one, other = End(), End()
    one.say()
    one.say()
    first, second = one.out
    other.hear(second)
    assert other.taken == []
    other.hear(first)
    other.hear(first)
    other.hear(second)
    assert other.taken == [b"0", b"1"]


def test_heads_are_read_back() -> None:
    stream = Stream(7)
    assert read_head(stream.message(b"x")) == (MESSAGE, 7, 1, 0)
    assert read_head(stream.note(kind=BACK)) == (BACK, 7, 0, 0)
    assert read_head(stream.note()).kind == NOTE
    assert read_head(unknown(9)) == (UNKNOWN, 9, 0, 0)


@pytest.mark.parametrize("frames", [[], [b"x"], [b"short", b"x"], [b"x" * 25, b"", b""]])
def test_a_message_without_a_head_is_an_error(frames: Frames) -> None:
    with pytest.raises(ProtocolError, match="without the head"):
        read_head(frames)


def test_a_peer_that_takes_nothing_is_given_up() -> None:
    stream = Stream(1, limit=100)
    for _ in range(10):
        stream.message(b"x" * 10)
    with pytest.raises(Overrun, match="not acknowledged"):
        stream.message(b"x")


def test_a_peer_that_asks_again_and_again_is_given_up() -> None:
    stream = Stream(1, limit=100)
    stream.message(b"x" * 90)
    again = Head(AGAIN, 1, 0, 0)
    for _ in range(4):
        assert len(stream.receive(again, b"")[1]) == 2
    with pytest.raises(Overrun, match="MiB were resent"):
        stream.receive(again, b"")


def test_a_peer_that_takes_what_it_asked_for_may_ask_for_ever() -> None:
    stream = Stream(1, limit=100)
    for n in range(1, 50):
        stream.message(b"x" * 90)
        stream.receive(Head(AGAIN, 1, 0, n - 1), b"")
        stream.receive(Head(NOTE, 1, 0, n), b"")
    assert stream.kept == 0


def test_what_was_never_sent_cannot_have_been_taken() -> None:
    stream = Stream(1)
    stream.message(b"x")
    with pytest.raises(ProtocolError, match="acknowledges message 2 of 1"):
        stream.receive(Head(NOTE, 1, 0, 2), b"")


@pytest.mark.parametrize("kind", [AGAIN, BACK, UNKNOWN])
def test_only_messages_and_notes_have_something_to_say(kind: int) -> None:
    assert Stream(1).receive(Head(kind, 1, 0, 0), b"payload")[0] == b""


def test_a_replayed_message_counts_once() -> None:
    stream = Stream(1)
    assert stream.receive(Head(MESSAGE, 1, 1, 0), b"once")[0] == b"once"
    assert stream.receive(Head(MESSAGE, 1, 1, 0), b"once")[0] == b""
