"""Traces of real runs: who is charged with whose waiting, what is drawn of a rank that never comes, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import jdist
from support.waits import eventually

SLEEP = 1.0
"""Far more than what a busy machine holds up a rank."""
SLOW = f"""import time
t = torch.ones(16)
dist.barrier()
if rank == 2:
    time.sleep({SLEEP})
dist.all_reduce(t)
"""
MESSAGE = f"""import time
t = torch.ones(8)
dist.barrier()
if rank == 0:
    time.sleep({SLEEP})
    dist.send(t, 3, tag=5)
if rank == 3:
    dist.recv(t, 0, tag=5)
"""
TRAIN = f"""import time
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(torch.nn.Linear(8, 8))
dist.barrier()
if rank == 1:
    time.sleep({SLEEP})
net(torch.ones(2, 8)).sum().backward()
"""

SCRIPT = """import torch
import torch.distributed as dist
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
def step():
    dist.barrier()
    net(torch.ones(2, 8)).sum().backward()
step()
"""


def test_a_rank_that_sleeps_is_charged_with_what_the_others_waited(cluster: jdist.Cluster) -> None:
    run = cluster.run(SLOW)
    trace = cluster.trace()
    assert trace.run == run.number
    assert trace.calls.keys() == {0, 1, 2, 3}
    assert all([c.op for c in calls] == ["barrier", "all_reduce"] for calls in trace.calls.values())
    waited = {row.rank: row.bars[1].waited for row in trace.report.timeline.rows}
    assert all(waited[r] > SLEEP / 2 for r in (0, 1, 3))
    assert waited[2] == 0
    assert trace.caused[2] >= sum(waited.values()) * 0.9
    assert max(trace.caused, key=lambda r: trace.caused[r]) == 2
    assert sum(trace.caused.values()) == pytest.approx(sum(trace.suffered.values()))
    (made,) = {(c[1].shapes, c[1].dtypes, c[1].line) for c in trace.calls.values()}
    assert made == (((16,),), ("float32",), 6)
    assert "all_reduce" in repr(trace)
    assert "of world at cell line 6" in repr(trace)
    ET.fromstring(trace._repr_svg_())


def test_calls_of_a_script_are_at_its_own_lines(cluster: jdist.Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    cluster.run_script(str(tmp_path / "train.py"))
    for calls in cluster.trace().calls.values():
        assert [(c.op, c.place) for c in calls[-2:]] == [
            ("barrier", "train.py line 5"),
            ("all_reduce", "train.py line 6"),
        ]
    cluster.run("dist.barrier()")
    assert {c.place for calls in cluster.trace().calls.values() for c in calls} == {"cell line 1"}


def test_two_nodes_of_one_host_need_no_correction(cluster: jdist.Cluster) -> None:
    cluster.run(SLOW)
    assert cluster.trace().report.timeline.clocks.error == 0


def test_a_recv_waits_for_its_send(cluster: jdist.Cluster) -> None:
    cluster.run(MESSAGE)
    receiver = cluster.trace().report.timeline.rows[3].bars[-1]
    assert (receiver.call.op, receiver.call.peer, receiver.call.tag) == ("recv", 0, 5)
    assert receiver.waited > SLEEP / 2
    assert [rank for rank, _ in receiver.charged] == [0]


def test_training_waits_for_the_slowest_rank(cluster: jdist.Cluster, tmp_path: Path) -> None:
    """DDP's own all_reduce is called in C++, and its end is not seen."""
    cluster.run(TRAIN, timeout=60)
    trace = cluster.trace()
    backward = {row.rank: row.bars[-1] for row in trace.report.timeline.rows}  # what it took to wrap is another matter
    caused = [(seconds, rank) for r in (0, 2, 3) for rank, seconds in backward[r].charged]
    assert max(caused)[1] == 1
    assert all(backward[r].waited > SLEEP / 2 for r in (0, 2, 3))
    assert "≈" in repr(trace)
    assert {calls[-1].line for calls in trace.calls.values()} == {7}, "that of backward()"
    check_loadable(trace, tmp_path)


def check_loadable(trace: jdist.Trace, folder: Path) -> None:
    """By the Trace Event Format: what each kind of event must have, and that those of a thread nest."""
    found = json.loads(trace.save(folder / "t.json").read_text())
    needs = {"X": {"ts", "dur", "cat"}, "M": {"args"}, "s": {"ts", "id", "cat"}, "f": {"ts", "id", "cat", "bp"}}
    open_until: dict[tuple[int, int], list[float]] = {}
    for e in sorted(found["traceEvents"], key=lambda e: (e.get("ts", -1.0), -e.get("dur", 0.0))):
        assert {"name", "ph", "pid", "tid"} | needs[e["ph"]] <= e.keys()
        assert isinstance(e["pid"], int)
        assert isinstance(e["tid"], int)
        assert isinstance(e["name"], str)
        assert e.get("ts", 0) >= 0
        if e["ph"] == "X":
            around = open_until.setdefault((e["pid"], e["tid"]), [])
            begin, end = round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_an_earlier_run_and_one_that_nobody_knows(cluster: jdist.Cluster) -> None:
    first = cluster.run("dist.barrier()").number
    cluster.run("1", ranks=[0])
    assert cluster.trace().report.elsewhere == (1, 2, 3)
    assert {r: len(c) for r, c in cluster.trace(first).calls.items()} == dict.fromkeys(range(4), 1)
    with pytest.raises(jdist.UsageError, match="nothing is known of run 99999"):
        cluster.trace(99999)


def test_while_it_runs_and_a_rank_has_not_come(cluster: jdist.Cluster) -> None:
    cell = "import time\ndist.barrier()\nif rank:\n    dist.barrier()\nelse:\n    time.sleep(60)"
    run = cluster.run(cell, background=True)

    def in_second() -> jdist.Trace | None:
        try:
            trace = cluster.trace(run.number)
        except jdist.UsageError:  # no rank has begun yet
            return None
        return trace if all(len(trace.calls.get(r, ())) == 2 for r in (1, 2, 3)) else None

    try:
        trace = eventually(in_second, timeout=30)
        assert all(row.bars[1].missing == (0,) for row in trace.report.timeline.rows[1:])
        assert trace.report.timeline.rows[1].bars[1].is_open
        assert trace.caused[0] > 0
        assert "so far" in repr(trace)
    finally:
        cluster.interrupt()
        assert run.wait(30)


def test_the_command(cluster: jdist.Cluster, tmp_path: Path) -> None:
    cluster.run(SLOW)
    words = [sys.executable, "-m", "jdist", "trace", "--cluster", cluster.name, "--save", str(tmp_path / "t.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "made others wait" in done.stdout
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e["name"] == "all_reduce" and e["ph"] == "X" for e in events) == 4
