"""On a machine with GPUs: what the driver tells of them reaches who looks at the ranks."""

from __future__ import annotations

import pytest
import torch

import jdist
from support.waits import eventually

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch that can use it"),
]

MIB = 1 << 20


def test_what_a_rank_has_of_its_gpu() -> None:
    with jdist.start(nproc_per_node=1, timeout=60, idle_timeout=60) as cluster:
        cluster.run(f"x = torch.empty({512 * MIB}, dtype=torch.uint8, device=device)")

        def gpu() -> object:
            look = cluster.look()
            return 0 in look and look[0].gpu

        found = eventually(gpu, 60.0)
        assert found
        assert torch.cuda.get_device_name(0) in found.name
        if not found.name.startswith("a slice"):
            assert abs(found.total / torch.cuda.get_device_properties(0).total_memory - 1) < 0.1
            assert found.used >= 512 * MIB
            assert found.busy is None or 0 <= found.busy <= 1
        assert found.own is None or found.own >= 512 * MIB, "in a container the driver may not tell"
