"""A world is formed, left and formed again, and what users have built on it goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from jdist.core.errors import LaunchError, UsageError
from support.ranks import SOON, Ranks

STUCK = "dist.all_reduce(torch.ones(4))"


@pytest.fixture
def world() -> Iterator[Ranks]:
    ranks = Ranks(4)
    try:
        yield ranks
    finally:
        ranks.close()


@pytest.fixture
def pair() -> Iterator[Ranks]:
    ranks = Ranks(2)
    try:
        yield ranks
    finally:
        ranks.close()


def _dirty(world: Ranks) -> None:
    """Leave the generation with a collective stuck in it."""
    others = range(1, world.world_size)
    for rank in others:
        world.ask(rank, "run", STUCK)
    for rank in others:
        world.until(rank, "at.op == 'all_reduce'")
    assert world.interrupt() < SOON
    for rank in others:
        assert world.answer(rank, "done")[0] != "value"


def test_forming_binds_names_and_torchruns_environment(world: Ranks) -> None:
    reports = world.form(named={"even": (0, 2)}, mesh=(("dp", "tp"), (2, 2)))
    assert all(r.listeners and r.device == "cpu" and not r.notices for r in reports)
    assert len({at for r in reports for at in r.listeners}) == sum(len(r.listeners) for r in reports)
    values = world.run(
        "import os\nt = torch.ones(1) * rank\n"
        "dist.all_reduce(t, group=groups['even']) if rank in (0, 2) else None\n"
        "u = torch.ones(1) * rank\ndist.all_reduce(u, group=mesh['dp'].get_group())\n"
        "_ = (rank, local_rank, node_rank, world_size, os.environ['RANK'], os.environ['WORLD_SIZE'],\n"
        "     os.environ['LOCAL_RANK'], os.environ['GROUP_RANK'], os.environ['LOCAL_WORLD_SIZE'],\n"
        "     os.environ['MASTER_ADDR'], os.environ['OMPI_COMM_WORLD_LOCAL_RANK'], t.item(), u.item())"
    )
    sums = {0: 2.0, 1: 1.0, 2: 2.0, 3: 3.0}
    dp = {0: 2.0, 1: 4.0, 2: 2.0, 3: 4.0}
    for r, value in enumerate(values):
        assert value == (r, r, 0, 4, str(r), "4", str(r), "0", "4", "127.0.0.1", str(r), sums[r], dp[r])


def test_world_by_a_shared_file(pair: Ranks, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'rendezvous'}"
    for _ in range(2):
        pair.form(init_method=url)
        assert pair.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [2.0, 2.0]
        # A wait of a group made later can be ended, which a wait at a file could not.
        pair.ask(0, "run", "dist.new_group([0, 1])")
        pair.until(0, "at.in_store_wait")
        assert pair.interrupt() < SOON
        assert pair.answer(0, "done")[0] != "value"


def test_absent_rank_is_named(pair: Ranks) -> None:
    pair.form()  # a rank that is connected to the store spends its time on waiting
    pair.generation = 2
    pair.ask(0, "form", pair.spec(timeout=2.0))
    with pytest.raises(LaunchError, match="rank 1 did not come"):
        pair.answer(0, "form")
    pair.form()  # the next one succeeds
    assert pair.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [2.0, 2.0]


def test_rank_that_dies_on_the_way_is_not_waited_for(pair: Ranks) -> None:
    pair.generation = 1
    pair.store.set("gen1/here/1", "1")  # it came, and is never heard of again
    pair.ask(0, "form", pair.spec(timeout=3.0))
    with pytest.raises(LaunchError, match="rank 0 could not join the world of 2"):
        pair.answer(0, "form")
    pair.form()
    assert pair.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [2.0, 2.0]


@pytest.mark.parametrize("came", [(), ("gen1/here/1",)], ids=["at the meeting", "while connecting"])
def test_a_newer_forming_ends_an_older_one(pair: Ranks, came: tuple[str, ...]) -> None:
    pair.generation = 1
    for key in came:
        pair.store.set(key, "1")  # rank 1 came, and is never heard of again
    pair.ask(0, "form", pair.spec(timeout=60))
    pair.store.wait(["gen1/here/0"], timedelta(seconds=30))
    pair.generation = 2
    for rank in (0, 1):
        pair.ask(rank, "form", pair.spec())
    with pytest.raises(LaunchError):
        pair.answer(0, "form")
    assert [pair.answer(rank, "form").generation for rank in (0, 1)] == [2, 2]
    assert pair.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [2.0, 2.0]


def test_unknown_init_method(pair: Ranks) -> None:
    pair.ask(0, "form", pair.spec(init_method="http://x"))
    with pytest.raises(LaunchError, match="not 'http://x'"):
        pair.answer(0, "form")


@pytest.mark.parametrize(("field", "message"), [("mpi", "without mpi"), ("nccl", "nccl")])
def test_backend_that_torch_or_machine_lacks(pair: Ranks, field: str, message: str) -> None:
    import torch

    if field == "nccl" and torch.cuda.device_count() >= 2:
        pytest.skip("this machine can do nccl")
    pair.ask(1, "form", pair.spec(backend=field))
    with pytest.raises(LaunchError, match=message):
        pair.answer(1, "form")


def test_unreachable_store_is_named(pair: Ranks) -> None:
    pair.ask(0, "form", pair.spec(store_host="127.0.0.1", store_port=0))
    with pytest.raises(LaunchError, match="no rendezvous store"):
        pair.answer(0, "form")


def test_dirty_forming_again_and_again_leaks_nothing(world: Ranks) -> None:
    count = (
        "import threading, os\n_ = (len(os.listdir('/proc/self/fd')), threading.active_count(),\n"
        "     len(os.listdir('/proc/self/task')), int(open('/proc/self/statm').read().split()[1]) * 4096)"
    )
    world.form(named={"tp": (0, 1)})
    world.run("g = dist.new_group([0, 1, 2])\nkeep = [1]")
    seen = []
    for _ in range(200):
        _dirty(world)
        world.form(named={"tp": (0, 1)})
        assert world.run("t = torch.ones(1) + rank\ndist.all_reduce(t)\n_ = (t.item(), keep)") == [(10.0, [1])] * 4
        seen.append(world.side(1, count))
    fds, threads, tasks, memory = (max(s[i] for s in seen[100:]) - max(s[i] for s in seen[:100]) for i in range(4))
    assert fds <= 3, seen  # one generation's groups may wait for the collector, at either end
    assert threads <= 1, seen
    assert tasks <= 6, seen
    assert memory < 20e6, seen
    assert world.store.num_keys() < 300  # earlier generations' keys are deleted


def test_ddp_goes_on_training(world: Ranks) -> None:
    world.form()
    step = (
        "optimizer.zero_grad()\nddp(torch.ones(2, 3) * (rank + 1)).sum().backward()\noptimizer.step()\n"
        "_ = (round(model.weight.sum().item(), 5), model.weight.grad[0, 0].item())"
    )
    world.run(
        "from torch.nn.parallel import DistributedDataParallel as DDP\ntorch.manual_seed(0)\n"
        "model = torch.nn.Linear(3, 2)\nddp = DDP(model)\noptimizer = torch.optim.Adam(model.parameters())\n" + step
    )
    for _ in range(3):
        for rank in (1, 2, 3):
            world.ask(rank, "run", step)
        for rank in (1, 2, 3):
            world.until(rank, "at.line == 2")
        assert world.interrupt() < SOON
        for rank in (1, 2, 3):
            world.answer(rank, "done")
        assert world.form()[0].notices == ()
        values = world.run(step)
        assert len(set(values)) == 1
        assert values[0][1] == pytest.approx(5.0)  # mean over ranks of 2 * (rank + 1)


HOLDERS = """
g = dist.new_group([0, 1], group_desc="mine")
world = dist.group.WORLD
in_dict, in_list, in_set = {"a": g}, [[g]], {g}
class Holder: pass
h = Holder(); h.g = g; h.deep = Holder(); h.deep.g = {"x": g}
def closure(g=None):
    kept = world
    return lambda: kept
