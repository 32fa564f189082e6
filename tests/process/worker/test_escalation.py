"""Every way for a cell to be stuck is ended within a second, with the namespace kept and the next world right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.ranks import SOON, Ranks

CHECK = "t = torch.tensor([rank + 1.0])\ndist.all_reduce(t)\n_ = (t.item(), keep)"
SETUP = """
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel as DDP
keep = 7
sub = dist.new_group([0, 1, 2])
ddp = DDP(torch.nn.Linear(4, 4))
_ = dist.get_rank(sub)
"""

IN_COLLECTIVE = {
    "all_reduce": "dist.all_reduce(torch.ones(4))",
    "all_reduce, 16 MB": "dist.all_reduce(torch.ones(4_000_000))",
    "broadcast": "dist.broadcast(torch.ones(4), 0)",
    "barrier": "dist.barrier()",
    "monitored_barrier": "dist.monitored_barrier(timeout=timedelta(hours=1))",
    "all_gather_object": "dist.all_gather_object([None] * 3, {'a': 1})",
    "recv": "dist.recv(torch.ones(4), 0)",
    "send, 64 MB": "dist.send(torch.ones(16_000_000), 0)",
    "recv from any": "dist.recv(torch.ones(4))",
    "irecv().wait()": "dist.irecv(torch.ones(4), 0).wait()",
    "irecv from any, wait": "dist.irecv(torch.ones(4)).wait()",
    "isend().wait()": "dist.isend(torch.ones(16_000_000), 0).wait()",
    "async work.wait()": "w = dist.all_reduce(torch.ones(4), async_op=True)\nw.wait()",
    "subgroup": "dist.all_reduce(torch.ones(4), group=sub)",
    "functional collective": (
        "import torch.distributed._functional_collectives as fc\nfc.all_reduce(torch.ones(4), 'sum', sub) + 1"
    ),
    "DDP backward": "ddp(torch.ones(2, 4)).sum().backward()",
    "new_group half entered": "dist.new_group([0, 1, 2])",
    "store.wait": "from torch.distributed import distributed_c10d as c\nc._get_default_store().wait(['never'])",
    "swallows Exception": "while True:\n    try: dist.all_reduce(torch.ones(4))\n    except Exception: pass",
    "in a thread": (
        "import threading\nth = threading.Thread(target=dist.all_reduce, args=(torch.ones(4),))\nth.start()\nth.join()"
    ),
}
IN_PYTHON = {
    "while True: pass": "while True: pass",
    "sleep": "import time\ntime.sleep(1000)",
    "lock": "import threading\nthreading.Lock().acquire()\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "ends with KeyboardInterrupt swallowed once": (
        "import time\ntry:\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    time.sleep(1000)"
    ),
}


@pytest.fixture(scope="module")
def world() -> Iterator[Ranks]:
    ranks = Ranks(3)
    try:
        ranks.form()
        ranks.run(SETUP)
        yield ranks
    finally:
        ranks.close()


def _is_stuck(world: Ranks, rank: int) -> None:
    """The main thread is in the cell and moves no further."""
    world.until(rank, "at.line is not None or at.op is not None or at.in_store_wait")
    assert not _has_ended(world, rank, 0.15)


def _has_ended(world: Ranks, rank: int, within: float) -> bool:
    try:
        world.answer(rank, "done", within)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("name", IN_COLLECTIVE)
def test_collective_that_rank_0_never_enters_is_ended(world: Ranks, name: str) -> None:
    for rank in (1, 2):
        world.ask(rank, "run", IN_COLLECTIVE[name])
    for rank in (1, 2):
        _is_stuck(world, rank)
    assert world.interrupt() < SOON
    for rank in (1, 2):
        kind, text = world.answer(rank, "done")
        assert kind in {"KeyboardInterrupt", "RuntimeError", "DistNetworkError", "DistBackendError"}, text
    world.form()
    assert world.run(CHECK) == [(6.0, 7)] * 3
    assert world.run("t = torch.ones(1)\ndist.all_reduce(t, group=sub)\n_ = t.item()") == [3.0] * 3


@pytest.mark.parametrize("name", IN_PYTHON)
def test_python_is_ended_while_peers_wait_for_it(world: Ranks, name: str) -> None:
    world.ask(0, "run", IN_PYTHON[name])
    for rank in (1, 2):
        world.ask(rank, "run", "dist.all_reduce(torch.ones(4))")
    for rank in range(3):
        _is_stuck(world, rank)
    assert world.interrupt() < SOON
    assert world.answer(0, "done")[0] == "KeyboardInterrupt"
    for rank in (1, 2):  # RuntimeError where another rank's cut was faster than the own signal
        assert world.answer(rank, "done")[0] in {"KeyboardInterrupt", "RuntimeError"}
    world.form()
    assert world.run(CHECK) == [(6.0, 7)] * 3


def test_without_listeners_the_generation_stays(world: Ranks) -> None:
    world.ask(1, "run", "while True: pass")
    _is_stuck(world, 1)
    listeners, world.listeners = world.listeners, set()
    try:
        assert world.interrupt() < SOON
    finally:
        world.listeners = listeners
    assert world.answer(1, "done")[0] == "KeyboardInterrupt"
    assert world.run(CHECK) == [(6.0, 7)] * 3


def test_a_rank_that_cannot_be_freed_is_reported_by_the_deadline(world: Ranks) -> None:
    world.side(1, "import threading\nns['gate'] = threading.Event()")
    stubborn = (
        "while not gate.is_set():\n    try:\n        while not gate.wait(1): pass\n    except BaseException: pass"
    )
    world.ask(1, "run", stubborn)
    _is_stuck(world, 1)
    world.ask(1, "halt", (set(), 0.5))
    came_back, seconds = world.answer(1, "halt")
    assert not came_back
    assert 0.4 < seconds < SOON
    world.side(1, "ns['gate'].set()")
    world.answer(1, "done")
