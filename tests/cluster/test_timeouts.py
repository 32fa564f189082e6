"""Deadlines and interrupts: whatever a cell is stuck in, it ends in time, and everything else is as it was."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable

import pytest

import jdist
from support.waits import eventually

WORLD = range(4)
STUCK = {
    "a loop": "while True: pass",
    "sleep": "import time; time.sleep(100)",
    "a loop that swallows every Exception": (
        "import time\nwhile True:\n    try:\n        time.sleep(0.01)\n    except Exception:\n        pass"
    ),
    "a loop of collectives that swallows every Exception": (
        "while rank:\n    try:\n        dist.all_reduce(torch.ones(1))\n    except Exception:\n        pass"
    ),
    "an await": "import asyncio; await asyncio.sleep(100)",
    "all_reduce that one rank never enters": "if rank != 1: dist.all_reduce(torch.ones(2))",
    "all_reduce that one rank enters late": (
        "import time\nif rank == 1: time.sleep(100)\ndist.all_reduce(torch.ones(2))"
    ),
    "barrier": "if rank: dist.barrier()",
    "recv from a rank": "if rank == 1: dist.recv(torch.ones(2), src=0)",
    "recv from any": "if rank == 2: dist.recv(torch.ones(2))",
    "irecv": "if rank == 3: dist.irecv(torch.ones(2), src=0).wait()",
    "store.wait": "dist.distributed_c10d._get_default_store().wait(['nobody sets this'])",
    "new_group half entered": "if rank > 1: dist.new_group([0, 1, 2, 3])",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '100'])",
}
MODEL = """
torch.manual_seed(0)
kept = torch.arange(4.0) + rank
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
before = {k: v.clone() for k, v in model.state_dict().items()}
steps = [s["step"].item() for s in optimizer.state.values()]
ids = id(kept), id(model), id(optimizer)
"""
INTACT = """
_r = torch.tensor([rank + 1.0])
dist.all_reduce(_r)
(_r.item(), torch.equal(kept, torch.arange(4.0) + rank), ids == (id(kept), id(model), id(optimizer)),
 all(torch.equal(v, before[k]) for k, v in model.state_dict().items()),
 steps == [s["step"].item() for s in optimizer.state.values()])
"""
ALL_INTACT = dict.fromkeys(WORLD, (10.0, True, True, True, True))
TIMEOUT = 0.5
TOLERANCE = 20.0  # Far less than what a stuck cell takes by itself; whether a rank was replaced is looked at.


def timed_out(cluster: jdist.Cluster, code: str, timeout: float = TIMEOUT) -> jdist.CellTimeout:
    began = time.monotonic()
    with pytest.raises(jdist.CellTimeout) as caught:
        cluster.run(code, timeout=timeout)
    assert time.monotonic() - began < timeout + TOLERANCE
    return caught.value


@pytest.mark.parametrize("name", STUCK)
def test_a_stuck_cell_ends_at_its_deadline_and_all_is_intact(cluster: jdist.Cluster, name: str) -> None:
    cluster.run(MODEL)
    generation, processes = cluster.generation, [r.pid for r in cluster.status().ranks]
    error = timed_out(cluster, STUCK[name])
    assert "every namespace is kept" in str(error)
    assert {o.kind for o in error.outcomes.values()} <= {"timeout", "value"}
    assert cluster.run(INTACT, timeout=20).values == ALL_INTACT
    assert cluster.generation > generation
    assert [r.pid for r in cluster.status().ranks] == processes


def test_ddp_backward_with_one_rank_missing(cluster: jdist.Cluster) -> None:
    cluster.run(
        "torch.manual_seed(1)\n"
        "ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))\n"
        "sgd = torch.optim.SGD(ddp.parameters(), lr=0.1)\n"
        "def step():\n"
        "    sgd.zero_grad()\n"
        "    ddp(torch.full((8, 64), rank + 1.0)).square().mean().backward()\n"
        "    sgd.step()\n"
        "step()",
        timeout=60,
    )
    timed_out(cluster, "if rank != 2: step()")
    run = cluster.run("step(); ddp.module.weight.sum().item()", timeout=30)
    assert len(set(run.values.values())) == 1


HOOKS = """
from torch.nn.parallel import DistributedDataParallel as DDP
kept = rank

