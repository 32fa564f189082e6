"""What a rank is doing where its collectives are NCCL's: they return at once, and the rank waits for its GPU later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jdist.core.messages.observation import Observation
from support.gpus.nccl import source
from support.ranks import Ranks

WAITS = {
    "in a library": "torch.futures.Future().wait()",
    "by polling": "import hashlib\nhashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)",
}


@pytest.fixture
def world() -> Iterator[Ranks]:
    ranks = Ranks(1)
    try:
        ranks.form()
        ranks.run(source() + "nccl.queue(is_done=True)")
        yield ranks
    finally:
        ranks.close()


def counts(look: Observation) -> dict[str, tuple[int, int]]:
    return {g.label: (g.begun, g.ended) for g in look.groups}


@pytest.mark.parametrize("wait", WAITS)
def test_a_rank_that_waits_for_its_gpu_is_in_the_oldest_collective_there(world: Ranks, wait: str) -> None:
    world.ask(0, "run", f"nccl.queue()\nnccl.queue('all_gather')\n{WAITS[wait]}")
    look = world.comes_to(0, lambda at: at.doing.kind == "collective")
    (call,) = look.doing.calls
    (label,) = (g.label for g in look.groups if g.name == call.group)
    assert (call.op, call.number, call.shapes, label) == ("all_reduce", 2, ((4,),), "world (nccl)")
    assert look.doing.line == 3 + (wait == "by polling")
    assert counts(look)["world (nccl)"] == (3, 1)
    assert "world" in counts(look), "gloo's collectives of the group are counted by themselves"


@pytest.mark.parametrize(
    "code", ["while True: sum(range(100))", "import time; time.sleep(100)", "input_ = open(0).read()"]
)
def test_a_rank_that_goes_on_meanwhile_does_not_wait(world: Ranks, code: str) -> None:
    world.ask(0, "run", f"nccl.queue()\nr, w = __import__('os').pipe()\n{code.replace('open(0)', 'open(r)')}")
    world.comes_to(0, lambda at: at.doing.line == 3)
    first = world.look(0)
    world.comes_to(0, lambda at: at.doing.seconds > 1.0)
    assert world.look(0).doing.kind == "python", first


def test_a_rank_that_waits_for_a_communicator_is_in_the_call_that_makes_it(world: Ranks) -> None:
    """NCCL makes it at a group's first collective, polls for the other members, and has no entry before."""
    world.run("dist.barrier()\ndist.ProcessGroup.allreduce = lambda *_: __import__('hashlib').pbkdf2_hmac(*slow)")
    world.ask(0, "run", "slow = 'sha256', b'a', b'b', 10**9\ndist.all_reduce(torch.ones(4))")
    look = world.comes_to(0, lambda at: at.doing.kind == "collective" and bool(at.doing.calls[0].number))
    (call,) = look.doing.calls
    assert (call.op, call.number, call.line) == ("all_reduce", counts(look)["world"][1] + 1, 2)
    assert counts(look)["world"][0] == call.number, "it has come, as the others see it"


def test_a_rank_whose_collectives_have_finished_does_not_wait(world: Ranks) -> None:
    world.ask(0, "run", f"nccl.queue()\nnccl.finish()\n{WAITS['in a library']}")
    look = world.comes_to(0, lambda at: at.doing.line == 3 and at.doing.seconds > 1.0)
    assert look.doing.kind == "python"
    assert counts(look)["world (nccl)"] == (2, 2)


def test_sends_are_no_collectives(world: Ranks) -> None:
    world.run("for _ in range(5): nccl.queue('send 0->1', is_done=True, is_p2p=True)")
    assert counts(world.look(0))["world (nccl)"] == (1, 1)
    world.run("nccl.queue(is_done=True)")
    assert counts(world.look(0))["world (nccl)"] == (2, 2)


def test_cuda_is_asked_only_when_something_has_happened(world: Ranks) -> None:
    before = world.side(0, "O.prepare(); _ = ns['nccl'].dumps")
    for _ in range(5):
        world.look(0, recent=8)
    assert world.side(0, "_ = ns['nccl'].dumps") == before
    world.run("nccl.queue(is_done=True)")
    world.look(0)
    assert world.side(0, "_ = ns['nccl'].dumps") == before + 1


def test_a_lost_cuda_context_leaves_what_was_known(world: Ranks) -> None:
    known = counts(world.look(0))
    world.run(
        "nccl.queue()\ndump = nccl.dump\n"
        "def lost(with_entries, *rest):\n"
        "    if with_entries: raise RuntimeError('CUDA error: device-side assert triggered')\n"
        "    return dump(with_entries, *rest)\n"
        "import torch._C._distributed_c10d as bindings\nbindings._dump_nccl_trace = lost"
    )
    assert counts(world.look(0, recent=4)) == known


def test_the_trace_has_calls_of_the_gpu(world: Ranks) -> None:
    world.run("nccl.queue(is_done=True)\nnccl.queue()")
    calls = [c for c in world.look(0, recent=8).recent if c.group.endswith("(nccl)")]
    assert [(c.number, c.is_done) for c in calls] == [(1, True), (2, True), (3, False)]
