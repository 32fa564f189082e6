"""Values to and from GPUs."""

from __future__ import annotations

import time

import pytest
import torch

import jdist

GB = 1_000_000_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("size", [5, 300_000])
def test_a_tensor_there_and_back(world: jdist.Cluster, dtype: torch.dtype, size: int) -> None:
    sent = (torch.arange(size) % 3).to(dtype)
    world.push(v=sent)
    world.run("w = v.to(gpu)")
    for got in world.pull("w").values():
        assert got.device.type == "cpu"
        assert got.equal(sent)


def test_a_model_and_its_optimizer(world: jdist.Cluster) -> None:
    world.run(
        "torch.manual_seed(1)\nmodel = torch.nn.Linear(8, 4).to(gpu)\nadam = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(2, 8, device=gpu)).sum().backward(); adam.step()"
    )
    state = world.pull("model.state_dict()", ranks=[0])[0]
    assert {t.device.type for t in state.values()} == {"cpu"}
    model = torch.nn.Linear(8, 4)
    model.load_state_dict(state)
    assert world.run("[p.double().sum().item() for p in model.parameters()]", ranks=[0]).values[0] == [
        p.double().sum().item() for p in model.parameters()
    ]
    assert len(world.pull("adam.state_dict()", ranks=[0])[0]["state"]) == 2


def test_a_fresh_rank_gets_its_values_from_another_onto_its_own_gpu(pair: jdist.Cluster) -> None:
    pair.run("torch.manual_seed(2)\nmodel = torch.nn.Linear(8, 4).to(gpu)")
    pair.restart([1])
    pair.run("model = torch.nn.Linear(8, 4).to(gpu)", ranks=[1])
    pair.restore(1, 0, "model")
    found = pair.run("str(next(model.parameters()).device), model.weight.double().sum().item()").values
    assert found[0] == found[1]


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_elements_are_counted_where_they_are(world: jdist.Cluster, is_deterministic: bool) -> None:
    code = (
        "h = torch.arange(300_000, device=gpu, dtype=torch.float32) / 300_000\nh[0] = float('nan')\nh[1] = float('inf')"
    )
    try:
        world.run(f"torch.use_deterministic_algorithms({is_deterministic})\n{code}")
        for found in world.show("h").values():
            histogram = found["histogram"]
            assert (sum(histogram["counts"]), histogram["nan"], histogram["positive_infinity"]) == (299_998, 1, 1)
            assert max(histogram["counts"]) - min(histogram["counts"]) < 10, "they are evenly distributed"
    finally:
        world.run("torch.use_deterministic_algorithms(False)")


def test_a_gigabyte_comes_whole(world: jdist.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """How long it takes beside one copy from the GPU is printed, as `make test-gpu` is where that can be measured."""
    nbytes = GB // 20 if world.run("gpu.type", ranks=[0]).values[0] == "cpu" else GB
    made = f"torch.arange(250, dtype=torch.uint8, device={{}}).repeat({nbytes // 250})"
    world.run(f"big = {made.format('gpu')}", ranks=[0])
    copied = "import time\nbegan = time.monotonic()\ncopy = big.cpu()\ntime.monotonic() - began"
    world.run(copied, ranks=[0])
    one = world.run(copied, ranks=[0]).values[0]
    began = time.monotonic()
    got = world.pull("big", ranks=[0])[0]
    taken = time.monotonic() - began
    assert got.equal(torch.arange(250, dtype=torch.uint8).repeat(nbytes // 250))
    with capsys.disabled():
        figures = f"{taken:.2f} s, one copy of it there: {one:.2f} s, {taken / one:.1f} times"
        print(f"\n{nbytes / GB:g} GB from rank 0: {figures}")
    world.run("del big, copy", ranks=[0])
