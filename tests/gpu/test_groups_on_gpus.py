"""Groups whose tensors are on GPUs: by NCCL with a rank on each, and by gloo with several ranks on one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

import jdist
from support.waits import eventually

JUDGED = 30.0
"""Seconds until a test gives up waiting for a verdict."""
KEEP = "kept = torch.arange(6.0, device=gpu) + rank"
KEPT = "kept.sum().item() - 6 * rank"
DDP = """
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to(gpu))
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    sgd.zero_grad()
    net(torch.full((3, 4), rank + 1.0, device=gpu)).square().mean().backward()
    sgd.step()
    return net.module.weight.double().sum().item()
"""


def test_collectives_of_tensors_on_each_rank_s_own_gpu(world: jdist.Cluster) -> None:
    size = len(world.run("rank").values)
    assert set(world.run("str(gpu)").values.values()) in ({f"cuda:{r}" for r in range(size)}, {"cpu"})
    gathered = world.run(
        "parts = [torch.empty(2, device=gpu) for _ in range(world_size)]\n"
        "dist.all_gather(parts, torch.full((2,), float(rank), device=gpu))\n[p[0].item() for p in parts]"
    )
    assert gathered.values == {key: [float(r) for r in range(size)] for key in range(size)}
    assert world.run("t = torch.tensor([rank]); dist.all_reduce(t); t.item()").values == dict.fromkeys(
        range(size), size * (size - 1) // 2
    ), "tensors on the CPU go by gloo"


def test_gloo_takes_tensors_on_one_gpu_from_two_ranks(pair: jdist.Cluster) -> None:
    assert pair.run("t = torch.full((3,), rank + 1.0, device=gpu); dist.all_reduce(t); t.tolist()").values == {
        0: [3.0] * 3,
        1: [3.0] * 3,
    }
    sent = pair.run("t = torch.full((2,), float(rank), device=gpu); dist.broadcast(t, 1); t.sum().item()")
    assert sent.values == {0: 2.0, 1: 2.0}


def test_ddp_goes_on_after_an_interrupt(world: jdist.Cluster, begun: Callable[[jdist.CellRun], None]) -> None:
    world.run(DDP)
    before = set(world.run("step()").values.values())
    assert len(before) == 1, "the replicas are equal"
    run = world.run("while True: step()", background=True)
    begun(run)
    world.interrupt()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    world.run("for p in net.parameters(): p.data.fill_(0.5)")  # an aborted sum may have been anything
    assert len({round(v, 6) for v in world.run("step()").values.values()}) == 1


@pytest.mark.two_gpus
@pytest.mark.parametrize(
    "wait", ["t.sum().item()", "torch.cuda.synchronize() if gpu.type == 'cuda' else t.item()", "t.cpu()"]
)
def test_a_rank_that_never_comes_is_named_and_the_others_are_freed(world: jdist.Cluster, wait: str) -> None:
    world.run(KEEP)
    run = world.run(
        f"t = torch.ones(1, device=gpu)\nif rank != 1:\n    dist.all_reduce(t)\n    {wait}", background=True
    )
    found = eventually(lambda: (v := run.verdict) is not None and v.is_certain and v, JUDGED)
    assert found, f"no verdict: {run}, {run.verdict}"
    assert (found.kind, found.responsible, found.op) == ("missing", (1,), "all_reduce")
    world.interrupt()
    assert run.wait(60)
    assert {o.kind for r, o in run.outcomes.items() if r != 1} == {"interrupted"}
    assert set(world.run(KEPT).values.values()) == {15.0}


@pytest.mark.two_gpus
def test_a_rank_that_is_killed_while_the_others_wait_for_it(world: jdist.Cluster) -> None:
    world.run(KEEP)
    pids = world.run("import os; os.getpid()").values
    run = world.run(
        "t = torch.ones(1, device=gpu)\nif rank != 1:\n    dist.all_reduce(t)\n    t.item()", background=True
    )
    assert eventually(lambda: run.verdict, JUDGED)
    os.kill(pids[1], signal.SIGKILL)
    assert run.wait(60)
    others = [r for r in pids if r != 1]
    assert set(world.run(KEPT, ranks=others, timeout=60).values.values()) == {15.0}
