"""What real nodes and ranks use over time: by rank and node, with the runs of that time, and where a node is silent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

import jdist
from jdist.client.measure.resources import Resources
from support.waits import eventually

WORKS = """
import time
end = time.process_time() + 0.5
while rank == 1 and time.process_time() < end:
    pass
"""


def test_who_works_and_when(cluster: jdist.Cluster) -> None:
    run = cluster.run(WORKS)

    def measured() -> bool:
        ranks = cluster.resources(60, 60).ranks
        return set(ranks) == {0, 1, 2, 3} and sum(v for v in ranks[1].series.get("cpu", ()) if v > 0) > 0.2

    assert eventually(measured)
    found = cluster.resources(60, 60)
    assert not found.missing
    assert {n: u.hostname for n, u in found.nodes.items()} == dict(enumerate(cluster.topology.hostnames))
    assert [found.ranks[rank].node for rank in range(4)] == [0, 0, 1, 1]
    assert all(10e6 < rank.series["memory"][-1] < found.nodes[0].memory for rank in found.ranks.values())
    (span,) = [each for each in found.runs if each.run == run.number]
    assert span.ranks == (0, 1, 2, 3)
    assert span.ended is not None
    assert span.began - span.ended >= 0.4
    going_on = cluster.run("input_of_nobody = [dist.recv(torch.zeros(1), 0) if rank == 1 else None]", background=True)
    assert eventually(lambda: any(r.run == going_on.number and r.ended is None for r in cluster.resources(60).runs))
    going_on.cancel()
    assert going_on.wait(60)


def test_senseless_questions(cluster: jdist.Cluster) -> None:
    for seconds, points in ((0, 10), (-1, 10), (60, 0), (float("nan"), 10), (1e6, 10)):
        with pytest.raises(jdist.UsageError, match="at most 7200"):
            cluster.resources(seconds, points)
    with pytest.raises(jdist.UsageError, match="points: 1 to 2000"):
        cluster.resources(60, 5000)


def test_a_silent_node_is_missing(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    cluster = fresh_cluster(1, 2)
    assert eventually(lambda: set(cluster.resources(60).ranks) == {0, 1})
    (pid,) = cluster.run("import os\nos.getppid()", ranks=[1]).values.values()
    os.kill(pid, signal.SIGSTOP)
    try:
        answers: list[Resources] = []

        def is_missing() -> bool:
            answers.append(cluster.resources(60, timeout=1.0))
            return set(answers[-1].missing) == {1}

        assert eventually(is_missing)
        found = answers[-1]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert set(found.ranks) == {0}
    assert "no answer" in found.missing[1] or "unreachable" in found.missing[1]
    assert "node 1 is left out" in repr(found)
