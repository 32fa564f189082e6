"""Processes and GPUs: who has a CUDA context, how much memory the ranks are seen to use, and the drill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import jdist
from jdist.client.drill import run_drills
from jdist.client.threads import bridge
from jdist.notebook.text.diagnosis_text import drill_bundle
from support.gpus.shared import nccl_options
from support.leaks import Traces
from support.waits import eventually

MIB = 1 << 20


@pytest.mark.only_gpu
@pytest.mark.parametrize("warm", [False, True])
def test_a_process_that_forks_ranks_has_no_cuda_context(run_traces: Traces, warm: bool) -> None:
    """CUDA cannot be used in a process whose parent has used it."""
    with jdist.start(2, backend="gloo", warm=warm, timeout=180, idle_timeout=600) as cluster:
        assert set(cluster.run("torch.cuda.is_initialized()").values.values()) == {False}
        uses = "torch.ones(2, device='cuda:0').sum().item()"
        assert cluster.run(uses, timeout=120).values == {0: 2.0, 1: 2.0}
        cluster.restart([1])
        assert cluster.run(uses, timeout=120).values == {0: 2.0, 1: 2.0}


@pytest.mark.only_gpu
def test_what_a_rank_has_of_its_gpu(world: jdist.Cluster) -> None:
    world.run(f"x = torch.empty({512 * MIB}, dtype=torch.uint8, device=gpu)", ranks=[0])

    def gpu() -> object:
        look = world.look()
        return 0 in look and look[0].gpu

    found = eventually(gpu, 60.0)
    assert found
    assert torch.cuda.get_device_name(0) in found.name
    if not found.name.startswith("a slice"):
        assert abs(found.total / torch.cuda.get_device_properties(0).total_memory - 1) < 0.1
        assert found.used >= 512 * MIB
        assert found.busy is None or 0 <= found.busy <= 1
    assert found.own is None or found.own >= 512 * MIB, "in a container the driver may not tell"
    world.run("del x; torch.cuda.empty_cache()", ranks=[0])


@pytest.mark.only_gpu
def test_two_ranks_on_one_gpu_use_their_own_memory(pair: jdist.Cluster) -> None:
    pair.run(f"x = torch.full(({256 * MIB},), rank, dtype=torch.uint8, device=gpu)")
    assert pair.run("x.unique().tolist()").values == {0: [0], 1: [1]}
    assert set(pair.run("torch.cuda.memory_allocated(gpu) >= x.nbytes").values.values()) == {True}
    pair.run("del x; torch.cuda.empty_cache()")


def test_the_drill(tmp_path: Path) -> None:
    report = tmp_path / "drill.json"
    drill = [sys.executable, "-m", "jdist", "doctor", "--drill", "--backend", "gloo", "--json", str(report)]
    done = subprocess.run(drill, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())


@pytest.mark.only_gpu
def test_the_drill_with_nccl(run_traces: Traces, capsys: pytest.CaptureFixture[str]) -> None:
    with nccl_options() as options:
        backend = options.pop("backend")
        (drill,) = bridge().call(run_drills([backend], lambda _: None, **options))
    with capsys.disabled():
        print("\n" + drill_bundle((drill,))["text/plain"])
    assert drill.held
