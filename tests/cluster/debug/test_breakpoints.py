"""Breakpoints in cells: every call that enters a debugger pauses its rank, where names are read and changed."""

from __future__ import annotations

import pytest

import jdist
from support.pauses import finished, paused, places
from support.waits import eventually

FUNCTION = """\
import IPython.core.debugger, jdist, pdb, threading
import torch.distributed as dist
def f(a):
    b = a * 10
    {}
    return b
f(rank + 1)
"""


@pytest.mark.parametrize(
    ("call", "ranks"),
    [
        ("breakpoint()", range(4)),
        ("pdb.set_trace()", range(4)),
        ("pdb.Pdb().set_trace()", [0, 1, 2, 3]),
        ("IPython.core.debugger.set_trace()", [0, 1, 2, 3]),
        ("dist.breakpoint()", [0]),
        ("dist.breakpoint(rank=2)", [2]),
        ("jdist.breakpoint(when=b > 20)", [2, 3]),
        ("jdist.breakpoint(torch.tensor(b) > 10, ranks='0-1,3')", [1, 3]),
        ("if rank == 3: breakpoint()", [3]),
    ],
)
def test_every_call_that_enters_a_debugger_pauses(cluster: jdist.Cluster, call: str, ranks: list[int]) -> None:
    run = paused(cluster, FUNCTION.format(call), ranks)
    assert places(run) == dict.fromkeys(ranks, "f:5")
    assert {(at.reason, at.at.source, at.thread) for at in run.paused.values()} == {("breakpoint", call, "")}
    assert cluster.run("a, b, rank").values == {r: (r + 1, r * 10 + 10, r) for r in ranks}
    cluster.run("b += 1; new = b", ranks=ranks[-1])
    assert cluster.run("new", ranks=ranks[-1]).values == {ranks[-1]: ranks[-1] * 10 + 11}
    assert finished(cluster, run) == {r: (r + 1) * 10 + (r == ranks[-1]) for r in range(4)}
    assert cluster.run("'new' in globals()").values == dict.fromkeys(range(4), False)


def test_a_loop_pauses_each_time_it_comes_there(cluster: jdist.Cluster) -> None:
    run = paused(cluster, "total = 0\nfor i in range(3):\n    breakpoint()\n    total += i\ntotal", range(4))
    for i in range(3):
        assert eventually(lambda: set(run.paused) == set(range(4)))
        assert cluster.run("i").values == dict.fromkeys(range(4), i)
        if i == 1:
            cluster.run("total += 100")
        cluster.resume(timeout=5)
    assert run.wait(30)
    assert run.values == dict.fromkeys(range(4), 103)


def test_a_thread_of_the_cell_pauses_and_says_which(cluster: jdist.Cluster) -> None:
    code = """\
import threading
def work():
    mine = rank * 2
    breakpoint()
    results.append(mine)
results = []
thread = threading.Thread(target=work, name='the worker')
thread.start()
thread.join()
results
"""
    run = paused(cluster, code, [1, 2], on=[1, 2])
    assert {at.thread for at in run.paused.values()} == {"the worker"}
    assert cluster.run("mine = mine + 1; import threading; threading.current_thread().name, mine").values == {
        1: ("the worker", 3),
        2: ("the worker", 5),
    }
    assert finished(cluster, run) == {1: [3], 2: [5]}


def test_hooks_of_the_backward_pass_pause(cluster: jdist.Cluster) -> None:
    code = """\
x = torch.ones(3, requires_grad=True)
def hook(grad):
    breakpoint()
    return grad
y = x * 2
y.register_hook(hook)
y.sum().backward()
x.grad.tolist()
"""
    run = paused(cluster, code, range(4))
    assert places(run) == dict.fromkeys(range(4), "hook:3")
    cluster.run("grad = grad * 5", ranks=1)
    assert finished(cluster, run) == {r: [10.0 if r == 1 else 2.0] * 3 for r in range(4)}


def test_children_of_a_rank_go_on_and_say_so(cluster: jdist.Cluster) -> None:
    code = """\
from torch.utils.data import DataLoader
class Numbers:
    def __len__(self):
        return 2
    def __getitem__(self, i):
        breakpoint()
        return i
[b.tolist() for b in DataLoader(Numbers(), num_workers=1)]
"""
    run = cluster.run(code, ranks=2, timeout=60)
    assert run.values == {2: [[0], [1]]}
    said = "ignored the breakpoint at Numbers.__getitem__, line 6 in a child process"
    assert said in run.outcomes[2].stderr


def test_a_step_does_not_stop_children_that_it_forks(cluster: jdist.Cluster) -> None:
    """They inherit its trace function, and nobody could resume them."""
    code = """\
import multiprocessing, sys
def work(queue):
    mine = rank * 2
    queue.put((mine, sys.gettrace() is None))
queue = multiprocessing.get_context("fork").SimpleQueue()
child = multiprocessing.get_context("fork").Process(target=work, args=(queue,))
breakpoint()
child.start()
found = queue.get()
child.join()
found
"""
    run = paused(cluster, code, [1, 2], on=[1, 2])
    for line in (8, 9, 10):
        cluster.resume("step")
        assert eventually(lambda line=line: places(run) == dict.fromkeys([1, 2], f"<cell>:{line}"))
    assert finished(cluster, run) == {r: (2 * r, True) for r in (1, 2)}


def test_breakpoints_can_be_turned_off_and_do_nothing_between_cells(cluster: jdist.Cluster) -> None:
    code = "import os\nos.environ['PYTHONBREAKPOINT'] = '0'\nbreakpoint()\ndel os.environ['PYTHONBREAKPOINT']\nrank"
    assert cluster.run(code, timeout=60).values == {r: r for r in range(4)}


def test_code_whose_output_is_captured_pauses_and_cells_there_show_theirs(cluster: jdist.Cluster) -> None:
    code = """\
%%capture out
import contextlib, io
text = io.StringIO()
with contextlib.redirect_stdout(text):
    breakpoint()
    print("redirected")
display("captured")
5
"""
    run = paused(cluster, code, range(4))
    inner = cluster.run("print('looked'); display('seen'); rank", timeout=60)
    assert inner.values == {r: r for r in range(4)}
    assert {o.stdout for o in inner.outcomes.values()} == {"looked\n"}
    for at in ("<cell>:5", "<cell>:3", "<cell>:6"):  # the end of the block is in its first line
        cluster.resume("next")
        assert eventually(lambda at=at: set(places(run).values()) == {at}), places(run)  # type: ignore[misc]
    finished(cluster, run)
    found = cluster.run("text.getvalue(), out.stdout, len(out.outputs)", timeout=60).values
    assert found == dict.fromkeys(range(4), ("redirected\n", "", 2))


def test_a_breakpoint_in_a_cell_that_runs_in_a_frame_is_passed(cluster: jdist.Cluster) -> None:
    run = paused(cluster, "breakpoint()\n1", [0], on=[0])
    inner = cluster.run("def g():\n    breakpoint()\n    return 7\ng()", ranks=0, timeout=60)
    assert inner.values == {0: 7}
    assert "breakpoint" in inner.outcomes[0].stderr
    assert finished(cluster, run) == {0: 1}
