"""Ranks of a real cluster are paused wherever they are, cells run in their frames, and they go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import jdist
from support.pausing.pausing import pausing
from support.pausing.waits import ended, paused
from support.waits import eventually

ALL = range(4)
PROGRAMS = 4
"""``python -m support.pausing.pausing`` runs as many as asked."""


@pytest.fixture(autouse=True)
def _ended(cluster: jdist.Cluster) -> Iterator[None]:
    """A test that fails leaves no rank paused."""
    yield
    if cluster.status().runs:
        cluster.interrupt()
        assert eventually(lambda: not cluster.status().runs)


def everywhere(value: object) -> dict[int, object]:
    return dict.fromkeys(ALL, value)


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
    assert eventually(lambda: {r.run for r in cluster.status().ranks} == {run.number})
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
    assert eventually(lambda: cluster.pull("globals().get('n', -1)", [3])[3] > 0)
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
    assert eventually(lambda: all(look.doing.kind == "collective" for look in cluster.look(range(3)).values()))
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
    assert all("goes on past the breakpoint" in o.stderr for o in run.outcomes.values()), "a worker says why it goes on"


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


# ---------------------------------------------------------------- cells in the paused frames


def test_names_of_every_kind(cluster: jdist.Cluster) -> None:
    """Local ones, those of enclosing functions, those that an inner function shares, and new ones."""
    code = """
total = 1
def outer(argument):
    shared, enclosed = [1], 2
    def inner(own, *rest, key=3, **more):
        local = enclosed + own
        def innermost():
            return shared
        breakpoint()
        return own, rest, key, more, local, enclosed, innermost()
    return inner(4, 5, key=6, word=7), argument, enclosed, shared
outer("a")
"""
    run = cluster.run(code, background=True)
    paused(run, ALL)
    seen = cluster.run("own, rest, key, more, local, enclosed, shared, total").values
    assert seen == everywhere((4, (5,), 6, {"word": 7}, 6, 2, [1], 1))
    assert cluster.run("sum(own + local for _ in range(2)), (lambda: key)()").values == everywhere((20, 6))
    cluster.run("own, key, local, enclosed, shared, total, new = 40, 60, 70, 20, ['x'], 10, [9]")
    cluster.run("new.append(own); rest += (50,)")
    assert cluster.pull("(new, enclosed)") == everywhere(([9, 40], 20))
    cluster.run("key = 61")
    cluster.resume()
    inner = (40, (5, 50), 61, {"word": 7}, 70, 20, ["x"])
    assert ended(run) == everywhere((inner, "a", 20, ["x"]))
    assert cluster.run("total, 'new' in globals(), 'own' in globals()").values == everywhere((10, False, False))


def test_output_that_the_paused_code_redirects(cluster: jdist.Cluster) -> None:
    """Cells in the frame write to the cell's own output, and the paused code goes on as it was."""
    run = cluster.run(
        "import contextlib, io\nkept = io.StringIO()\nprint('before')\n"
        "with contextlib.redirect_stdout(kept):\n    print('one')\n    breakpoint()\n    print('two')\n"
        "print('after')\nkept.getvalue()",
        background=True,
    )
    paused(run, ALL)
    there = cluster.run("print('there')")
    assert {o.stdout for o in there.outcomes.values()} == {"there\n"}
    cluster.resume()
    assert ended(run) == everywhere("one\ntwo\n")
    assert {o.stdout for o in run.outcomes.values()} == {"before\nafter\n"}
    assert {o.stderr for o in run.outcomes.values()} == {""}


def test_a_thread_that_its_cell_leaves_behind_goes_on(cluster: jdist.Cluster) -> None:
    run = cluster.run(
        "import sys, threading, traceback\nover = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (breakpoint(), over.set()))\nthread.start()\n"
        "while '_hold' not in str(traceback.extract_stack(sys._current_frames()[thread.ident])): pass\nnumber = 1",
        background=True,
    )
    assert run.wait(60)
    assert cluster.run("over.wait(30)", timeout=60).values == everywhere(True)
    assert cluster.run("thread.join(30); number").values == everywhere(1)
    assert not cluster.status().runs


def test_what_fails_in_a_frame_ends_itself_only(cluster: jdist.Cluster) -> None:
    run = cluster.run("def f(x):\n    breakpoint()\n    return x\nf(1)", background=True, timeout=60)
    paused(run, ALL)
    with pytest.raises(jdist.CellError, match="ZeroDivisionError"):
        cluster.run("x = 2\n1 / 0")
    with pytest.raises(jdist.CellError, match="await"):
        cluster.run("import asyncio\nawait asyncio.sleep(0)")
    with pytest.raises(jdist.CellTimeout):
        cluster.run("while True: pass", timeout=0.3)
    endless = cluster.run("while True: pass", background=True)
    assert eventually(lambda: {r.run for r in cluster.status().ranks} == {endless.number})
    endless.cancel()
    assert endless.wait(60)
    assert {o.kind for o in endless.outcomes.values()} == {"interrupted"}
    assert set(paused(run, ALL)) == set(ALL), "the run that is paused has not been interrupted"
    assert cluster.run("t = torch.tensor([x]); dist.all_reduce(t); t.item()").values == everywhere(8)
    cluster.resume()
    assert ended(run) == everywhere(2)


def test_an_interrupt_raises_where_it_is_paused(cluster: jdist.Cluster) -> None:
    code = """
saved = []
def f(x):
    try:
        breakpoint()
    finally:
        saved.append(x)
f(1)
"""
    run = cluster.run(code, background=True)
    paused(run, ALL)
    cluster.run("x = 2")
    cluster.interrupt()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    assert run.paused == {}
    assert cluster.run("saved").values == everywhere([2])


def test_a_deadline_stands_still(cluster: jdist.Cluster) -> None:
    run = cluster.run("def f():\n    breakpoint()\n    while True: pass\nf()", background=True, timeout=1.0)
    paused(run, ALL)
    with pytest.raises(jdist.CellTimeout):
        cluster.run("while True: pass", timeout=1.5)
    assert set(paused(run, ALL)) == set(ALL)
    cluster.resume()
    assert run.wait(60)
    assert {o.kind for o in run.outcomes.values()} == {"timeout"}


def test_other_ranks_and_other_clients(cluster: jdist.Cluster) -> None:
    """A cell for ranks that are not paused waits; without ranks it is for the paused ones; each client may go on."""
    run = cluster.run(
        "def f(x=0):\n    if rank == 1: breakpoint()\n    dist.barrier()\n    return x\nf()", background=True
    )
    paused(run, [1])
    waiting = cluster.run("rank", ranks=[2], background=True)
    assert cluster.run("x = 1; rank").values == {1: 1}
    assert not waiting.is_done
    other = jdist.attach(cluster.name)
    try:
        (facts,) = [r for r in other.status().ranks if r.paused is not None]
        assert (facts.rank, facts.paused.at.line) == (1, 2)
        other.resume()
    finally:
        other.detach()
    assert ended(run) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert ended(waiting) == {2: 2}


# ---------------------------------------------------------------- random programs


@pytest.mark.timeout(300)
def test_random_programs_give_what_they_give_unpaused(cluster: jdist.Cluster) -> None:
    reports = list(pausing(cluster, 1, PROGRAMS))
    wrong = [f"program {n}: {'; '.join(r.wrong)}" for n, r in enumerate(reports) if r.wrong]
    assert not wrong, "\n".join(wrong)
    assert sum(r.pauses.total() for r in reports) >= PROGRAMS
