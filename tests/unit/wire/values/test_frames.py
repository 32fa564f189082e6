"""Frames: bytes from outside are a message of their direction or a ProtocolError, never anything else."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdist.core.errors import ProtocolError
from jdist.core.messages.base import Message
from jdist.core.messages.membership import Heartbeat, WorkerUp
from jdist.core.messages.protocol import AgentMessage, ClientMessage, ToAgent, ToClient, ToWorker, WorkerMessage
from jdist.core.messages.runs import CellSpec, RankDone, RunCell
from jdist.wire.values import frames
from jdist.wire.values.frames import Unpacker, join, pack, split

UNPACKERS = [Unpacker[Any](u) for u in (ClientMessage, ToClient, AgentMessage, ToAgent, WorkerMessage, ToWorker)]
TAGS = ["RunCell", "Output", "Done", "Form", "Ask", "Beat", "Answer", "AgentHello", "nothing"]

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner),
    max_leaves=8,
)


def is_message_or_refused(data: bytes) -> None:
    for unpack in UNPACKERS:
        try:
            message = unpack(data)
        except ProtocolError:
            continue
        assert isinstance(message, Message)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    is_message_or_refused(data)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(TAGS), st.dictionaries(st.sampled_from(["run", "rank", "ranks", "code", "request"]), plain))
def test_any_fields_under_a_known_tag(tag: str, fields: dict[str, Any]) -> None:
    is_message_or_refused(msgspec.msgpack.encode({"type": tag, **fields}))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_message_with_some_bytes_changed(data: st.DataObject) -> None:
    packed = bytearray(pack(RunCell("r1", CellSpec("x = 1", timeout=5.0), (0, 1, 2))))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    is_message_or_refused(bytes(packed))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\xc1",
        b"\x80",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\x81\xa4type\xa4Beat\x00",
        b"\x81\xa4type\xa2\xff\xfe",
        b"\x82\xa4type\xa8WorkerUp\xa4rank\xa1x",
        b"\x81\xa4type\x05",
        pack(Heartbeat())[:-1],
        pack(RankDone(1, 0, "value")) + b"x",
        b'{"type": "Beat"}',
    ],
)
def test_known_nonsense_is_refused_in_every_direction(data: bytes) -> None:
    for unpack in UNPACKERS:
        with pytest.raises(ProtocolError):
            unpack(data)


def test_a_message_over_the_limit_is_refused_before_it_is_read() -> None:
    data = pack(RunCell("r", CellSpec("x"), (0,))) + bytes(frames.MAX_MESSAGE)
    with pytest.raises(ProtocolError, match=f"{len(data)} bytes; the limit is {frames.MAX_MESSAGE}"):
        Unpacker[Any](ClientMessage)(data)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ProtocolError, match="incarnation"):
        Unpacker[Any](AgentMessage)(msgspec.msgpack.encode({"type": "WorkerUp", "worker": 1, "pid": 2}))


def test_a_single_type_serves_as_a_union_of_one() -> None:
    assert Unpacker[Any](WorkerUp)(pack(WorkerUp(1, 2, 3))) == WorkerUp(1, 2, 3)
    with pytest.raises(ProtocolError):
        Unpacker[Any](WorkerUp)(pack(Heartbeat()))


def test_messages_travel_together_and_are_split_again() -> None:
    messages = [pack(WorkerUp(n, 1, 0)) for n in range(70_000)]
    for several in ([], messages[:2], messages[:15], messages[:16], messages):
        assert split(join(several)) == several
    assert join(messages[:1]) == messages[0]
    assert split(messages[0]) == messages[:1]


def test_of_a_payload_only_what_is_no_message_is_dropped() -> None:
    unpack = Unpacker[Any](AgentMessage)
    here = [WorkerUp(1, 1, 0), WorkerUp(2, 1, 0)]
    one, other = map(pack, here)
    assert unpack.each(join([one, b"\xc0", join([one, other]), other])) == here
    assert unpack.each(b"") == []


@given(st.binary(max_size=40))
def test_any_payload_is_split_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert Unpacker[Any](AgentMessage).each(data) is not None
