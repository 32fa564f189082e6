"""PyTorch's tutorials as cells: each trains to the numbers of a single process, and goes on after an interrupt.

Each sets up ``step()``, which returns whether a step came out right on this rank. Between two steps, one rank leaves a
step out and the others are interrupted in it.
"""

from __future__ import annotations

import pytest

import jdist
from support.waits import eventually

LAYERS = """
import copy, torch.nn as nn
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
alone = copy.deepcopy(layers)
alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)

def batch(rank):
    return torch.linspace(0, rank + 1, 32).reshape(4, 8)

def step_alone(ranks=range(4)):
    "A step on the batches of these ranks, the gradients averaged; returns the loss on each."
    losses = [alone(batch(r)).square().mean() for r in ranks]
    (sum(losses) / len(losses)).backward()
    alone_optimizer.step()
    alone_optimizer.zero_grad()
    return [loss.item() for loss in losses]

def step_here(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

def close(a, b):
    return abs(a - b) < 1e-4 * max(1, abs(b))
"""
TUTORIALS = {
    "distributed data parallel": """
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    return close(step_here(model, optimizer, batch(rank)), step_alone()[rank])
""",
    "fully sharded data parallel": """
from torch.distributed.fsdp import fully_shard
for layer in (layers[0], layers[2], layers):
    fully_shard(layer)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
def step():
    return close(step_here(layers, optimizer, batch(rank)), step_alone()[rank])
""",
    "fully sharded data parallel, the first": """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    return close(step_here(model, optimizer, batch(rank)), step_alone()[rank])
""",
    "tensor parallel": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
tensor_mesh = init_device_mesh("cpu", (4,))
parallelize_module(layers, tensor_mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
def step():
    return close(step_here(layers, optimizer, batch(0)), step_alone([0])[0])
""",
    "tensor and data parallel": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
plane = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
parallelize_module(layers, plane["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(layers, mesh=plane["data"])
optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
replica = plane["data"].get_local_rank()
def step():
    return close(step_here(layers, optimizer, batch(replica)), step_alone([0, 1])[replica])
""",
    "pipeline": """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
parts = [nn.Linear(8, 8) for _ in range(4)]
alone = copy.deepcopy(nn.Sequential(*parts))
alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
stage = PipelineStage(parts[rank], rank, world_size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, target: y.square().mean())
optimizer = torch.optim.SGD(parts[rank].parameters(), lr=0.01)
def step():
    losses = []
    if rank == 0:
        schedule.step(batch(0))
    elif rank == 3:
        schedule.step(target=torch.zeros(4, 8), losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
    expected = step_alone([0])[0]
    return rank != 3 or close(sum(losses).item() / 4, expected)
""",
    "checkpoints": """
import tempfile
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
fully_shard(layers)
optimizer = torch.optim.Adam(layers.parameters())
place = [tempfile.mkdtemp()]
dist.broadcast_object_list(place, src=0)
def step():
    step_here(layers, optimizer, batch(rank))
    before = [p.full_tensor().clone() for p in layers.parameters()]
    model_state, optimizer_state = get_state_dict(layers, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.save(state, checkpoint_id=place[0] + "/saved")
    dcp.async_save(state, checkpoint_id=place[0] + "/later").result()
    right = True
    for name in ("saved", "later"):
        step_here(layers, optimizer, batch(rank))
        model_state, optimizer_state = get_state_dict(layers, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=f"{place[0]}/{name}")
        set_state_dict(layers, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        right = right and all(torch.equal(a, p.full_tensor()) for a, p in zip(before, layers.parameters()))
    return right
""",
    "sharded optimizer": """
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(layers)
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.01)
def step():
    return close(step_here(model, optimizer, batch(rank)), step_alone()[rank])
""",
    "uneven inputs": """
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(nn.Linear(1, 1))
def step():
    with Join([model]):
        seen = [model(torch.ones(1)).backward() for _ in range(5 + rank)]
    return len(seen) == 5 + rank
""",
    "communication hooks": """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP
half, low, own = DDP(nn.Linear(8, 8)), DDP(nn.Linear(64, 64)), DDP(layers)
half.register_comm_hook(None, default_hooks.fp16_compress_hook)
power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
low.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
def average(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / world_size)
own.register_comm_hook(None, average)
optimizer = torch.optim.SGD(own.parameters(), lr=0.01)
def step():
    right = close(step_here(own, optimizer, batch(rank)), step_alone()[rank])
    for model, size in ((half, 8), (low, 64)):
        model.zero_grad()
        model(torch.full((1, size), float(rank))).sum().backward()
        right = right and abs(model.module.weight.grad[0, 0].item() - 1.5) < 0.01
    return right
""",
    "compiled": """
from torch.nn.parallel import DistributedDataParallel as DDP
model = torch.compile(DDP(layers), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    return close(step_here(model, optimizer, batch(rank)), step_alone()[rank])
""",
    "data loader": """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
numbers = TensorDataset(torch.arange(64.0))
loader = DataLoader(numbers, batch_size=4, sampler=DistributedSampler(numbers), num_workers=2)
def step():
    total = sum(x.sum() for (x,) in loader)
    dist.all_reduce(total)
    return total.item() == 2016
""",
    "autograd of collectives": """
import torch.distributed.nn.functional as functional
def step():
    x = torch.ones(3, requires_grad=True)
    functional.all_reduce(x * (rank + 1)).sum().backward()
    return x.grad[0].item() == 4 * (rank + 1)
""",
    "remote procedures": """
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer
import torch.distributed.autograd as dist_autograd
class Doubler:
    def double(self, x):
        return 2 * x
def of_next(rank):
    return f"worker{(rank + 1) % world_size}"
def step():
    dist.barrier()
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
    right = rpc.rpc_sync(of_next(rank), torch.add, (torch.ones(2), rank))[0].item() == 1 + rank
    remote = rpc.remote(of_next(rank), torch.full, ((2,), float(rank)))
    right = right and remote.to_here()[0].item() == rank
    weight = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync(of_next(rank), torch.mul, (weight, 3.0)).sum()
        dist_autograd.backward(context, [loss])
        right = right and dist_autograd.get_gradients(context)[weight][0].item() == 3
    rpc.shutdown()
    return right
""",
}


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_trains_as_in_one_process_and_goes_on_after_an_interrupt(cluster: jdist.Cluster, name: str) -> None:
    everywhere = dict.fromkeys(range(4), True)
    cluster.run(LAYERS + TUTORIALS[name], timeout=60)
    assert cluster.run("[step() for _ in range(3)] == [True] * 3", timeout=60).values == everywhere
    hang = cluster.run("if rank != 2: step()", background=True)
    assert eventually(lambda: (v := hang.verdict) is not None and v.is_certain, 30), hang
    assert hang.verdict is not None
    assert 2 in hang.verdict.responsible, hang.verdict
    hang.cancel()
    assert hang.wait(30)
    assert {o.kind for o in hang.outcomes.values()} == {"interrupted", "value"}, hang.outcomes
    cluster.run("step()", timeout=60)  # with the objects that were made before; the ranks' parameters may differ now
    cluster.run(LAYERS + TUTORIALS[name], timeout=60)
    assert cluster.run("step()", timeout=60).values == everywhere
