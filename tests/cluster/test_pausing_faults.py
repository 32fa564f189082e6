"""What becomes of paused ranks when something is lost: a rank, a node, the controller, or the pause itself.

In each case the pause of those that live on ends as an interrupt does, with every name kept; only the loss of the
controller leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from support import anatomy
from support.cells import ALL_REDUCE
from support.pausing.waits import ended, paused
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

LIMITS = {"agent_grace": 30.0, "interrupt_grace": 3.0, "idle_timeout": 60.0}
STEPS = """
def train(go=False):
    done = []
    try:
        for step in range(1000):
            if step == 2:
                breakpoint()
            if go:
                break
            t = torch.full((2,), float(rank + step))
            dist.all_reduce(t)
            done.append(t[0].item())
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    finally:
        globals()["saved"] = len(done)
    return len(done)
saved = -1
train()
"""


@pytest.fixture(scope="module")
def own(run_traces: Traces) -> Iterator[jdist.Cluster]:
    """Two nodes of two ranks."""
    with jdist.start(2, 2, backend="gloo", name="paused", timeout=120, **LIMITS) as cluster:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0), anatomy.agent(cluster, 1)}
        yield cluster
        run_traces.exempt = before


def pause_training(own: jdist.Cluster) -> jdist.CellRun:
    """A run that is paused on all ranks in its third step; with go = True it ends there."""
    own.run(f"kept = rank\n{ALL_REDUCE}", timeout=30)
    run = own.run(STEPS, background=True)
    paused(run, range(4))
    return run


def check_world(own: jdist.Cluster, fresh: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    found = own.run(f"{ALL_REDUCE}, globals().get('kept'), globals().get('saved', 0) >= 0", timeout=60).values
    assert found == {r: (4.0, None if r in fresh else r, True) for r in range(4)}
    assert not own.status().runs
    assert not own.facts.paused


@pytest.mark.parametrize("inside", [False, True], ids=["paused", "in a cell there"])
def test_a_paused_rank_dies(own: jdist.Cluster, inside: bool) -> None:
    run = pause_training(own)
    inner = own.run("import time\nwhile True: time.sleep(0.01)", background=True) if inside else None
    assert not inner or eventually(lambda: {r.run for r in own.status().ranks} == {inner.number})
    anatomy.kill(anatomy.worker(own, 2))
    assert run.wait(30)
    assert {rank: outcome.kind for rank, outcome in run.outcomes.items()} == {
        r: "lost" if r == 2 else "interrupted" for r in range(4)
    }
    assert not run.paused
    if inner is not None:
        assert inner.wait(30)
        assert {outcome.kind for outcome in inner.outcomes.values()} == {"lost", "interrupted"}
    check_world(own, {2})


def test_a_rank_is_restarted_that_others_are_paused_with(own: jdist.Cluster) -> None:
    run = pause_training(own)
    own.resume(ranks=[1])  # it goes on to the next collective, and waits there
    assert eventually(lambda: run.verdict)
    assert run.verdict is not None
    assert not run.verdict.is_certain
    assert set(run.verdict.responsible) == {0, 2, 3}
    assert "which are paused" in str(run.verdict)
    own.restart("1")
    assert run.wait(30)
    assert run.outcomes[1].kind == "lost"
    assert {run.outcomes[r].kind for r in (0, 2, 3)} == {"interrupted"}
    check_world(own, {1})


def test_an_interrupt_of_a_cell_that_ends_slowly_there(own: jdist.Cluster) -> None:
    """It waits for no rank, so the run that is paused keeps its process groups."""
    run = pause_training(own)
    generation = own.generation
    code = """
import time
def ends_slowly():
    end = None
    while end is None or time.monotonic() < end:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            end = end or time.monotonic() + 1.4
