"""Ranks of a real cluster are paused wherever they are, cells run in their frames, and they go on."""

from __future__ import annotations

from pathlib import Path

import pytest

import jdist
from support.pausing.pausing import pausing
from support.pausing.waits import ALL, ended, everywhere, paused
from support.waits import eventually

PROGRAMS = 4
"""``python -m support.pausing.pausing`` runs as many as asked."""


@pytest.fixture(autouse=True)
def _ended(left_running: None) -> None:
    """See ``left_running``."""


# ---------------------------------------------------------------- where ranks are paused

LOOP = """
import time
def spin(is_over=False):
    rounds = 0
    while not is_over:
        rounds += 1
    return rounds > 0, is_over
spin()
"""


def test_in_a_python_loop(cluster: jdist.Cluster) -> None:
    run = cluster.run(LOOP, background=True)
    assert eventually(
        lambda: [(o.run, o.doing.line in (4, 5)) for o in cluster.look().values()] == [(run.number, True)] * 4
    )
    cluster.pause()
    for rank, at in paused(run, ALL).items():
        assert (at.rank, at.run, at.reason, at.thread) == (rank, run.number, "request", "")
        assert (at.at.function, at.at.file, at.at.run) == ("spin", "", run.number)
        assert at.at.line in (4, 5)
    before = cluster.run("rounds").values
    assert set(before) == set(ALL)
    assert cluster.run("rounds").values == before, "the loop stands still"
    assert cluster.run("is_over = 'yes'\nrounds = 0\nis_over").values == everywhere("yes")
    cluster.resume()
    assert ended(run) == everywhere((True, "yes"))


def test_at_the_level_of_the_cell(cluster: jdist.Cluster) -> None:
    """Its names are those of the namespace, in which also other cells find what one of them has assigned."""
    run = cluster.run("n = 0\nwhile n >= 0: n += 1\nn", background=True)
    assert eventually(lambda: [(o.run, o.doing.line) for o in cluster.look().values()] == [(run.number, 2)] * 4)
    cluster.pause()
    assert {p.at.function for p in paused(run, ALL).values()} == {"<cell>"}
    cluster.run("n = -100; found = 1")
    assert cluster.pull("n") == everywhere(-100)
    cluster.resume()
    assert set(ended(run).values()) <= {-100, -99}
    assert cluster.run("found").values == everywhere(1)


def test_in_a_collective(cluster: jdist.Cluster) -> None:
    """Ranks that wait in one for a paused rank stay there, and pause when it is over."""
    code = """
def meet(go=False):
    t = torch.ones(2)
    while rank == 3 and not go:
        pass
    dist.all_reduce(t)
    return t.tolist()
meet()
"""
    run = cluster.run(code, background=True)
    assert eventually(lambda: [look.doing.kind for look in cluster.look(range(3)).values()] == ["collective"] * 3)
    assert eventually(lambda: any(f"line {at}" in cluster.stack(3).splitlines()[-2] for at in (3, 4)))
    cluster.pause()
    paused(run, [3])
    ranks = {r.rank: r for r in cluster.status().ranks}
    assert [(ranks[r].paused is not None, ranks[r].is_pausing) for r in ALL] == [*[(False, True)] * 3, (True, False)]
    verdict = eventually(lambda: run.verdict)
    assert not verdict.is_certain
    assert "paused" in str(verdict)
    cluster.run("go = True", ranks=[3])
    cluster.resume(ranks=[3])
    assert {p.at.function for p in paused(run, range(3)).values()} == {"meet"}
    assert cluster.run("t.tolist()").values == {r: [4.0, 4.0] for r in range(3)}
    cluster.resume()
    assert ended(run) == everywhere([4.0, 4.0])
    assert run.verdict is None


def test_in_a_hook_of_the_backward_pass(cluster: jdist.Cluster) -> None:
    code = """
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
def double(grad):
    scale = 2.0
    if rank in (1, 2):
        breakpoint()
    return grad * scale
hidden = torch.ones(3, 2, requires_grad=True)
hidden.register_hook(double)
net(hidden).sum().backward()
hidden.grad.sum().item() / net.module.weight.sum().item()
"""
    run = cluster.run(code, background=True)
    found = paused(run, [1, 2])
    assert {(p.at.function, p.at.line, p.reason) for p in found.values()} == {("double", 5, "breakpoint")}
    assert cluster.run("tuple(grad.shape), scale").values == {1: ((3, 2), 2.0), 2: ((3, 2), 2.0)}
    cluster.run("scale = 10.0")
    cluster.resume()
    assert {rank: round(value) for rank, value in ended(run).items()} == {0: 6, 1: 30, 2: 30, 3: 6}


def test_in_another_thread_of_the_cell(cluster: jdist.Cluster) -> None:
    code = """
import threading
def work(n):
    breakpoint()
    done.append(n)
done = []
thread = threading.Thread(target=work, args=(1,), name="worker-of-mine")
thread.start()
thread.join()
done
"""
    run = cluster.run(code, background=True)
    assert {p.thread for p in paused(run, ALL).values()} == {"worker-of-mine"}
    there = cluster.run("n = 5; threading.current_thread().name")
    assert there.values == everywhere("worker-of-mine")
    cluster.resume()
    assert ended(run) == everywhere([5])