def divides(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / world_size)

def waits_inside(state, bucket):  # more than one bucket blocks both of gloo's threads, with torchrun as well
    def again(done):
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0] / world_size
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

def calls_inside(state, bucket):
    def again(done):
        dist.all_reduce(done.value()[0])
        return done.value()[0]
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

def make(hook):
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    made = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    made.register_comm_hook(None, hook)
    return made

def step(hooked):
    hooked.zero_grad()
    hooked(torch.ones(2, 64)).square().mean().backward()
    return hooked.module[0].weight.grad.sum().item()
"""


@pytest.mark.parametrize("hook", ["divides", "waits_inside", "calls_inside"])
def test_a_communication_hook_is_ended_whatever_its_callbacks_wait_for(cluster: jdist.Cluster, hook: str) -> None:
    cluster.run(HOOKS, timeout=30)
    pids = [r.pid for r in cluster.status().ranks]
    cluster.run(f"hooked = make({hook})", timeout=30)
    timed_out(cluster, "step(hooked)\nif rank != 2: step(hooked)")
    assert len(set(cluster.run("hooked = make(divides); step(hooked)", timeout=30).values.values())) == 1
    assert cluster.run("kept", timeout=20).values == {r: r for r in WORLD}
    assert [r.pid for r in cluster.status().ranks] == pids


STEPS = {
    "FSDP, the first": """
from torch.distributed.fsdp import FullyShardedDataParallel
torch.manual_seed(0)
cpu = torch.device("cpu")
inner = FullyShardedDataParallel(torch.nn.Linear(8, 16), device_id=cpu)
whole = FullyShardedDataParallel(torch.nn.Sequential(inner, torch.nn.Linear(16, 1)), device_id=cpu)
sgd = torch.optim.SGD(whole.parameters(), lr=0.01)
def step():
    sgd.zero_grad()
    loss = whole(torch.ones(2, 8)).square().mean()
    loss.backward()
    sgd.step()
    return loss.item()
""",
    "a pipeline": """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
torch.manual_seed(rank)
part = torch.nn.Linear(8, 8)
stage = PipelineStage(part, rank, world_size, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, lambda y, t: (y - t).square().mean())
def step():
    part.zero_grad()
    given = {0: {"target": None}, world_size - 1: {"target": torch.zeros(8, 8)}}.get(rank, {})
    schedule.step(*([torch.ones(8, 8)] if rank == 0 else []), **given)
    return part.weight.grad.sum().item()
