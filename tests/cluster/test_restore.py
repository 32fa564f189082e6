"""Restore: a fresh rank gets back from a replica what it lost, and training goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

SETUP = """
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

def make():
    torch.manual_seed(0)
    layers = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)

def train(model, optimizer, steps):
    for step in steps:
        g = torch.Generator().manual_seed(1000 * step + rank)
        x, y = torch.randn(16, 8, generator=g), torch.randint(0, 2, (16,), generator=g)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
MAKE = "model, optimizer = make()"
STATE = "[model.state_dict(), optimizer.state_dict()['state']]"
BEFORE, AFTER = range(6), range(6, 12)


@pytest.fixture(scope="module")
def own(run_traces: Traces) -> Iterator[jdist.Cluster]:
    """Two nodes of two ranks, on which rank 2 is killed again and again."""
    with jdist.start(2, 2, backend="gloo", name="restored", timeout=60, idle_timeout=60) as cluster:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0), anatomy.agent(cluster, 1)}
        cluster.run(SETUP, setup=True)
        yield cluster
        run_traces.exempt = before


def lose(cluster: jdist.Cluster, rank: int) -> None:
    """kill -9, and wait for the fresh one."""
    pid = anatomy.worker(cluster, rank)
    anatomy.kill(pid)
    assert eventually(lambda: anatomy.worker(cluster, rank) not in (0, pid))


def uninterrupted(cluster: jdist.Cluster) -> None:
    """``expected`` on each rank: the model's weights after all steps, with nobody killed."""
    cluster.run(f"{MAKE}\nmodel = DDP(model)\ntrain(model, optimizer, range(12))", timeout=60)
    cluster.run("expected = torch.cat([p.detach().flatten() for p in model.module.parameters()])")
    cluster.run("del model, optimizer")


def check_as_expected(cluster: jdist.Cluster) -> None:
    for expr in ("{k: v for k, v in model.state_dict().items() if 'running' not in k}", "optimizer.state_dict()"):
        assert cluster.check(expr), cluster.check(expr)
    weights = "torch.cat([p.detach().flatten() for p in getattr(model, 'module', model).parameters()])"
    lived_on = cluster.run(f"({weights} - expected).abs().max().item()", "!2").values
    assert max(lived_on.values()) < 1e-5, lived_on


@pytest.mark.parametrize("replayed", ["model and optimizer", "model", "nothing"])
def test_ddp_and_adam_go_on_as_if_nothing_had_happened(own: jdist.Cluster, replayed: str) -> None:
    """Whether the fresh rank has made its model again, or has nothing at all."""
    uninterrupted(own)
    own.run(f"{MAKE}\nmodel = DDP(model)\ntrain(model, optimizer, {BEFORE!r})", timeout=60)
    lose(own, 2)
    if replayed != "nothing":
        own.run(MAKE, [2])
    if replayed == "model":
        own.run("del optimizer", [2])
        with pytest.raises(jdist.UsageError, match="rank 2 has its own model and no optimizer"):
            own.restore(2, 0, "model, optimizer")
        own.run("optimizer = torch.optim.Adam(model.parameters(), lr=0.5)", [2])
    done = own.restore(2, 0, "model, optimizer")
    how = "copied as a whole" if replayed == "nothing" else "filled in place"
    assert done == {2: {"model": how, "optimizer": how}}
    assert own.run("type(model).__name__").values == dict.fromkeys(range(4), "DistributedDataParallel")
    own.run(f"train(model, optimizer, {AFTER!r})", timeout=60)
    check_as_expected(own)


def test_a_ddp_of_a_subgroup_and_one_rebuilt_on_all_ranks(own: jdist.Cluster) -> None:
    own.run(f"{MAKE}\nodd = dist.new_group([0, 2])\nif rank % 2 == 0:\n    model = DDP(model, process_group=odd)")
    own.run(f"train(model, optimizer, {BEFORE!r})", [0, 2], timeout=60)
    lose(own, 2)
    with pytest.raises(jdist.UsageError, match="rank 3 is none of its replicas"):
        own.restore(3, 0, "model, optimizer")
    own.restore(2, 0, "model, optimizer")
    assert own.run("dist.get_process_group_ranks(model.process_group)", [0, 2]).values == {0: [0, 2], 2: [0, 2]}
    own.run(f"train(model, optimizer, {AFTER!r})", [0, 2], timeout=60)
    assert own.check("list(model.parameters())", [0, 2])
    own.run(f"{MAKE}\nmodel = DDP(model)\ntrain(model, optimizer, {BEFORE!r})", timeout=60)
    assert own.check("list(model.parameters())")


