"""Messages: every one of every direction arrives as it was sent, and only in its own direction."""

from __future__ import annotations

import importlib
import pkgutil
import types
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jdist.core.messages
from jdist.core.errors import ProtocolError
from jdist.core.messages.base import Message, PayloadWire, ValueMissing
from jdist.core.messages.membership import Enrol, FormWorld, Handover, Heartbeat, ToUnauthenticated
from jdist.core.messages.protocol import (
    AgentMessage,
    ClientMessage,
    NodeOp,
    NodeReplyBody,
    RankOp,
    RankQuery,
    RankReply,
    RankReplyBody,
    ToAgent,
    ToClient,
    ToWorker,
    WorkerMessage,
)
from jdist.core.messages.runs import CellSpec, MetricPoints, Output, OutputItem, RankDone, RunCell
from jdist.wire.values.frames import Unpacker, pack

MODULES = [
    importlib.import_module(f"jdist.core.messages.{m.name}") for m in pkgutil.iter_modules(jdist.core.messages.__path__)
]
DIRECTIONS = {
    "ClientMessage": ClientMessage,
    "ToClient": ToClient,
    "AgentMessage": AgentMessage,
    "ToAgent": ToAgent,
    "WorkerMessage": WorkerMessage,
    "ToWorker": ToWorker,
    "Handover": Handover,
    "Enrol": Enrol,
    "ToNewcomer": ToUnauthenticated,
}
MEMBERS = [(name, member) for name, union in DIRECTIONS.items() for member in get_args(union) or (union,)]

hosts = st.text(max_size=8)
counts = st.integers(-(2**53), 2**53)
leaves: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: counts,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    Any: st.one_of(st.text(max_size=5), counts),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a message's field type."""
    if kind in leaves:
        return leaves[kind]
    args = get_args(kind)
    if hasattr(kind, "__metadata__"):  # it is Annotated
        return values(args[0])
    origin = getattr(kind, "__origin__", None)
    if isinstance(kind, types.UnionType) or str(origin) == "typing.Union":
        return st.one_of([values(a) for a in args])
    if str(origin) == "typing.Literal":
        return st.sampled_from(args)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values(a) for a in args])
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return structs(kind)
    raise TypeError(f"no strategy for {kind}")


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{f.name: values(f.type) for f in msgspec.structs.fields(kind)})


@pytest.mark.parametrize(("direction", "member"), MEMBERS, ids=[f"{d}-{m.__name__}" for d, m in MEMBERS])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(direction: str, member: type[Message], data: st.DataObject) -> None:
    message = data.draw(structs(member))
    arrived = Unpacker[Any](DIRECTIONS[direction])(pack(message))
    assert arrived == message
    assert type(arrived) is member


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        structs(RunCell), structs(Output), structs(RankDone), structs(FormWorld), structs(RankQuery), structs(RankReply)
    )
)
def test_the_large_ones_with_all_their_fields(message: Message) -> None:
    union = next(u for u in DIRECTIONS.values() if type(message) in get_args(u))
    assert Unpacker[Any](union)(pack(message)) == message


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_message_of_another_direction_is_refused(direction: str) -> None:
    union = DIRECTIONS[direction]
    foreign = {m for _, m in MEMBERS} - set(get_args(union) or (union,))
    assert foreign
    for member in foreign:
        with pytest.raises(ProtocolError):
            Unpacker[Any](union)(msgspec.msgpack.encode({"type": member.__name__}))


def test_every_message_has_a_direction_or_a_place_in_another() -> None:
    inside = {m for u in (RankOp, RankReplyBody, NodeOp, NodeReplyBody, OutputItem) for m in get_args(u)}
    pieces = {Message, PayloadWire, ValueMissing, MetricPoints}
    every = {c for module in MODULES for c in vars(module).values() if isinstance(c, type) and issubclass(c, Message)}
    assert every - inside - pieces == {m for _, m in MEMBERS} - inside


def test_tags_are_the_names_and_no_two_are_alike() -> None:
    tags = [m.__struct_config__.tag for m in {m for _, m in MEMBERS}]
    assert len(set(tags)) == len(tags)


def test_messages_cannot_be_changed() -> None:
    message = RunCell("r", CellSpec("x"), (0,))
    with pytest.raises(AttributeError):
        message.code = "y"  # type: ignore[misc]


def test_a_field_that_a_later_version_adds_is_no_error() -> None:
    later = msgspec.msgpack.encode({"type": "Heartbeat", "sent_at": 5.0})
    assert Unpacker[Any](AgentMessage)(later) == Heartbeat()