""",
}


@pytest.mark.parametrize("absent", [0, 2])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_was_cut_off_leaves_a_library_fit_for_the_next(
    cluster: jdist.Cluster, name: str, absent: int
) -> None:
    expected = cluster.run(f"{STEPS[name]}\n[step() for _ in range(3)][-1]", timeout=60).values
    cluster.run(STEPS[name], timeout=60)
    timed_out(cluster, f"if rank != {absent}: step()", 1.0)  # the first, in which there is more to set up
    cluster.run("step()", timeout=20)
    timed_out(cluster, f"if rank != {absent}: step()", 1.0)
    cluster.run(f"{STEPS[name]}\nstep()", timeout=60)
    for _ in range(3):  # at any moment of a step
        timed_out(cluster, "while True: step()")
        cluster.run("step()", timeout=20)
    cluster.run(f"{STEPS[name]}\nstep()", timeout=60)
    assert cluster.run("[step() for _ in range(2)][-1]", timeout=20).values == pytest.approx(expected)


def test_handles_of_groups_made_in_cells_go_on_working(cluster: jdist.Cluster) -> None:
    cluster.run("pairs = dist.new_group([0, 1]); held = dist.group.WORLD")
    timed_out(cluster, "if rank: dist.barrier()")
    code = (
        "a = torch.ones(1); dist.all_reduce(a, group=held)\n"
        "b = torch.ones(1)\n"
        "if rank < 2: dist.all_reduce(b, group=pairs)\n"
        "a.item(), b.item()"
    )
    assert cluster.run(code, timeout=20).values == {0: (4.0, 2.0), 1: (4.0, 2.0), 2: (4.0, 1.0), 3: (4.0, 1.0)}


def test_a_cell_in_time_is_not_touched(cluster: jdist.Cluster) -> None:
    generation = cluster.generation
    assert cluster.run("import time; time.sleep(0.2); rank", timeout=5).values == {r: r for r in WORLD}
    time.sleep(0.1)
    assert cluster.generation == generation


def test_ranks_that_finished_keep_their_values(cluster: jdist.Cluster) -> None:
    error = timed_out(cluster, "import time\nif rank == 3: time.sleep(100)\nrank", 4.0)  # enough for the others
    assert error.values == {0: 0, 1: 1, 2: 2}
    assert error.outcomes[3].kind == "timeout"


def test_time_in_the_queue_does_not_count(cluster: jdist.Cluster) -> None:
    first = cluster.run("import time; time.sleep(3.5)", background=True)
    assert cluster.run("rank", timeout=3.0).values == {r: r for r in WORLD}
    assert first.is_done


def test_interrupt_of_one_run_leaves_the_others(cluster: jdist.Cluster) -> None:
    stays = cluster.run("import time\ngoes = True\nwhile goes: time.sleep(0.01)\nrank", ranks=[0], background=True)
    goes = cluster.run("import time; time.sleep(100)", ranks=[1], background=True)
    assert eventually(lambda: goes.state == stays.state == "running")
    assert eventually(lambda: "while goes" in cluster.stack(0))
    cluster.interrupt([1])
    assert goes.wait(60)
    assert goes.outcomes[1].kind == "interrupted"
    assert not stays.is_done
    cluster.push(goes=False)
    assert stays.wait(60)
    assert stays.values == {0: 0}


def test_interrupt_with_nothing_running_kills_nobody(cluster: jdist.Cluster) -> None:
    pids = [r.pid for r in cluster.status().ranks]
    cluster.interrupt()
    assert cluster.run("rank", timeout=10).values == {r: r for r in WORLD}
    assert [r.pid for r in cluster.status().ranks] == pids


def test_a_cell_sent_right_after_an_interrupt_runs_on_every_rank(cluster: jdist.Cluster) -> None:
    for _ in range(5):
        run = cluster.run("while True: pass", background=True)
        assert eventually(lambda run=run: run.state == "running")
        run.cancel()
        after = cluster.run("t = torch.ones(1); dist.all_reduce(t); t.item()", timeout=20)
        assert after.values == dict.fromkeys(WORLD, 4.0)
        assert run.is_done


CATCHING = {
    "finally": "try:\n    dist.barrier() if rank else time.sleep(100)\nfinally:\n    save()",
    "except": "try:\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    save()",
    "a context": (
        "import contextlib\n@contextlib.contextmanager\ndef saving():\n    try: yield\n    finally: save()\n"
        "with saving():\n    dist.barrier() if rank else time.sleep(100)"
    ),
    "a cell that awaits": "import asyncio\ntry:\n    await asyncio.sleep(100)\nfinally:\n    save()",
    "code after the handler": "try:\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    pass\nsave()",
}
SAVE = """
import time
saved = 0
def save():
    global saved
    end = time.monotonic() + 2.5
    while time.monotonic() < end: time.sleep(0.01)
    saved += 1
