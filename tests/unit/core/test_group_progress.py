"""The ranks of a group are sent as ranges: what one rank reports of its world takes no more room in a larger one."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from jdist.core.messages.observation import GroupProgress


@given(st.sets(st.integers(0, 10_000), max_size=50))
def test_the_ranks_are_those_that_were_given(ranks: set[int]) -> None:
    sent = msgspec.msgpack.encode(GroupProgress.of("0", tuple(ranks), 3, 2, "world"))
    assert msgspec.msgpack.decode(sent, type=GroupProgress).ranks == tuple(sorted(ranks))


def test_a_world_takes_as_much_room_as_a_pair() -> None:
    pair, world = (GroupProgress.of("0", tuple(range(n)), 3, 2, "world") for n in (2, 4096))
    assert (pair.members, world.members) == ("0-1", "0-4095")
