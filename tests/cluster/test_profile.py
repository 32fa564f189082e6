"""Profiles of real runs: the slow rank is named with its operators, also after a failure."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import jdist
from jdist.client.measure.columns import MIME
from support.waits import eventually

ROUNDS = 6
SETUP = """
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
net = DDP(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
opt = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(400, 16)), batch_size=10)
square = torch.randn(500, 500)
"""
TRAIN = f"""
for _, (x,) in zip(range({ROUNDS}), loader):
    if rank == 2:
        for _ in range(3):
            torch.linalg.matrix_exp(square)
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
"""


@pytest.fixture(autouse=True)
def _made(cluster: jdist.Cluster) -> None:
    cluster.run(SETUP, timeout=60)


def test_the_rank_that_an_operator_makes_slow_is_named(cluster: jdist.Cluster, tmp_path: Path) -> None:
    profile = cluster.profile(TRAIN, timeout=120)
    assert profile.run is not None
    profile.run.check()
    assert not profile.report.absent
    assert not profile.report.trace.absent
    assert set(profile.table) == {0, 1, 2, 3}
    for rank, each in profile.table.items():
        row = next(row for row in profile.report.trace.timeline.rows if row.rank == rank)
        parts = (each.collectives, each.waiting, each.elsewhere)
        assert sum(parts) == pytest.approx(row.ended - row.began, rel=0.05)
        assert len(profile.report.ranks[rank].steps) == ROUNDS
    slow = profile.table[2]
    assert slow.elsewhere == max(each.elsewhere for each in profile.table.values())
    assert slow.communication == min(each.communication for each in profile.table.values())
    assert all(profile.table[r].waiting > slow.waiting for r in (0, 1, 3))
    worst = profile.slowest[0]
    assert (worst.call.op, worst.slowest) == ("all_reduce", 2)
    assert worst.last[2] >= ROUNDS - 1, "what the first step takes to begin is another matter"
    assert "aten::linalg_matrix_exp" in profile.operators[2]
    assert f"operators of rank 2, by torch.profiler\n{profile.operators[2]}" in repr(profile)
    assert "for rank 2 in all_reduce of world at cell line 6" in profile.report.finding
    assert "≈" not in repr(profile), "gloo tells when DDP's calls ended"
    bundle = profile._repr_mimebundle_()
    assert sum(bundle[MIME]["operators"]["counts"]) > 4 * ROUNDS * 10
    events = json.loads(gzip.decompress(profile.save(tmp_path / "p.json.gz").read_bytes()))["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1, 2, 3}
    assert {e["pid"] for e in events if e["name"] == "aten::linalg_matrix_exp"} == {2}
    for name in ("aten::addmm", "all_reduce", f"step {ROUNDS - 1}", "Optimizer.step#SGD.step"):
        assert {e["pid"] for e in events if e["name"] == name} == {0, 1, 2, 3}, name
    assert repr(cluster.read_profile()) == repr(profile)
    later = cluster.run("1")
    assert cluster.trace().run == later.number
    assert cluster.read_profile(profile.run.number).run is None, "another cell does not end it"


def test_steps_of_a_schedule(cluster: jdist.Cluster) -> None:
    profile = cluster.profile(TRAIN, [0, 1, 2, 3], timeout=120, wait=1, warmup=1, active=2, repeat=1)
    for operators in profile.report.ranks.values():
        windows, steps = operators.profile.windows, operators.profile.steps
        # On a slow machine the recording is read between its two steps, which divides it into two windows.
        assert steps[1] <= windows[0][0] < steps[3] <= windows[-1][1] <= steps[4]
        assert [n for n in operators.profile.names if n == "Optimizer.step#SGD.step"]
        assert operators.recorded.starts[0] >= operators.steps[1] - 0.001
    assert all(each.unrecorded > 0 for each in profile.table.values())
    assert re.search("operators were recorded in [12] windows?, with", repr(profile))
    with pytest.raises(jdist.UsageError, match="needs active steps"):
        cluster.profile("1", wait=1)
    with pytest.raises(jdist.UsageError, match="cannot profile the activity tpu"):
        cluster.profile("1", activities="tpu")


def test_a_cell_that_fails_or_is_interrupted_has_a_profile(cluster: jdist.Cluster) -> None:
    failed = cluster.profile(TRAIN + "\n1 / 0 if rank == 1 else dist.barrier()", timeout=120)
    assert failed.run is not None
    with pytest.raises(jdist.CellError, match="ZeroDivisionError"):
        failed.run.check()
    assert all(operators.starts.size > 0 for operators in failed.report.ranks.values())
    endless = "while True:\n    square @ square"
    run = cluster.submit(endless, (0, 1), profile=jdist.ProfileOptions())
    assert eventually(lambda: [seen.doing.line for seen in cluster.look([0, 1]).values()] == [2, 2])
    cluster.interrupt()
    assert run.wait(60)
    cut = cluster.read_profile(run)
    assert set(cut.table) == {0, 1}
    assert "aten::mm" in cut.report.ranks[0].profile.names
    with pytest.raises(jdist.CellInterrupted):
        run.check()
    with pytest.raises(jdist.UsageError, match="no profile of run 9999"):
        cluster.read_profile(9999)


def test_the_cell_marks_its_steps(cluster: jdist.Cluster) -> None:
    profile = cluster.profile("import jdist\nfor _ in range(5):\n    torch.ones(3)\n    jdist.profile_step()", [0, 3])
    assert {r: len(o.steps) for r, o in profile.report.ranks.items()} == {0: 5, 3: 5}
    assert set(profile.table) == {0, 3}
    assert "no rank waited long" in repr(profile)


def test_a_paused_cell_is_profiled_and_cells_in_its_frame_are_not(cluster: jdist.Cluster) -> None:
    cell = "def work():\n    inside = square @ square\n    breakpoint()\n    return inside - 1\nwork().shape"
    run = cluster.submit(cell, (0, 1), profile=jdist.ProfileOptions())
    eventually(lambda: set(run.paused) == {0, 1})
    assert cluster.run("(inside + 1).shape", [0]).values
    refused = cluster.submit("1", (0,), profile=jdist.ProfileOptions())
    assert refused.wait(30)
    with pytest.raises(jdist.CellError, match="cannot be profiled"):
        refused.check()
    cluster.resume()
    assert run.wait(30)
    run.check()
    profile = cluster.read_profile(run)
    assert {"aten::mm", "aten::sub", "aten::add"} <= set(profile.report.ranks[0].profile.names)
    assert "aten::add" not in profile.report.ranks[1].profile.names