"""
NUMBERS = itertools.count()


def interrupted(cluster: jdist.Cluster, code: str) -> tuple[jdist.CellRun, list[str]]:
    """A run that was interrupted once, and the notices that come."""
    in_it = f"in it {next(NUMBERS)}"  # of this run: a rank's last line outlives its cell
    said = f"print({in_it!r})"
    code = re.sub(r"^(try|with .*):\n    ", rf"\g<0>{said}\n    ", f"{SAVE}\n{code}", count=1, flags=re.MULTILINE)
    run = cluster.run(code if said in code else f"{said}\n{code}", background=True)
    assert eventually(lambda: all(rank.last_line == in_it for rank in cluster.status().ranks))
    notices: list[str] = []
    cluster.asynchronous.watch(lambda m: notices.append(getattr(m, "text", "")))
    run.cancel()
    return run, notices


@pytest.mark.parametrize("name", CATCHING)
def test_the_cells_own_handler_of_an_interrupt_finishes(cluster: jdist.Cluster, name: str) -> None:
    run, notices = interrupted(cluster, CATCHING[name])
    assert run.wait(20)
    assert cluster.run("saved").values == dict.fromkeys(WORLD, 1)
    assert any("interrupt again to cut it off" in text for text in notices)


STUBBORN = {
    "an endless handler": "try:\n    time.sleep(100)\nfinally:\n    while True: time.sleep(0.01)",
    "one that swallows everything": (
        "try:\n    time.sleep(100)\nfinally:\n    while True:\n        try: time.sleep(0.01)\n        except: pass"
    ),
}


@pytest.mark.parametrize("name", STUBBORN)
def test_a_second_interrupt_ends_handlers_as_well(cluster: jdist.Cluster, name: str) -> None:
    pids = [r.pid for r in cluster.status().ranks]
    run, notices = interrupted(cluster, STUBBORN[name])
    assert eventually(lambda: any("handling the interrupt" in text for text in notices))
    run.cancel()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    assert cluster.run("saved").values == dict.fromkeys(WORLD, 0)
    assert [r.pid for r in cluster.status().ranks] == pids


SWALLOWING = {
    "and goes on with collectives": "while rank:\n    try: dist.all_reduce(torch.ones(1))\n    except: pass",
    "in a destructor": (
        "class Slow:\n    def __del__(self): time.sleep(1)\nslow = Slow()\ndel slow\ndist.barrier() if rank else 0"
    ),
    "in a collective of its handler": "try:\n    dist.barrier() if rank else 0\nfinally:\n    dist.barrier()",
}


@pytest.mark.parametrize("name", SWALLOWING)
def test_an_interrupt_that_is_lost_is_raised_again_at_once(cluster: jdist.Cluster, name: str) -> None:
    pids = [r.pid for r in cluster.status().ranks]
    run, _ = interrupted(cluster, SWALLOWING[name])
    assert run.wait(20)
    assert cluster.run("t = torch.ones(1); dist.all_reduce(t); t.item()").values == dict.fromkeys(WORLD, 4.0)
    assert [r.pid for r in cluster.status().ranks] == pids


def test_a_command_that_reads_finds_the_end_of_its_input(cluster: jdist.Cluster) -> None:
    run = cluster.run("name = 'value'\n!cat; echo $name", ranks=[0], timeout=20)
    assert run.outcomes[0].stdout.split() == ["value"]


def test_interrupting_many_times_does_no_harm(cluster: jdist.Cluster) -> None:
    run = cluster.run("kept_here = rank\nprint('in it')\nwhile True: pass", background=True)
    assert eventually(lambda: all(rank.last_line == "in it" for rank in cluster.status().ranks))
    for _ in range(20):
        run.cancel()
    assert run.wait(60)
    cluster.interrupt()
    assert cluster.run("kept_here", timeout=10).values == {r: r for r in WORLD}


def test_a_rank_held_by_c_code_is_replaced_after_its_grace(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(3, 1, interrupt_grace=3.0)
    own.run("mine = rank + 5")
    pids = {r.rank: r.pid for r in own.status().ranks}
    began = time.monotonic()
    with pytest.raises(jdist.RankLost) as caught:
        own.run("if rank == 1: sum(range(10**11))\ndist.barrier()", timeout=0.5)
    assert time.monotonic() - began < 0.5 + 3.0 + TOLERANCE
    assert "rank 1" in str(caught.value)
    assert caught.value.outcomes[1].kind == "lost"
    assert {caught.value.outcomes[r].kind for r in (0, 2)} == {"timeout"}
    run = own.run("t = torch.ones(1); dist.all_reduce(t); t.item(), globals().get('mine')", timeout=30)
    assert run.values == {0: (3.0, 5), 1: (3.0, None), 2: (3.0, 7)}
    rows = {r.rank: r for r in own.status().ranks}
    assert {r: row.fresh for r, row in rows.items()} == {0: False, 1: True, 2: False}
    assert {r for r in rows if rows[r].pid != pids[r]} == {1}
