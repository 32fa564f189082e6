"""What GPUs do to a cluster, imitated on machines without one: tests/gpu has the same with real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import jdist
from support.gpus import nccl
from support.waits import eventually

ASSERTS = """
if rank == 1:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered\\nDevice-side assertion tracking was off")
"""
LOSES_ITS_GPU = """
from jdist.worker.groups.formation import RankFormation
def init_world(self):
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")
RankFormation.init_world = init_world
"""
WAITS = """
import os, threading, time
def end_when_told(future, calls):
    while not os.path.exists(free):
        time.sleep(0.02)
    calls.finish()
    future.set_result(None)
if rank == 0:
    nccl.queue()
    there = torch.futures.Future()
    threading.Thread(target=end_when_told, args=(there, nccl)).start()
    there.wait()
"""


def test_a_lost_cuda_context_is_named_and_its_rank_is_restarted(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(2)
    cluster.run("kept = torch.full((4,), float(rank))")
    with pytest.raises(jdist.CellError) as failed:
        cluster.run(ASSERTS)
    error = failed.value.outcomes[1].error
    assert "the CUDA context of rank 1 is lost" in error.evalue
    assert [(r.action, r.ranks) for r in error.remedies] == [("restart", "1")]
    with pytest.raises(jdist.CellError, match=r"was lost in run \d+ \(device-side assert triggered\)"):
        cluster.run("raise RuntimeError('cuDNN error: CUDNN_STATUS_NOT_INITIALIZED')", ranks=[1])
    assert cluster.pull("kept", ranks=[1])[1].tolist() == [1.0] * 4
    cluster.restart([1])
    with pytest.raises(jdist.CellError) as again:
        cluster.run("raise RuntimeError('cuDNN error: CUDNN_STATUS_NOT_INITIALIZED')", ranks=[1])
    assert "CUDA context" not in again.value.outcomes[1].error.evalue
    assert cluster.run("t = torch.ones(1); dist.all_reduce(t); t.item()").values == {0: 2.0, 1: 2.0}
    assert cluster.pull("kept", ranks=[0])[0].tolist() == [0.0] * 4


def test_a_collective_on_gpus_that_a_rank_never_calls_gets_a_verdict(
    fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path
) -> None:
    """NCCL's collectives return when they are queued. The rank waits later, for its GPU."""
    cluster = fresh_cluster(2)
    cluster.run(nccl.source())
    cluster.run("nccl.queue(is_done=True)")
    free = tmp_path / "free"
    run = cluster.run(f"free = {str(free)!r}\n{WAITS}", background=True)
    found = eventually(lambda: (v := run.verdict) is not None and v.is_certain and v, 20.0)
    assert found, f"no verdict: {run}, {run.verdict}"
    assert (found.kind, found.responsible, found.waiting) == ("missing", (1,), (0,))
    assert (found.op, found.number, found.group) == ("all_reduce", 2, "world (nccl)")
    assert "cell line 13" in str(found), "where it waits"
    free.touch()
    assert run.wait(30)
    assert cluster.run("t = torch.ones(1); dist.all_reduce(t); t.item()").values == {0: 2.0, 1: 2.0}


def test_a_rank_that_can_join_no_world_any_more_is_replaced_with_its_names(
    fresh_cluster: Callable[..., jdist.Cluster],
) -> None:
    """A CUDA context that is lost is noticed at the latest when NCCL is to use the GPU for the next world."""
    cluster = fresh_cluster(2)
    pids = cluster.run("import os; kept = torch.full((4,), float(rank)); os.getpid()").values
    cluster.run(LOSES_ITS_GPU, ranks=[1])
    run = cluster.run("if rank == 0: dist.all_reduce(torch.ones(1))", background=True)
    assert eventually(lambda: run.verdict)
    cluster.interrupt()
    assert run.wait(30)
    after = cluster.run("dist.barrier(); os.getpid(), kept.tolist()", timeout=60).values
    assert after[0] == (pids[0], [0.0] * 4)
    assert after[1][0] != pids[1]
    assert after[1][1] == [1.0] * 4
