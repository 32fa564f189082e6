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
    assert set(world.run("str(gpu) in (f'cuda:{local_rank}', 'cpu')").values.values()) == {True}
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


MADE_LATE = {
    "the first collective of a group, whose first member waits": "if rank == 0: dist.all_reduce(t, group=pair)",
    "the first collective of a group, whose first member is missing": "if rank == 1: dist.all_reduce(t, group=pair)",
    "the first receive of a pair": "if rank == 0: dist.recv(t, src=1); t.item()",
    "the first send of a pair": "if rank == 1: dist.send(t, 0); torch.cuda.synchronize() if gpu.type == 'cuda' else 0",
}


@pytest.mark.parametrize("call", MADE_LATE)
def test_ranks_that_wait_for_a_communicator_are_freed(world: jdist.Cluster, call: str) -> None:
    """Until all its members have come, NCCL has nothing that could be aborted."""
    world.run(KEEP)
    run = world.run(f"pair = dist.new_group([0, 1])\nt = torch.ones(1, device=gpu)\n{MADE_LATE[call]}", background=True)
    found = eventually(lambda: (v := run.verdict) is not None and v.is_certain and v, JUDGED)
    assert found, f"no verdict: {run}, {run.verdict}"
    assert len(found.responsible) == 1
    world.interrupt()
    assert run.wait(60)
    assert sorted(o.kind for r, o in run.outcomes.items() if r < 2) == ["interrupted", "value"]
    assert set(world.run(KEPT).values.values()) == {15.0}


GRAPH = """
t = torch.ones(8, device=gpu)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    dist.all_reduce(t)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(t)
t.fill_(1.0)
graph.replay()
t[0].item()
"""


@pytest.mark.only_gpu
def test_a_cuda_graph_that_waits_for_another_rank(world: jdist.Cluster, begun: Callable[[jdist.CellRun], None]) -> None:
    world.run(KEEP)
    size = len(world.run("rank").values)
    assert set(world.run(GRAPH, timeout=60).values.values()) == {float(size)}
    run = world.run(
        "if rank == 0: graph.replay(); torch.cuda.synchronize()\nelse: __import__('time').sleep(100)", background=True
    )
    begun(run)
    world.interrupt()
    assert run.wait(60)
    assert run.outcomes[0].kind == "interrupted"
    assert set(world.run(KEPT, timeout=60).values.values()) == {15.0}, "also where the graph held a communicator"
    assert set(world.run(GRAPH, timeout=60).values.values()) == {float(size)}


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
