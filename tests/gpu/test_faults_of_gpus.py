"""What goes wrong on a GPU costs as little as it can: a message, or one rank, and never the names of the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jdist

MIB = 1 << 20
KEEP = "kept = torch.arange(6.0, device=gpu) + rank; on_cpu = torch.arange(3.0)"
KEPT = "kept.sum().item() - 6 * rank"
ASSERTS = """
if rank == world_size - 1:
    if gpu.type == "cpu":
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    torch.zeros(2, device=gpu)[torch.tensor([9], device=gpu)]
    torch.cuda.synchronize()
"""
BUSY = {
    "in Python while the GPU is busy": "if gpu.type == 'cuda': torch.cuda._sleep(2_000_000_000)\nwhile True: pass",
    "in synchronize": "if gpu.type == 'cuda':\n    torch.cuda._sleep(3_000_000_000)\n    torch.cuda.synchronize()\n"
    "while True: pass",
    "in a loop of kernels": "t = torch.ones(512, 512, device=gpu)\nwhile True: (t @ t).sum().item()",
    "in a copy to the CPU": "t = torch.ones(64 << 20, device=gpu)\nwhile True: t.cpu()",
}


def test_out_of_memory_keeps_every_name(world: jdist.Cluster) -> None:
    world.run(KEEP)
    with pytest.raises(jdist.CellError, match=r"out of memory|can't allocate memory") as failed:
        world.run("huge = torch.empty(1 << 50, dtype=torch.uint8, device=gpu)", ranks=[0])
    error = failed.value.outcomes[0].error
    assert "CUDA context" not in error.evalue
    assert set(world.run(KEPT).values.values()) == {15.0}


def test_a_device_side_assert_costs_its_rank_and_no_other(world: jdist.Cluster) -> None:
    world.run(KEEP)
    last = len(world.run("rank").values) - 1
    with pytest.raises(jdist.CellError) as failed:
        world.run(ASSERTS)
    error = failed.value.outcomes[last].error
    assert f"the CUDA context of rank {last} is lost" in error.evalue, error
    assert [(r.action, r.ranks) for r in error.remedies] == [("restart", str(last))]
    assert world.pull("on_cpu", ranks=[last])[last].tolist() == [0.0, 1.0, 2.0], "the process lives on"
    world.restart([last])
    assert world.run("gpu.type, 'kept' in globals()", ranks=[last], timeout=120).values[last][1] is False
    others = list(range(last))
    if others:
        assert set(world.run(KEPT, ranks=others).values.values()) == {15.0}


@pytest.mark.only_gpu
def test_a_later_cell_says_that_the_context_was_lost(pair: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellError):
        pair.run(ASSERTS)
    with pytest.raises(jdist.CellError, match=r"was lost in run \d+ \(device-side assert"):
        pair.run("torch.ones(1, device=gpu) + 1; torch.cuda.synchronize()", ranks=[1])
    assert pair.run("rank + 1", ranks=[1]).values == {1: 2}
    pair.restart([1])


@pytest.mark.parametrize("busy", BUSY)
def test_an_interrupt(world: jdist.Cluster, begun: Callable[[jdist.CellRun], None], busy: str) -> None:
    world.run(KEEP)
    run = world.run(BUSY[busy], background=True)
    begun(run)
    world.interrupt()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}, run
    assert set(world.run(KEPT).values.values()) == {15.0}


@pytest.mark.only_gpu
def test_a_restarted_rank_gives_its_memory_back(world: jdist.Cluster) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    asked = "import torch; torch.cuda.mem_get_info(gpu)[0]"
    before = world.run(asked, ranks=[0]).values[0]
    world.run(f"held = torch.empty({int(before * 0.5)}, dtype=torch.uint8, device=gpu)", ranks=[0])
    assert world.run(asked, ranks=[0]).values[0] < before * 0.6
    world.restart([0])
    assert world.run(asked, ranks=[0], timeout=120).values[0] > before - 0.1 * total