def test_plain_values_tensors_and_a_scheduler(own: jdist.Cluster) -> None:
    own.run(
        f"{MAKE}\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)\n"
        "history = [rank, 'a']\nt = torch.ones(3) * rank"
    )
    own.run(
        "for _ in range(3): optimizer.step(); schedule.step()\n"
        "empty = torch.empty(0)\nbig = torch.full((1 << 20,), rank)"
    )
    lose(own, 2)
    with pytest.raises(jdist.UsageError, match="optimizer works on something that is not restored"):
        own.restore(2, 1, "optimizer")
    with pytest.raises(jdist.UsageError, match="schedule works on something"):
        own.restore(2, 1, "schedule, model")
    own.run("t = mine = torch.zeros(3, requires_grad=True)", [2])
    done = own.restore("2", 1, "model, optimizer, schedule, history, t, empty, big")[2]
    assert done["t"] == "filled in place"
    assert done["schedule"] == done["history"] == "copied as a whole"
    assert own.run("mine is t, t.tolist(), history", [2]).values == {2: (True, [1.0] * 3, [1, "a"])}
    assert own.run("schedule.optimizer is optimizer, schedule.last_epoch", [2]).values == {2: (True, 3)}
    assert own.run("len(empty), big[-1].item()", [2]).values == {2: (0, 1)}
    assert own.run("optimizer.param_groups[0]['params'][0] is model[0].weight", [2]).values == {2: True}


@pytest.mark.parametrize(
    ("rank", "src", "names", "words"),
    [
        (2, 2, "a", "rank 2 cannot be restored from itself"),
        (2, 0, "nothing_such", "rank 0 has no name 'nothing_such'"),
        (2, 0, "a, nothing_such", "rank 0 has no name 'nothing_such'"),
        (9, 0, "a", "9"),
        (2, 9, "a", "9"),
        (2, 0, "a.b", "'a.b'"),
        (2, 0, "net", "net is a .*Linear on rank 0 and a .*Conv2d on rank 2"),
        (2, 0, "wide", r"wide differs at 'weight': float32 \[4, 3\] on rank 0, float32 \[5, 3\] on rank 2"),
        (2, 0, "opt", r"opt differs at 'group 0': 1 parameters on rank 0, 2 parameters on rank 2"),
        (2, 0, "shard", "shard is sharded"),
        (2, 0, "locked, a", "lock"),
    ],
)
def test_what_cannot_be_restored(own: jdist.Cluster, rank: int, src: int, names: str, words: str) -> None:
    """It says why, on which rank, and changes nothing; the world stays as it is."""
    own.run(
        "import threading\nfrom torch.distributed.tensor import Shard, distribute_tensor\n"
        "a = rank\nlocked = threading.Lock()\n"
        "net = torch.nn.Linear(2, 2) if rank == 0 else torch.nn.Conv2d(1, 1, 1)\n"
        "wide = torch.nn.Linear(3, 4 + (rank == 2))\n"
        "opt = torch.optim.SGD([torch.ones(1) for _ in range(1 + (rank == 2))])\n"
        "shard = distribute_tensor(torch.ones(4), dist.device_mesh.init_device_mesh('cpu', (4,)), [Shard(0)])"
    )
    own.run("if rank == 2: del locked")
    generation = own.generation
    with pytest.raises(jdist.UsageError, match=words):
        own.restore(rank, src, names)
    assert own.run("a").values == {r: r for r in range(4)}
    assert own.generation == generation


def test_several_fresh_ranks_at_once(own: jdist.Cluster) -> None:
    own.run("a = torch.full((3,), rank)")
    lose(own, 2)
    lose(own, 3)
    assert set(own.restore("2-3", 1, "a")) == {2, 3}
    assert own.run("a[0].item()").values == {0: 0, 1: 1, 2: 1, 3: 1}


def test_the_verb(own: jdist.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    from jdist.notebook import verbs
    from jdist.notebook.output.screen import TerminalScreen
    from jdist.notebook.session import Session

    own.run("a = rank\nb = [rank]")
    session = Session(TerminalScreen(), {}, "test")
    session.current = own
    verbs.call(session, "restore", ["2", "--from", "1", "a,b"])
    assert "rank 2 from rank 1: a copied as a whole, b copied as a whole" in capsys.readouterr().out
    assert own.run("a, b", [2]).values == {2: (1, [1])}
    with pytest.raises(jdist.UsageError, match="--from"):
        verbs.call(session, "restore", ["2", "a"])


def test_values_move_whatever_the_default_device_is(own: jdist.Cluster) -> None:
    """Tensors of jdist's own are on the CPU, although those of cells are not."""
    own.run("big, small = torch.arange(1e6), torch.ones(3)\nif rank == 2: del big, small")
    own.run("torch.set_default_device('meta')")
    try:
        done = own.restore(2, 0, "big, small")
        assert list(done) == [2]
        sums = own.run("big.double().sum().item(), small.sum().item()").values
        assert sums == dict.fromkeys(range(4), (499999500000.0, 3.0))
        assert own.pull("big", ranks=[2])[2].double().sum().item() == 499999500000.0
        with pytest.raises(jdist.CellTimeout):
            own.run("if rank: dist.all_reduce(small.clone())", timeout=0.3)
        assert own.run("big.double().sum().item(), small.sum().item()", timeout=60).values == sums
    finally:
        own.run("torch.set_default_device(None)")
