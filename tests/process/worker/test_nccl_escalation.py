"""An abort as NCCL's, which empties torch's registries of groups in the middle of a cell, and the next generation.

Here it aborts gloo's groups, on which it has no other effect.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.ranks import Ranks

SETUP = """
from jdist.worker.compat import torch as compat
real = compat.abort_nccl
aborts = []
def has_nccl(): return bool(compat.world_name())
def abort_nccl():
    aborts.append(1)
    if slow: __import__('time').sleep(slow)
    real()
slow = 0
compat.has_nccl, compat.abort_nccl = has_nccl, abort_nccl
keep = 7
sub = dist.new_group([0, 1])
"""
CHECK = "t = torch.ones(1)\ndist.all_reduce(t)\ndist.all_reduce(t, group=sub)\n_ = (t.item(), keep, len(aborts))"
HANGS = [
    "dist.all_reduce(torch.ones(4))",
    "dist.all_reduce(torch.ones(4), group=sub)",
    "w = dist.all_reduce(torch.ones(4), async_op=True)\nw.wait()",
    "while True:\n    try: dist.all_reduce(torch.ones(4))\n    except Exception: pass",
    "try: dist.all_reduce(torch.ones(4))\nfinally: dist.barrier()",
    "while True: pass",
    "dist.new_group([0, 1])",
]


@pytest.fixture
def world() -> Iterator[Ranks]:
    ranks = Ranks(2)
    try:
        ranks.form()
        ranks.run(SETUP)
        yield ranks
    finally:
        ranks.close()


@pytest.mark.parametrize("code", HANGS)
def test_ranks_are_freed_and_the_next_world_is_whole(world: Ranks, code: str) -> None:
    world.run("slow = 0.5  # longer than the cell takes to end")
    world.ask(1, "run", code)
    world.comes_to(1, lambda at: at.doing.kind != "idle")
    world.interrupt()
    assert world.answer(1, "done")[0] != "value"
    world.form()
    assert world.run(CHECK) == [(4.0, 7, 1), (4.0, 7, 1)]
    assert {g.label for g in world.look(0).groups} == {"world", ""}


def test_a_generation_that_is_left_in_peace(world: Ranks) -> None:
    for aborts in (1, 2):
        world.form()
        assert world.run(CHECK) == [(4.0, 7, aborts), (4.0, 7, aborts)]


def test_a_group_made_by_its_members_alone_outlives_an_abort(world: Ranks) -> None:
    """While a call does not return, sockets are shut down at which NCCL may wait; gloo ends the process for its own."""
    world.run(
        "alone = dist.new_group([0, 1], use_local_synchronization=True)\ndist.all_reduce(torch.ones(1), group=alone)\n"
        "reduce = vars(dist.ProcessGroup)['allreduce']\n"
        "def busy(*_): __import__('hashlib').pbkdf2_hmac('sha256', b'a', b'b', 10**7)\n"
        "dist.ProcessGroup.allreduce = busy"
    )
    for rank in (0, 1):
        world.ask(rank, "run", "dist.all_reduce(torch.ones(1))")
    world.comes_to(1, lambda at: at.doing.kind == "collective")
    world.interrupt()
    for rank in (0, 1):
        assert world.answer(rank, "done")[0] != "value"
    world.run("dist.ProcessGroup.allreduce = reduce")
    world.form()
    assert world.run(CHECK) == [(4.0, 7, 1), (4.0, 7, 1)]
