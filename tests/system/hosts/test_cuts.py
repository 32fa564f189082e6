"""Cables that are pulled: what a cut costs, for a while and for good."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import jdist
from jdist.core.messages.status import Notice
from support.cells import ALL_REDUCE
from support.hosts.namespaces import Bed
from support.waits import eventually

Start = Callable[..., jdist.Cluster]
CUT = 5.0
"""Seconds."""
LOOP = """
import time
for i in range(60):
    t = torch.ones(1)
    dist.all_reduce(t)
    time.sleep(0.05)
t.item()
"""


def pids(cluster: jdist.Cluster) -> dict[int, int]:
    return {r.rank: r.pid for r in cluster.status().ranks}


def listen(cluster: jdist.Cluster) -> list[str]:
    notices: list[str] = []
    cluster.asynchronous.watch(lambda m: notices.append(m.text) if isinstance(m, Notice) else None)
    return notices


def test_a_cut_of_some_seconds_while_idle_loses_nothing(across: Start, hosts: Bed) -> None:
    own = across()
    own.run("kept = rank * 10")
    before, notices = pids(own), listen(own)
    hosts.cut(1)
    began = time.monotonic()
    assert eventually(lambda: own.facts.unreachable == (1,), 10)
    status = own.status()
    assert {r.rank: r.state for r in status.ranks} == {0: "idle", 1: "idle", 2: "unreachable", 3: "unreachable"}
    assert "node 1" in status.silences[0]
    assert own.run("kept", ranks=[0, 1], timeout=10).values == {0: 0, 1: 10}, "the rest is of use meanwhile"
    time.sleep(max(0.0, CUT - (time.monotonic() - began)))
    hosts.heal(1)
    run = own.run(f"{ALL_REDUCE}, kept", timeout=15)
    assert run.values == {r: (4.0, r * 10) for r in range(4)}
    assert pids(own) == before
    assert own.generation == 1
    assert any("node 1" in n and "is unreachable: last heard" in n for n in notices)
    assert any("node 1" in n and "is back" in n for n in notices)


def test_a_cut_of_some_seconds_in_a_cell_loses_neither_output_nor_ends(across: Start, hosts: Bed) -> None:
    own = across()
    before = pids(own)
    code = "import time\nfor i in range(70):\n    print(i, flush=True)\n    time.sleep(0.1)\nrank"
    run = own.run(code, background=True)
    assert eventually(lambda: own.status().ranks[3].last_line)
    hosts.cut(1)
    time.sleep(CUT)
    assert not run.is_done
    hosts.heal(1)
    assert run.wait(15)
    run.check()
    assert run.values == {r: r for r in range(4)}
    assert {r: o.stdout.split() for r, o in run.outcomes.items()} == {r: [str(i) for i in range(70)] for r in range(4)}
    assert own.run(ALL_REDUCE, timeout=15).values == dict.fromkeys(range(4), 4.0)
    assert pids(own) == before
    assert own.generation == 1


def test_a_collective_across_a_cut_of_some_seconds_is_only_late(across: Start, hosts: Bed) -> None:
    own = across()
    run = own.run(LOOP, background=True)
    assert eventually(lambda: run.state == "running")
    hosts.cut(1)
    time.sleep(CUT)
    hosts.heal(1)
    assert run.wait(20)
    assert run.values == dict.fromkeys(range(4), 4.0)
    assert own.generation == 1


def test_a_cut_for_good_loses_the_nodes_ranks_and_an_agent_that_returns_starts_afresh(
    across: Start, hosts: Bed
) -> None:
    own = across(beat_timeout=2.0, node_grace=4.0)
    own.run("kept = rank")
    before = pids(own)
    run = own.run(f"import time\nif rank == 2: time.sleep(100)\n{ALL_REDUCE}", background=True)
    assert eventually(lambda: run.state == "running")
    hosts.cut(1)
    assert run.wait(12)
    with pytest.raises(jdist.RankLost, match=r"node 1 .* is gone: last heard 4 s ago"):
        run.check()
    assert {r: o.kind for r, o in run.outcomes.items()} == {0: "interrupted", 1: "interrupted", 2: "lost", 3: "lost"}
    with pytest.raises(jdist.UsageError, match="node 1"):
        own.run("1")
    assert own.pull("kept", ranks=[0, 1]) == {0: 0, 1: 1}
    hosts.heal(1)
    assert eventually(lambda: own.facts.phase == "ready", 15)
    found = own.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=15).values
    assert found == {0: (4.0, 0), 1: (4.0, 1), 2: (4.0, None), 3: (4.0, None)}
    after = pids(own)
    assert {r for r in after if after[r] != before[r]} == {2, 3}
    assert {r.rank for r in own.status().ranks if r.fresh} == {2, 3}


def test_a_slow_cable_costs_time_only(across: Start, hosts: Bed) -> None:
    own = across()
    before = pids(own)
    hosts.slow(1, rate="2mbit")
    own.push(x=bytes(500_000))
    assert own.run(f"{ALL_REDUCE}, len(x)", timeout=20).values == dict.fromkeys(range(4), (4.0, 500_000))
    assert pids(own) == before
    assert own.facts.unreachable == ()