f = closure()
in_tuple = (g, ("nested", world))
def default(group=g): return group
frozen = frozenset([g])
plain = Holder(); vars(plain); plain.g = g
"""
USE = """
for group in [g, in_dict["a"], in_list[0][0], next(iter(in_set)), h.g, h.deep.g["x"], plain.g, in_tuple[0], default()]:
    if rank < 2:
        t = torch.ones(1); dist.all_reduce(t, group=group); assert t.item() == 2
for group in [world, f(), in_tuple[1][1]]:
    t = torch.ones(1); dist.all_reduce(t, group=group); assert t.item() == 4
_ = dist.get_process_group_ranks(g) if rank < 2 else None
"""


def test_handles_of_groups_go_on_wherever_they_are_kept(world: Ranks) -> None:
    world.form()
    world.run(HOLDERS)
    for _ in range(3):
        _dirty(world)
        reports = world.form()
        assert [r.notices for r in reports] == [(), (), (), ()]
        assert world.run(USE) == [[0, 1], [0, 1], None, None]


def test_mesh_dtensor_and_fsdp_go_on(world: Ranks) -> None:
    world.form(mesh=(("dp", "tp"), (2, 2)))
    world.run(
        "from torch.distributed.tensor import distribute_tensor, Shard, Replicate\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "mine = init_device_mesh('cpu', (2, 2), mesh_dim_names=('a', 'b'))\n"
        "d = distribute_tensor(torch.arange(8.0), mine['a'], [Shard(0)])\n"
        "e = distribute_tensor(torch.arange(8.0), mesh['tp'], [Shard(0)])\n"
        "torch.manual_seed(0)\n"
        "net = fully_shard(torch.nn.Linear(4, 4), mesh=mine['a'])\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net(torch.ones(2, 4)).sum().backward()\noptimizer.step()"
    )
    for _ in range(2):
        _dirty(world)
        assert [r.notices for r in world.form(mesh=(("dp", "tp"), (2, 2)))] == [()] * 4
        values = world.run(
            "optimizer.zero_grad()\nnet(torch.ones(2, 4)).sum().backward()\noptimizer.step()\n"
            "_ = (d.full_tensor().sum().item(), e.full_tensor().sum().item(), mine.get_local_rank('b'),\n"
            "     net.weight.grad.full_tensor().sum().item())"
        )
        assert [v[:2] for v in values] == [(28.0, 28.0)] * 4
        assert [v[2] for v in values] == [0, 1, 0, 1]
        assert all(v[3] == pytest.approx(32.0) for v in values)


def test_groups_keep_torchs_names(world: Ranks) -> None:
    world.form(named={"tp": (0, 1)})
    world.run("g1 = dist.new_group([0, 1])\ng2 = dist.new_group([0, 1, 2, 3])\ng3, _all = dist.new_subgroups(2)")
    names = "from torch.distributed import distributed_c10d as c\n_ = sorted(c._world.pg_names.values())"
    before = world.run(names)
    _dirty(world)
    world.form(named={"tp": (0, 1)})
    assert world.run(names) == before


def test_a_fresh_process_gets_the_same_groups(world: Ranks) -> None:
    world.form()
    world.run("g = dist.new_group([1, 2, 3])\nstate = rank")
    world.kill(2)
    for rank in (0, 1, 3):
        world.ask(rank, "halt", (world.listeners, 5.0))
        assert world.answer(rank, "halt")[0]
    log = world.logs[0]
    world.start(2)
    world.logs[2] = list(log)
    world.form()
    everybody = "t = torch.ones(1)\ndist.all_reduce(t)\nassert t.item() == 4\n"
    kept = everybody + "assert state == rank"
    world.run({0: kept, 1: kept, 2: everybody + "assert 'state' not in globals()", 3: kept})
    fresh = "from torch.distributed import distributed_c10d as c\ng = c._resolve_process_group('1')\n"
    use = "t = torch.ones(1)\ndist.all_reduce(t, group=g)\nassert t.item() == 3"
    world.run({1: use, 3: use, 2: fresh + use})


def test_destroyed_group_stays_destroyed_and_shifts_no_name(pair: Ranks) -> None:
    pair.form()
    pair.run("a = dist.new_group([0, 1])\nb = dist.new_group([0, 1])\ndist.destroy_process_group(a)")
    _dirty(pair)
    pair.form()
    values = pair.run(
        "from torch.distributed import distributed_c10d as c\nt = torch.ones(1)\ndist.all_reduce(t, group=b)\n"
        "_ = (t.item(), b.group_name, sorted(c._world.pg_names.values()))"
    )
    assert values == [(2.0, "2", ["0", "2"])] * 2


def test_init_process_group_in_a_cell(pair: Ranks) -> None:
    pair.form()
    harmless = [
        "dist.init_process_group()",
        "dist.init_process_group('gloo')",
        "dist.init_process_group('gloo', rank=rank, world_size=2)",
        "dist.init_process_group('gloo', init_method='env://')",
        "dist.init_process_group(init_method=f'tcp://10.1.2.3:99?rank={rank}&world_size=2')",
        "from torch.distributed.distributed_c10d import init_process_group as i\ni(backend='cpu:gloo')",
        "dist.destroy_process_group()",
        "dist.destroy_process_group(dist.group.WORLD)",
    ]
    for code in harmless:
        assert pair.run(
            f"import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    "
            f"{code.replace(chr(10), chr(10) + '    ')}\n_ = out.getvalue().count(chr(10))"
        ) == [1, 1]
    for code, what in {
        "dist.init_process_group('nccl')": "backend 'nccl'",
        "dist.init_process_group('gloo', rank=5, world_size=2)": "rank 5",
        "dist.init_process_group('gloo', init_method='env://?rank=0&world_size=8')": "world_size 8",
    }.items():
        pair.ask(1, "run", code)
        kind, text = pair.answer(1, "done")
        assert kind == UsageError.__name__
        assert what in text
        assert "rank 1 of a world of 2" in text
    assert pair.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [2.0, 2.0]
    assert pair.run("_ = (dist.new_group.__name__, bool(dist.new_group.__doc__))") == [("new_group", True)] * 2


def test_users_own_meaning_of_a_name_is_kept(pair: Ranks) -> None:
    pair.form(mesh=(("dp",), (2,)))
    pair.run("device = 'meta'\ngroups = 3\nmesh = 'mine'")
    _dirty(pair)
    pair.form(mesh=(("dp",), (2,)))
    assert pair.run("_ = (device, groups, mesh, rank)") == [("meta", 3, "mine", r) for r in range(2)]


def test_forming_over_pending_work_does_not_wait_for_it(pair: Ranks) -> None:
    pair.form()
    pair.run({0: "pass", 1: "work = dist.all_reduce(torch.ones(2), async_op=True)"})
    began = time.monotonic()
    pair.form()
    assert time.monotonic() - began < 3
    assert pair.run("t = torch.ones(1)\ndist.all_reduce(t)\n_ = t.item()") == [2.0, 2.0]


def test_ranks_end_with_their_parent(pair: Ranks) -> None:
    pids = [p.pid for p in pair.processes]
    pair.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
