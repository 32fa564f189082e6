"""Warm: what an idle node imports ahead, that no cell is disturbed by it, and that nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import jdist
from support import anatomy
from support.cells import ALL_REDUCE
from support.waits import eventually

HAS = "import sys; 'torch._dynamo' in sys.modules"
LONG = 60.0
"""Seconds for the imports on a busy machine."""


def called(agent: int, name: str) -> list[int]:
    """The agent's children of this name."""
    return [p for p in (c.pid for c in psutil.Process(agent).children()) if comm(p) == name]


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def replace(cluster: jdist.Cluster, rank: int) -> int:
    """Kill the rank; its successor's pid."""
    pid = anatomy.worker(cluster, rank)
    anatomy.kill(pid)
    assert eventually(lambda: anatomy.worker(cluster, rank) not in (0, pid), LONG), cluster.facts
    return anatomy.worker(cluster, rank)


def test_a_warm_forkserver_takes_the_place_of_the_first(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 1, warm=True)
    agent = anatomy.agent(own, 0)
    (first,) = called(agent, "jdist-fork")
    (coming,) = eventually(lambda: called(agent, "jdist-warm"), LONG)
    run = own.run("import time\nwhile True: time.sleep(0.01)", background=True)
    assert eventually(lambda: anatomy.status(coming) == psutil.STATUS_STOPPED), "it works while a cell runs"
    run.cancel()
    assert eventually(lambda: called(agent, "jdist-fork") == [coming], LONG)
    assert not anatomy.lives(first)
    assert anatomy.status(coming) != psutil.STATUS_STOPPED
    assert own.run(HAS, timeout=20).values == {0: False, 1: False}
    replace(own, 1)
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    assert own.run(HAS, timeout=20).values == {0: False, 1: True}
    anatomy.kill(coming)
    replace(own, 0)
    assert own.run(ALL_REDUCE, timeout=40).values == {0: 2.0, 1: 2.0}
    assert eventually(lambda: called(agent, "jdist-warm"), LONG), "the next forkserver is warmed up, too"


def test_a_child_that_is_forked_ahead_takes_a_lost_ranks_place(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 1, warm=False)
    agent = anatomy.agent(own, 0)
    (coming,) = eventually(lambda: called(agent, "jdist-next"), LONG)
    assert replace(own, 1) == coming
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    (coming,) = eventually(lambda: called(agent, "jdist-next"), LONG)
    anatomy.kill(coming)
    assert replace(own, 1) != coming
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    (coming,) = eventually(lambda: called(agent, "jdist-next"), LONG)
    (server,) = called(agent, "jdist-fork")
    anatomy.kill(server)
    assert eventually(lambda: not anatomy.lives(coming)), "it has nobody who could tell it what to be"
    replace(own, 0)
    assert own.run(ALL_REDUCE, timeout=40).values == {0: 2.0, 1: 2.0}


def test_a_spare_becomes_the_next_worker_where_nothing_is_forked(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 1, fork=False, warm=True)
    agent = anatomy.agent(own, 0)
    (spare,) = eventually(lambda: called(agent, "jdist-spare"), LONG)
    assert replace(own, 1) == spare
    assert own.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    assert own.run(HAS, ranks=[1]).values == {1: True}
    (spare,) = eventually(lambda: called(agent, "jdist-spare"), LONG)
    anatomy.kill(spare)
    assert replace(own, 1) != spare
    assert own.run(ALL_REDUCE, timeout=40).values == {0: 2.0, 1: 2.0}


@pytest.mark.parametrize("fork", [True, False])
def test_it_can_be_turned_off(fresh_cluster: Callable[..., jdist.Cluster], fork: bool) -> None:
    own = fresh_cluster(1, 1, fork=fork, warm=False)
    later = fresh_cluster(1, 1, fork=fork, warm=True)
    kind = "jdist-warm" if fork else "jdist-spare"
    assert eventually(lambda: called(anatomy.agent(later, 0), kind), LONG)
    # The first node has been idle for longer than the second, which has begun.
    assert not called(anatomy.agent(own, 0), "jdist-warm")
    assert not called(anatomy.agent(own, 0), "jdist-spare")


def test_a_cluster_that_stops_while_it_warms_up(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    """The fixture looks for what is left."""
    own = fresh_cluster(1, 1, warm=True)
    agent = anatomy.agent(own, 0)
    (coming,) = eventually(lambda: called(agent, "jdist-warm"), LONG)
    own.stop()
    assert not anatomy.lives(coming)
