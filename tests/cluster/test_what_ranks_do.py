"""What ranks of a real cluster say they are doing; what their agent says for one that cannot."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import jdist
from jdist.client.threads import bridge
from jdist.core.messages.observation import GetTrace, Observation
from support import anatomy
from support.waits import eventually

LONG = 20.0
HOG = """
import math, re, time
began = time.thread_time()
re.match(r'(a+)+$', 'a' * 18 + 'b')
seconds = time.thread_time() - began
re.match(r'(a+)+$', 'a' * (18 + math.ceil(math.log2(3 / seconds))) + 'b')
"""
"""One call that holds the GIL for 3 s or a little more: a letter doubles its time."""


@pytest.fixture(scope="module")
def own(run_traces: Any) -> Iterator[jdist.Cluster]:
    """What it forks ahead while it is idle is left by no test."""
    with jdist.start(nproc_per_node=2, timeout=60, idle_timeout=60) as found:
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(found), anatomy.agent(found, 0)}
        yield found
        run_traces.exempt = before


def test_a_rank_in_a_collective_and_one_between_cells(own: jdist.Cluster) -> None:
    run = own.run("import torch.distributed as dist\ndist.barrier()", ranks=[0], background=True)
    assert eventually(lambda: own.look([0], LONG)[0].doing.calls)
    looks = own.look(timeout=LONG)
    assert (looks[0].doing.kind, looks[0].doing.op, looks[0].doing.line) == ("collective", "barrier", 2)
    assert (looks[0].run, looks[1].run) == (run.number, 0)
    assert looks[1].doing.kind == "idle"
    assert looks[0].groups[0].begun == looks[1].groups[0].begun + 1
    own.interrupt()
    run.wait(30)


def test_a_stopped_worker_is_spoken_for(own: jdist.Cluster) -> None:
    pid = own.run("import os\nos.getpid()", ranks=[1]).values[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        looks = own.look(timeout=LONG)
        assert looks[1].doing.kind == "silent"
        assert looks[1].doing.state == f"stopped by a signal (SIGSTOP); kill -CONT {pid} lets it go on"
        assert looks[1].rss > 0
        assert looks[0].doing.kind == "idle"
        assert time.monotonic() - began < LONG  # before the question itself is given up
    finally:
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: own.look([1], LONG)[1].doing.kind == "idle")


def test_a_worker_that_holds_the_gil_is_spoken_for(own: jdist.Cluster) -> None:
    run = own.run(HOG, ranks=[0], background=True)
    seen: list[Observation] = []
    state = "C code holds the interpreter lock at cell line "
    assert eventually(lambda: seen.append(own.look([0], LONG)[0]) or seen[-1].doing.state.startswith(state)), seen
    doing = seen[-1].doing
    assert (doing.kind, doing.cpu is not None) == ("silent", True)
    run.wait(60)
    assert eventually(lambda: own.look([0], LONG)[0].doing.kind == "idle")


def test_a_traceback_shows_torchs_functions_only(own: jdist.Cluster) -> None:
    run = own.run("import torch.distributed as dist\ndist.all_reduce('no tensor')", ranks=[0], check=False)
    error = run.outcomes[0].error
    assert error is not None
    text = "\n".join(error.traceback)
    assert "all_reduce" in text
    assert "notes.py" not in text
    assert "skipping hidden" not in text


def test_a_trace_comes_from_a_real_cell(own: jdist.Cluster) -> None:
    run = own.run("t = torch.ones(2)\ndist.all_reduce(t)\ndist.barrier()")
    answers = bridge().call(own.asynchronous.link.query((0, 1), GetTrace(run.number), 10.0))
    for traced in answers.values():
        assert [(c.op, c.line, c.is_done) for c in traced.calls] == [("all_reduce", 2, True), ("barrier", 3, True)]
        assert traced.run == run.number
