"""The listener waker: a rank that waits for a peer which published its address and died before it connected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jdist.core.errors import LaunchError
from support.ranks import Ranks

ALL_REDUCE = "t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()"
DYING = """
import os, struct, torch.distributed as dist
from jdist.worker.groups import formation
from jdist.worker.groups.gloo import own_listeners

class Dying(dist.Store):
    '''Of gloo's two, the rank with the lower port waits: this one tells the highest there is, and is gone.'''

    def __init__(self, store):
        super().__init__()
        self.store = store
        for name in ('get', 'wait', 'check', 'add', 'multi_get'):
            setattr(self, name, getattr(store, name))

    def set(self, key, value):
        value = value if isinstance(value, bytes) else value.encode()
        ports = [port for _, port in own_listeners() if struct.pack('!H', port) in value]
        for port in ports:
            value = value.replace(struct.pack('!H', port), b'\\xff\\xff')
        self.store.set(key, value)
        if ports and 'cpu' in key:
            os._exit(9)
"""
IN_A_FORMING = """
stores = formation.RankFormation._stores
formation.RankFormation._stores = lambda self: tuple(map(Dying, stores(self)))
"""
IN_A_CELL = """
from torch.distributed import distributed_c10d as c10d
prefix, store = c10d._world.pg_map[dist.group.WORLD]
c10d._world.pg_map[dist.group.WORLD] = (prefix, Dying(store))
"""


@pytest.fixture
def pair() -> Iterator[Ranks]:
    ranks = Ranks(2)
    try:
        yield ranks
    finally:
        ranks.close()


def test_a_forming_whose_peer_dies_while_it_connects_ends_for_the_next_one(pair: Ranks) -> None:
    pair.run({0: "kept = 7"})
    pair.side(1, DYING + IN_A_FORMING)
    pair.generation = 1
    for rank in (0, 1):
        pair.ask(rank, "form", pair.spec(timeout=60))
    pair.processes[1].join(60)
    assert pair.processes[1].exitcode == 9
    with pytest.raises(TimeoutError):
        pair.answer(0, "form", 1.0)  # torch would wait for it for a day

    pair.kill(1)
    pair.start(1)
    pair.generation = 2
    for rank in (0, 1):
        pair.ask(rank, "form", pair.spec())
    with pytest.raises(LaunchError, match="rank 0 could not join the world"):
        pair.answer(0, "form")
    assert [pair.answer(rank, "form").generation for rank in (0, 1)] == [2, 2]
    assert pair.run(ALL_REDUCE) == [2.0, 2.0]
    assert pair.run({0: "_ = kept"}) == [7]


def test_a_group_whose_peer_dies_while_a_cell_makes_it_is_left(pair: Ranks) -> None:
    pair.form()
    pair.run({0: "kept = 7"})
    pair.side(1, DYING + IN_A_CELL)
    for rank in (0, 1):
        pair.ask(rank, "run", "dist.new_group([0, 1])")
    pair.processes[1].join(60)
    assert pair.processes[1].exitcode == 9
    pair.until(0, "at.op == 'new_group'")

    pair.ask(0, "halt", (pair.listeners, 30.0))
    came_back, _ = pair.answer(0, "halt")
    assert came_back
    assert pair.answer(0, "done")[0] != "value"
    pair.kill(1)
    pair.start(1)
    pair.form()
    assert pair.run(ALL_REDUCE) == [2.0, 2.0]
    assert pair.run({0: "_ = kept"}) == [7]
