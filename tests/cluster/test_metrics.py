"""``jdist.log`` on real ranks: every point arrives before the cell is over, whatever becomes of the cell."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import jdist
from support.waits import eventually

FreshCluster = Callable[..., jdist.Cluster]


def rows(metrics: object, name: str, rank: int) -> list[tuple[int, float]]:
    return [(step, value) for step, r, n, value, _ in metrics if (r, n) == (rank, name)]  # type: ignore[attr-defined]


def test_the_points_of_all_ranks_are_there_and_in_order_when_the_cell_is_over(cluster: jdist.Cluster) -> None:
    run = cluster.run(
        """
import jdist
for i in range(1000):
    jdist.log(loss=torch.tensor(i + rank / 10), lr=0.1, step=2 * i)
"""
    )
    for rank in range(4):
        assert rows(run.metrics, "loss", rank) == [(2 * i, pytest.approx(i + rank / 10)) for i in range(1000)]
        assert rows(run.metrics, "lr", rank) == [(2 * i, 0.1) for i in range(1000)]
    times = [time for *_, time in run.metrics]
    assert max(times) - min(times) < 60
    assert cluster.metrics().run == cluster.metrics(run.number).run == run.number
    assert len(cluster.metrics()) == 8000


def test_what_was_logged_is_seen_while_the_cell_runs(cluster: jdist.Cluster) -> None:
    run = cluster.run("import jdist, time\njdist.log(loss=1.0)\nwhile True: time.sleep(0.01)", background=True)
    try:
        assert eventually(lambda: run.metrics.ranks == [0, 1, 2, 3])
        assert not run.is_done
    finally:
        run.cancel()
        run.wait(60)


def test_nan_is_marked_and_a_cell_that_fails_keeps_its_points(cluster: jdist.Cluster) -> None:
    run = cluster.run(
        """
import jdist
for i in range(40):
    jdist.log(loss=float("nan") if rank == 3 and i >= 12 else 1.0)
1 / 0
""",
        check=False,
    )
    assert all(outcome.kind == "error" for outcome in run.outcomes.values())
    assert run.metrics.marks == ["rank 3: loss is NaN since step 12"]
    assert [step for step, value in rows(run.metrics, "loss", 3) if math.isnan(value)] == list(range(12, 40))


def test_threads_log_during_a_cell_and_after_it(cluster: jdist.Cluster, tmp_path: Path) -> None:
    run = cluster.run(
        """
import jdist, os, threading, time
go_on = threading.Event()
def work():
    jdist.log(early=1.0)
    arrived.set()
    go_on.wait(60)
    jdist.log(late=2.0)
arrived = threading.Event()
thread = threading.Thread(target=work)
thread.start()
arrived.wait(60)
"""
    )
    assert run.metrics.names == ["early"]
    again = cluster.run("go_on.set(); thread.join(60)")
    assert again.metrics.names == ["late"], "it belongs to the cell that runs"
    cluster.run(
        "go_on.clear(); arrived.clear(); thread = threading.Thread(target=work); thread.start(); arrived.wait()"
    )
    is_over = tmp_path / "is_over"
    waits = f"def go_on_then():\n    while not os.path.exists({str(is_over)!r}): time.sleep(0.01)\n    go_on.set()"
    cluster.run(f"{waits}\nthreading.Thread(target=go_on_then).start()", ranks=[1])
    last = cluster.run("pass", ranks=[1])
    is_over.touch()
    assert eventually(lambda: rows(last.metrics, "late", 1) == [(0, 2.0)]), "or to the last one"
    cluster.run("go_on.set(); thread.join(60)")


def test_a_cell_in_a_paused_frame_has_metrics_of_its_own(cluster: jdist.Cluster) -> None:
    run = cluster.run("import jdist\njdist.log(loss=1.0)\nbreakpoint()\njdist.log(loss=2.0)", background=True)
    assert run.wait_paused(60)
    assert eventually(lambda: len(run.paused) == 4)
    inner = cluster.run("import jdist; jdist.log(loss=10.0)")
    cluster.resume()
    assert run.wait(60)
    assert [rows(run.metrics, "loss", rank) for rank in range(4)] == [[(0, 1.0), (1, 2.0)]] * 4
    assert rows(inner.metrics, "loss", 0) == [(0, 10.0)]


def test_a_forked_child_logs_nothing(cluster: jdist.Cluster) -> None:
    run = cluster.run(
        """
import jdist, os
pid = os.fork()
if pid == 0:
    jdist.log(child=1.0)
    os._exit(0)
jdist.log(parent=1.0)
assert os.waitpid(pid, 0)[1] == 0
"""
    )
    assert run.metrics.names == ["parent"]


def test_what_is_no_number_fails_the_cell_at_its_line(cluster: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellError, match=r"cell line 3: .*loss is a tensor of shape \[3\], not one number"):
        cluster.run("import jdist\njdist.log(loss=1)\njdist.log(loss=torch.ones(3))")
    assert len(cluster.metrics()) == 4


def test_the_points_of_a_rank_that_dies_stay(fresh_cluster: FreshCluster) -> None:
    cluster = fresh_cluster(2)
    run = cluster.run(
        """
import jdist, os, signal, time
for i in range(50):
    jdist.log(loss=float(i))
    if rank == 0 and i == 25:
        dist.barrier()
while rank == 1:
    time.sleep(0.01)
""",
        background=True,
    )
    ends = [(25, 25.0)], [(49, 49.0)]
    assert eventually(lambda: all(rows(run.metrics, "loss", rank)[-1:] == ends[rank] for rank in (0, 1)))
    os.kill(cluster.status().ranks[1].pid, signal.SIGKILL)
    assert run.wait(60)
    assert run.outcomes[1].kind == "lost"
    assert rows(run.metrics, "loss", 1) == [(i, float(i)) for i in range(50)]
    assert run.metrics.marks == ["rank 0: loss is at step 25, 24 behind the other ranks"]
