"""Cells in the paused frames of a real cluster read and write names, fail, and are interrupted by themselves."""

from __future__ import annotations

import pytest

import jdist
from jdist.core.messages.status import Notice
from support.pausing.waits import ALL, ended, everywhere, paused
from support.waits import eventually


@pytest.fixture(autouse=True)
def _ended(left_running: None) -> None:
    """See ``left_running``."""


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


THREAD = """
import sys, threading, traceback
over = threading.Event()
def work(mine):
    breakpoint()
threading.Thread(target=work, args=(rank,)).start()
"""


def test_a_cell_in_the_frame_of_a_thread_ends_before_the_cell_around_it(cluster: jdist.Cluster) -> None:
    """Also the value of each is its own, and so are the names that they assign."""
    run = cluster.run(f"{THREAD}while not over.is_set(): pass\nown = 1\n'own'", background=True, timeout=60)
    paused(run, ALL)
    inner = (
        "over.set()\n"
        "def main(): return traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])\n"
        "while any(frame.line == 'while not over.is_set(): pass' for frame in main()): pass\n"
        "mine"
    )
    assert cluster.run(inner, timeout=30).values == {r: r for r in ALL}
    assert ended(run) == everywhere("own")
    assert cluster.run("own").values == everywhere(1)


def test_an_interrupt_while_a_thread_is_paused_reaches_the_main_thread_at_once(cluster: jdist.Cluster) -> None:
    run = cluster.run(f"{THREAD}while True: pass", background=True, timeout=60)
    paused(run, ALL)
    notices: list[str] = []
    unwatch = cluster.asynchronous.watch(lambda m: notices.append(m.text) if isinstance(m, Notice) else None)
    cluster.interrupt()
    assert run.wait(60)
    unwatch()
    assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    caught = [text for text in notices if "after the cell caught the interrupt" in text]
    assert not caught, "the interrupt of the thread counts as one of the main thread"


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
    with pytest.raises(jdist.CellError, match=r"SyntaxError|_IncompleteInputError"):  # the latter from Python 3.13 on
        cluster.run("x = (1,")
    cluster.resume()
    assert ended(run) == everywhere(2)


def test_a_pause_that_is_asked_for_behind_a_continue(cluster: jdist.Cluster) -> None:
    """The rank resumes only when the cell in its frame has ended; it pauses again then."""
    code = "import time\ndef f(over=False):\n    breakpoint()\n    while not over: time.sleep(0.01)\nf()"
    run = cluster.run(code, background=True, timeout=60)
    paused(run, ALL)
    inner = cluster.run("while True: pass", background=True)
    assert eventually(lambda: {r.run for r in cluster.status().ranks} == {inner.number})
    cluster.resume(timeout=0.1)
    cluster.pause(timeout=0.1)
    inner.cancel()
    assert inner.wait(60)
    assert {at.reason for at in paused(run, ALL).values()} == {"request"}
    cluster.run("over = True")
    cluster.resume()
    assert ended(run) == everywhere(None)


@pytest.mark.parametrize("code", ["1 / 0", "1 +", "import sys; sys.exit(3)", "while True: pass"])
def test_what_fails_in_a_frame_does_not_keep_it_alive(cluster: jdist.Cluster, code: str) -> None:
    """Its tensors would take up memory for as long as the run lasts."""
    train = """
import gc, weakref
def f():
    t = torch.ones(3)
    refs.append(weakref.ref(t))
    breakpoint()
refs = []
f()
gc.collect()
refs[0]() is None
"""
    run = cluster.run(train, background=True, timeout=60)
    paused(run, ALL)
    inner = cluster.run(code, background=True)
    if "while" in code:
        assert eventually(lambda: {r.run for r in cluster.status().ranks} == {inner.number})
        inner.cancel()
    assert inner.wait(60)
    cluster.resume()
    assert ended(run) == everywhere(True)


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
    run = cluster.run("def f():\n    breakpoint()\n    while True: pass\nf()", background=True, timeout=3.0)
    paused(run, ALL)
    with pytest.raises(jdist.CellTimeout):
        cluster.run("while True: pass", timeout=3.5)
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