ends_slowly()
"""
    inner = own.run(code, background=True)
    assert eventually(lambda: all("ends_slowly" in own.stack(rank) for rank in range(4)))
    inner.cancel()
    assert inner.wait(30)
    own.run("go = True")
    own.resume()
    assert ended(run) == dict.fromkeys(range(4), 2)
    check_world(own)
    assert own.generation == generation


def test_an_interrupt_of_a_cell_in_a_collective_there(own: jdist.Cluster) -> None:
    """It costs the group its connections: the world is formed again when the run is over, and not before."""
    run = pause_training(own)
    generation = own.generation
    inner = own.run("dist.all_reduce(torch.ones(1)) if rank == 0 else None", background=True)
    assert eventually(lambda: inner.verdict and set(inner.verdict.responsible) == {1, 2, 3}), inner.verdict
    assert "paused" in str(inner.verdict)
    inner.cancel()
    assert inner.wait(30)
    assert inner.outcomes[0].kind == "interrupted"
    assert set(run.paused) == set(range(4)), "the run is paused as before"
    assert own.run("step >= 0", timeout=20).values == dict.fromkeys(range(4), True)
    assert own.generation == generation
    own.run("go = True")
    own.resume()
    assert ended(run) == dict.fromkeys(range(4), 2)
    check_world(own)
    assert own.generation > generation


def test_a_cell_there_that_cannot_be_freed_does_not_cost_its_rank_the_names(own: jdist.Cluster) -> None:
    run = pause_training(own)
    lock = "mutex = bytes(40)\nif rank == 2:\n" + 2 * "    libc.pthread_mutex_lock(mutex)\n"
    own.run("import ctypes\nlibc = ctypes.CDLL(None)")
    inner = own.run(lock, background=True)
    assert eventually(lambda: set(inner.outcomes) == {0, 1, 3})
    assert eventually(lambda: "line 4" in own.stack(2).splitlines()[-2]), own.stack(2)
    own.interrupt()
    assert inner.wait(60)
    assert run.wait(60)
    assert inner.outcomes[2].kind == "lost"
    assert {rank: outcome.kind for rank, outcome in run.outcomes.items()} == {
        r: "lost" if r == 2 else "interrupted" for r in range(4)
    }
    assert own.run(ALL_REDUCE + ", kept, saved", timeout=60).values == {
        r: (4.0, r, -1 if r == 2 else 2) for r in range(4)
    }
    own.run("saved = 0", [2])
    check_world(own)


def test_the_controller_dies(own: jdist.Cluster, run_traces: Traces) -> None:
    """The ranks stay paused, with their frames and a cell that runs there, and go on for whoever waits for the run."""
    run = pause_training(own)
    own.run("mine = rank * 10")
    generation = own.generation
    inner = own.run("import time\nover = False\nwhile not over: time.sleep(0.01)\n'out'", ranks=[3], background=True)
    assert eventually(lambda: own.status().ranks[3].run == inner.number)
    old = anatomy.controller(own)
    run_traces.exempt.discard(old)
    anatomy.kill(old)
    assert eventually(lambda: own.asynchronous.link.is_orphaned or anatomy.controller(own) != old)
    own.revived()
    run_traces.exempt.add(anatomy.controller(own))
    assert eventually(lambda: own.facts.paused == (0, 1, 2, 3))
    assert [(number, state) for number, state, _, _ in own.status().runs] == [
        (run.number, "paused"),
        (inner.number, "running"),
    ]
    assert "train" in str(own.where(range(3)))
    inner.cancel()
    assert inner.wait(30)
    assert set(run.paused) == set(range(4))
    assert own.run("mine").values == {r: 10 * r for r in range(4)}
    own.run("go = True")
    own.resume()
    assert len(set(ended(run).values())) == 1
    assert own.generation == generation, "nothing was formed again"
    check_world(own)


def test_a_node_is_lost(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 2, **LIMITS)
    run = pause_training(own)
    anatomy.kill(anatomy.agent(own, 1))
    assert run.wait(30)
    assert {rank: outcome.kind for rank, outcome in run.outcomes.items()} == {
        r: "lost" if r > 1 else "interrupted" for r in range(4)
    }
    assert not own.facts.paused
    assert own.pull("(kept, saved >= 0)", [0, 1]) == {0: (0, True), 1: (1, True)}