def test_in_the_parent_of_a_data_loaders_workers(cluster: jdist.Cluster) -> None:
    code = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 3:
            breakpoint()
        return torch.tensor(float(index))
def load(is_held=True):
    total = 0.0
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2):
        total += batch.sum().item()
        while is_held:
            pass
    return total
load()
"""
    run = cluster.run(code, background=True)
    assert eventually(lambda: all("while is_held" in s or " pass" in s for s in map(cluster.stack, ALL)))
    cluster.pause()
    paused(run, ALL)
    assert cluster.run("batch.tolist()").values == everywhere([0.0, 1.0, 2.0, 3.0])
    cluster.run("is_held = False")
    cluster.resume()
    assert ended(run) == everywhere(780.0)
    assert all("only ranks can be paused" in o.stderr for o in run.outcomes.values()), (
        "a worker says why it does not pause"
    )


def test_in_a_script(cluster: jdist.Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "def train(steps, is_over=False):\n"
        "    step = 0\n"
        "    while not is_over:\n"
        "        step = (step + 1) % steps\n"
        "    t = torch.ones(1)\n"
        "    dist.all_reduce(t)\n"
        "    return t.item()\n"
        "print('total', train(int(sys.argv[1])))\n"
    )
    run = cluster.run(f"%run {script} 10", background=True)
    assert eventually(lambda: all("in train" in cluster.stack(rank) for rank in ALL))
    cluster.pause()
    for at in paused(run, ALL).values():
        assert (at.at.function, at.at.file, at.at.run) == ("train", str(script), 0)
    assert cluster.run("steps, 0 <= step < 10, dist.get_rank() == rank").values == everywhere((10, True, True))
    cluster.run("is_over = True")
    cluster.resume()
    ended(run)
    assert {o.stdout.strip() for o in run.outcomes.values()} == {"total 4.0"}


def test_in_code_that_is_seldom_at_a_line_of_its_own(cluster: jdist.Cluster) -> None:
    """It prints, or it waits in Python's own modules, which hold locks elsewhere."""
    code = """
import asyncio, queue, threading, time
def begin():
    global has_begun
    has_begun = True
def prints(over=False):
    begin()
    while not over:
        print("x" * 10)
    return over
def gets(over=False):
    numbers = queue.Queue()
    begin()
    while not over:
        try:
            numbers.get(timeout=1)
        except queue.Empty:
            pass
    return over
def joins(over=False):
    thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    thread.start()
    begin()
    while not over:
        thread.join(1)
    return over
async def awaits(over=False):
    begin()
    while not over:
        await asyncio.sleep(0.01)
    return over
found = [prints, gets, joins, awaits][rank]()
await found if rank == 3 else found
"""
    run = cluster.run(code, background=True)
    assert eventually(lambda: cluster.pull("'has_begun' in globals()") == everywhere(True))
    for is_over in (False, True):
        cluster.pause()
        assert {r: p.at.function for r, p in paused(run, ALL).items()} == {
            0: "prints",
            1: "gets",
            2: "joins",
            3: "awaits",
        }
        outcomes = cluster.run(f"print('here'); over = {is_over}").outcomes
        assert {o.stdout for o in outcomes.values()} == {"here\n"}
        cluster.resume()
    assert ended(run) == everywhere(True)


def test_in_tasks_of_the_event_loop(cluster: jdist.Cluster) -> None:
    """Their stacks begin with their own code; an interrupt cancels the cell, and the loop goes on."""
    code = """
import asyncio
saved = []
async def work(k):
    try:
        await asyncio.sleep(0)
        breakpoint()
        await asyncio.sleep(60)
    finally:
        saved.append(k)
await asyncio.gather(work(1), work(2))
"""
    cluster.run("globals().pop('_', None)")  # a loop of another test's over `_` keeps IPython from setting it
    run = cluster.run(code, background=True)
    paused(run, ALL)
    assert {tuple(f.function for f in s.frames) for s in cluster.where().values()} == {("work",)}
    assert cluster.run("k + 1").values == everywhere(2)
    cluster.interrupt()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    assert cluster.run("sorted(saved)").values == everywhere([1, 2])
    assert cluster.run("_").values == everywhere([1, 2]), "the last value, also after one of a cell in a frame"


def test_in_a_sleep_and_in_a_wait_for_a_lock(cluster: jdist.Cluster) -> None:
    """Both are waits in C that a signal ends."""
    run = cluster.run(
        "import time, threading\nlock = threading.Lock()\nlock.acquire()\n"
        "def rest():\n    (time.sleep(30) if rank % 2 else lock.acquire(timeout=30))\nrest()",
        background=True,
    )
    assert eventually(lambda: all("rest" in cluster.stack(rank) for rank in ALL))
    cluster.pause()
    assert {p.at.function for p in paused(run, ALL).values()} == {"rest"}
    cluster.interrupt()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}


# ---------------------------------------------------------------- random programs


@pytest.mark.timeout(300)
def test_random_programs_give_what_they_give_unpaused(cluster: jdist.Cluster) -> None:
    reports = list(pausing(cluster, 1, PROGRAMS))
    wrong = [f"program {n}: {'; '.join(r.wrong)}" for n, r in enumerate(reports) if r.wrong]
    assert not wrong, "\n".join(wrong)
    assert sum(r.pauses.total() for r in reports) >= PROGRAMS
