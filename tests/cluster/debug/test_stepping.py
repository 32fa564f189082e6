"""Steps of paused ranks: where they stop, alone and together, and what they are about to call."""

from __future__ import annotations

from typing import Any

import pytest

import jdist
from support.pauses import finished, paused, places
from support.waits import eventually

TRAIN = """\
def loss_of(x):
    y = x * 2
    return y

def train(n):
    total = torch.zeros(1)
    for i in range(n):
        if i == 1: breakpoint()
        loss = loss_of(total + rank)
        dist.all_reduce(loss)
        total += loss
    return total.item()

train(3)
"""


def steps(cluster: jdist.Cluster, run: jdist.CellRun, *orders: Any, **options: Any) -> list[str]:
    """Where all ranks are after each step."""
    seen = []
    for order in orders:
        how, _, line = order.partition(" ")
        cluster.resume(how, line=int(line or 0), **options)
        assert eventually(lambda: set(run.paused) == set(run.ranks) or run.is_done)
        (place,) = set(places(run).values()) or {"done"}
        seen.append(place)
    return seen


def test_steps_stop_where_they_should_on_all_ranks(cluster: jdist.Cluster) -> None:
    alone = cluster.run(TRAIN.replace("breakpoint()", "pass"), timeout=60).values
    run = paused(cluster, TRAIN, range(4))
    assert steps(cluster, run, "step", "step", "return") == ["train:9", "loss_of:2", "loss_of:3"]
    assert {(at.reason, at.returns) for at in run.paused.values()} == {("step", "tensor [1] float32")}
    assert cluster.run("__return__ is y", timeout=60).values == dict.fromkeys(range(4), True)
    expected = ["train:10", "train:11", "train:7", "train:8", "train:11"]
    assert steps(cluster, run, "next", "next", "next", "next", "until 11") == expected
    assert {at.returns for at in run.paused.values()} == {""}
    assert cluster.run("'__return__' in dir()", timeout=60).values == dict.fromkeys(range(4), False)
    assert steps(cluster, run, "return") == ["train:12"]
    assert run.paused[0].returns == str(alone[0])
    assert steps(cluster, run, "next") == ["done"]  # the call is on the cell's last line
    assert run.values == alone


def test_a_return_from_the_cell_itself_is_the_end_of_the_run(cluster: jdist.Cluster) -> None:
    run = paused(cluster, "def f():\n    breakpoint()\nf()", range(4))
    cluster.up()
    assert {s.frames[s.chosen].function for s in cluster.where().values()} == {"<cell>"}
    assert steps(cluster, run, "return") == ["done"]
    run.check()


def test_the_next_call_shows_what_each_rank_is_about_to_call(cluster: jdist.Cluster) -> None:
    code = """\
breakpoint()
x = torch.full((rank + 1 if rank == 2 else 4,), 1.0)
if rank < 2:
    dist.all_reduce(x)
elif rank == 2:
    dist.broadcast(x, src=2)
else:
    pass
dist.barrier()
if rank == 0: dist.send(torch.ones(2), 1, tag=5)
if rank == 1: dist.recv(torch.ones(2), 0, tag=5)
rank
"""
    run = paused(cluster, code, range(4))
    cluster.resume("next_call")
    assert eventually(lambda: len([at for at in run.paused.values() if at.about_to]) == 4)
    calls = {r: at.about_to for r, at in run.paused.items() if at.about_to is not None}
    assert {r: (c.op, c.group, c.line) for r, c in calls.items()} == {
        0: ("all_reduce", calls[0].group, 4),
        1: ("all_reduce", calls[0].group, 4),
        2: ("broadcast", calls[0].group, 6),
        3: ("barrier", calls[0].group, 9),
    }
    assert len({c.number for c in calls.values()}) == 1
    assert calls[0].number > 0
    assert calls[2].detail == "src=2"
    assert calls[2].shapes == ((3,),)
    assert places(run) == {0: "<cell>:4", 1: "<cell>:4", 2: "<cell>:6", 3: "<cell>:9"}
    run.cancel()
    assert run.wait(60)


def test_each_call_of_a_loop_is_stopped_at_and_its_tensor_can_still_be_changed(cluster: jdist.Cluster) -> None:
    code = "breakpoint()\nfor i in range(3):\n    t = torch.ones(2) * i\n    dist.all_reduce(t)\nt.tolist()"
    run = paused(cluster, code, range(4))
    for i in range(3):
        (at,) = set(steps(cluster, run, "next_call"))
        assert at == "<cell>:4"
        assert cluster.run("i").values == dict.fromkeys(range(4), i)
        assert {c.about_to.op for c in run.paused.values() if c.about_to} == {"all_reduce"}
    cluster.run("t.add_(1)", ranks=3)
    assert finished(cluster, run) == {r: [9.0, 9.0] for r in range(4)}
    assert run.verdict is None


def test_backward_and_functional_collectives_are_calls(cluster: jdist.Cluster) -> None:
    code = """\
import torch.distributed._functional_collectives as funcol
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
breakpoint()
loss = model(torch.ones(1, 2)).sum()
loss.backward()
y = funcol.all_reduce(torch.ones(1), 'sum', dist.group.WORLD)
y.tolist()
"""
    run = paused(cluster, code, range(4))
    ops = []
    for _ in range(2):
        steps(cluster, run, "next_call")
        ops.append({at.about_to.op for at in run.paused.values() if at.about_to})
    assert ops == [{"backward"}, {"all_reduce"}]
    assert finished(cluster, run) == {r: [4.0] for r in range(4)}
    cluster.run("del model, loss, y")


@pytest.mark.parametrize("how", ["step", "next", "return", "until", "next_call"])
def test_a_step_that_finds_no_stop_ends_with_the_run(cluster: jdist.Cluster, how: Any) -> None:
    run = paused(cluster, "import sys\n[breakpoint(), rank][1]", range(4))
    cluster.resume(how, line=9)
    assert run.wait(30)
    assert run.values == {r: r for r in range(4)}
    assert cluster.run("sys.gettrace() is None").values == dict.fromkeys(range(4), True)


def test_an_interrupt_ends_a_step(cluster: jdist.Cluster) -> None:
    code = """\
import sys
def f():
    try:
        breakpoint()
        while True:
            pass
    finally:
        traced.append(sys.gettrace())
traced = []
f()
"""
    run = paused(cluster, code, range(4))
    cluster.resume("until", line=7, timeout=0.2)
    run.cancel()
    assert run.wait(60)
    assert not run.paused
    assert {o.error.ename for o in run.outcomes.values() if o.error} == {"KeyboardInterrupt"}
    assert cluster.run("traced").values == {r: [None] for r in range(4)}


def test_a_step_is_taken_back_by_going_on(cluster: jdist.Cluster) -> None:
    code = """\
import time
def f():
    breakpoint()
    while not go:
        time.sleep(0.01)
    return rank
go = False
f()
"""
    for how in ("until", "next_call"):
        run = paused(cluster, code, range(4))
        cluster.resume(how, line=6, timeout=0.1)
        cluster.resume(timeout=0.1)
        cluster.push(go=True)
        assert run.wait(30)
        assert run.values == {r: r for r in range(4)}


def test_one_rank_steps_while_the_others_stay(cluster: jdist.Cluster) -> None:
    run = paused(cluster, "breakpoint()\nx = 1\ny = 2\nz = 3", range(4))
    cluster.resume("next", ranks=1)
    assert eventually(lambda: places(run).get(1) == "<cell>:2")
    cluster.resume("next", ranks=1)
    assert eventually(lambda: places(run).get(1) == "<cell>:3")
    assert places(run) == {0: "<cell>:1", 1: "<cell>:3", 2: "<cell>:1", 3: "<cell>:1"}
    assert cluster.run("'x' in globals(), 'y' in globals()", ranks=1).values == {1: (True, False)}
    finished(cluster, run)
