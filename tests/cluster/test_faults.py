"""kill -9 of each process, in each phase: who is told what, what goes on, and that nothing is left.

What survives a loss (a worker's, the forkserver's, the store's, a client's) is tried on one cluster, phase by phase.
What ends the cluster takes one each.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import jdist
from jdist.client import find
from jdist.wire.transport.keys import charter_path, connection_path
from support import anatomy
from support.cells import ALL_REDUCE
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces
from support.phases import AGENT_GRACE, BIG, CELL, COLLECTIVE, LIMITS, PHASES, SLACK, Phase, are_in_cell, kill_worker


@pytest.fixture(scope="module")
def surviving(run_traces: Traces) -> Iterator[jdist.Cluster]:
    """Two ranks on one node."""
    with jdist.start(2, 1, backend="gloo", name="surviving", timeout=60, **LIMITS) as cluster:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.controller(cluster), anatomy.agent(cluster, 0)}
        yield cluster
        run_traces.exempt = before


# ---------------------------------------------------------------- a worker


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker(surviving: jdist.Cluster, phase: str, rank: int) -> None:
    cluster = surviving
    cluster.run(f"kept = rank + 1\n{BIG}", timeout=20)
    pids = {r.rank: r.pid for r in cluster.status().ranks}
    notices: list[str] = []
    unwatch = cluster.asynchronous.watch(lambda m: notices.append(getattr(m, "text", "")))
    during = Phase(cluster, phase)
    during.kill(pids[rank])
    assert eventually(lambda: pids[rank] not in {r.pid for r in cluster.status().ranks})
    run = cluster.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=20)
    unwatch()
    assert run.values == {r: (2.0, None if r == rank else r + 1) for r in (0, 1)}
    rows = {r.rank: r for r in cluster.status().ranks}
    assert rows[rank].fresh
    assert rows[rank].pid != pids[rank]
    assert rows[1 - rank].pid == pids[1 - rank]
    if phase in ("cell", "collective"):
        assert isinstance(during.error, jdist.RankLost)
        assert f"rank {rank}" in str(during.error)
        assert "SIGKILL" in str(during.error)
        assert during.run is not None
        assert {r: o.kind for r, o in during.run.outcomes.items()} == {rank: "lost", 1 - rank: "interrupted"}
    elif phase == "idle":
        assert any(f"rank {rank}" in n and "SIGKILL" in n for n in notices)
    elif during.error is not None:  # else its bytes had left before it died
        assert isinstance(during.error, jdist.ValueFailed)
        assert f"rank {rank}" in str(during.error)
        assert during.error.values[1 - rank].shape == (1 << 26,)


def test_both_workers_at_once(surviving: jdist.Cluster) -> None:
    run = surviving.run(CELL, background=True)
    assert eventually(lambda: are_in_cell(surviving))
    pids, agent = [anatomy.worker(surviving, rank) for rank in (0, 1)], psutil.Process(anatomy.agent(surviving, 0))
    agent.suspend()  # else it may report the first death, for which the other rank is interrupted, before the second
    for pid in pids:
        anatomy.kill(pid)
    agent.resume()
    assert run.wait(SLACK)
    assert {o.kind for o in run.outcomes.values()} == {"lost"}
    assert surviving.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}


def test_a_worker_that_ends_itself(surviving: jdist.Cluster) -> None:
    with pytest.raises(jdist.RankLost, match="exited with code 7"):
        surviving.run("import os\nif rank == 1: os._exit(7)\ndist.barrier()", timeout=20)
    assert surviving.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}


def test_a_cell_sent_in_the_moment_of_a_death_runs_once_the_rank_is_replaced(surviving: jdist.Cluster) -> None:
    notices: list[str] = []
    unwatch = surviving.asynchronous.watch(lambda m: notices.append(getattr(m, "text", "")))
    agent = psutil.Process(anatomy.agent(surviving, 0))
    for _ in range(3):
        surviving.run(f"{ALL_REDUCE}; kept = rank", timeout=60)
        pid = anatomy.worker(surviving, 1)
        agent.suspend()  # else it may report the death before the cell is sent
        anatomy.kill(pid)
        run = surviving.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=60, background=True)
        assert eventually(lambda run=run: run.state == "running")
        agent.resume()
        assert run.wait(60)
        assert run.values == {0: (2.0, 0), 1: (2.0, None)}
    unwatch()
    assert any("the cell began" in text for text in notices)


def test_a_worker_that_is_killed_while_it_comes_up_costs_no_other_rank(surviving: jdist.Cluster) -> None:
    surviving.run("kept = rank", timeout=60)
    parent = psutil.Process(anatomy.agent(surviving, 0))
    killed = {anatomy.worker(surviving, 1)}
    notices: list[str] = []
    unwatch = surviving.asynchronous.watch(lambda m: notices.append(getattr(m, "text", "")))
    anatomy.kill(*killed)

    def kill_next() -> bool:
        for process in parent.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "jdist-rank-1" and process.pid not in killed:
                    killed.add(process.pid)
                    process.kill()
        return len(killed) == 3

    assert eventually(kill_next)
    assert surviving.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=60).values == {0: (2.0, 0), 1: (2.0, None)}
    unwatch()
    assert any("attempt 3 of 3" in text for text in notices)


def test_a_worker_that_dies_again_and_again(surviving: jdist.Cluster) -> None:
    for _ in range(3):
        kill_worker(surviving, 1)
        assert surviving.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}


# ---------------------------------------------------------------- the forkserver, the store, a client


@pytest.mark.parametrize("phase", PHASES[:3])
def test_the_forkserver(surviving: jdist.Cluster, phase: str) -> None:
    """No worker notices; the next replacement comes from a new one."""
    surviving.run("kept = rank")
    pid = anatomy.forkserver(surviving, 0)
    if phase == "idle":
        anatomy.kill(pid)
    else:
        run = surviving.run(CELL if phase == "cell" else COLLECTIVE, background=True)
        assert eventually(lambda: run.state == "running")
        anatomy.kill(pid)
        assert eventually(lambda: not anatomy.lives(pid))
        assert surviving.pull("kept") == {0: 0, 1: 1}
        assert not run.is_done, run.outcomes
        run.cancel()
        assert run.wait(SLACK)
        assert {o.kind for o in run.outcomes.values()} == {"interrupted"}
    assert surviving.run("kept", timeout=20).values == {0: 0, 1: 1}
    kill_worker(surviving, 0)
    assert surviving.run(ALL_REDUCE, timeout=40).values == {0: 2.0, 1: 2.0}


@pytest.mark.parametrize("phase", PHASES[:3])
def test_the_store(surviving: jdist.Cluster, phase: str) -> None:
    """The next generation meets at another one."""
    surviving.run("kept = rank")
    pid = anatomy.store(surviving)
    if phase == "idle":
        anatomy.kill(pid)
    else:
        run = surviving.run(CELL if phase == "cell" else COLLECTIVE, background=True)
        assert eventually(lambda: run.state == "running")
        anatomy.kill(pid)
        assert eventually(lambda: pid not in anatomy.stores(surviving) and anatomy.stores(surviving))
        run.cancel()
        assert run.wait(SLACK)
    assert surviving.run(f"{ALL_REDUCE}, kept", timeout=20).values == {0: (2.0, 0), 1: (2.0, 1)}
    kill_worker(surviving, 0)
    assert surviving.run(ALL_REDUCE, timeout=60).values == {0: 2.0, 1: 2.0}
    assert surviving.run("g = dist.new_group([0, 1]); dist.get_world_size(g)", timeout=20).values == {0: 2, 1: 2}


CLIENT = """
import sys, jdist
cluster = jdist.attach("surviving")
def pulled(what, done, total):
    print("in it", flush=True)
    sys.stdin.readline()
code = sys.argv[1]
if code == "pull":
    cluster.pull("big", on_progress=pulled)
elif code:
    run = cluster.run(code, background=True)
    while run.state != "running": pass
print("in it", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("phase", PHASES)
def test_a_client(surviving: jdist.Cluster, traces: Traces, phase: str) -> None:
    """What it ran goes on, nobody else notices, and its shared memory is gone."""
    surviving.run(f"kept = rank\n{BIG}", timeout=20)
    before = traces.snapshot()
    code = {"idle": "", "cell": CELL, "collective": COLLECTIVE, "pull": "pull"}[phase]
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "in it\n"
        client.kill()
    if phase in ("cell", "collective"):
        assert {r.state for r in surviving.status().ranks} == {"running"}
        surviving.interrupt()
    assert surviving.run(f"{ALL_REDUCE}, kept", timeout=20).values == {0: (2.0, 0), 1: (2.0, 1)}
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


# ---------------------------------------------------------------- what ends the cluster, or a part of it


def test_a_controller_that_nobody_starts_again(fresh_cluster: Callable[..., jdist.Cluster], traces: Traces) -> None:
    """The agents end after their grace, and whoever looks removes the files."""
    before = traces.snapshot()
    own = fresh_cluster(2, 1, **LIMITS)
    pid, name = anatomy.controller(own), own.name
    own.detach()
    anatomy.kill(pid)
    # Whoever looks removes the files, but only once the process is waited for and the grace is over: look until then.
    files = connection_path(find.directory(), name), charter_path(find.directory(), name)
    assert eventually(lambda: not find.connections().get(name) and not any(f.exists() for f in files), 30.0)
    assert eventually(lambda: not traces.excess(before), AGENT_GRACE + 5.0 + SLACK), traces.excess(before)
    with pytest.raises(jdist.UsageError, match="no cluster called"):
        jdist.attach(name)


@pytest.mark.parametrize(("node_rank", "phase"), [(0, "collective"), (1, "cell"), (1, "pull")])
def test_an_agent(fresh_cluster: Callable[..., jdist.Cluster], traces: Traces, node_rank: int, phase: str) -> None:
    """Its ranks go with it; the others are freed and keep their names, and say which node is gone."""
    before = traces.snapshot()
    own = fresh_cluster("1,1", 2, **LIMITS)
    own.run(f"kept = rank\n{BIG}")
    lost_worker = anatomy.worker(own, node_rank)
    during = Phase(own, phase)
    during.kill(anatomy.agent(own, node_rank))
    kind, during.error = type(during.error), None
    assert eventually(lambda: own.facts.hostnames[node_rank] == "")
    if during.run is not None:
        assert kind is jdist.RankLost
        with pytest.raises(jdist.RankLost, match=f"node {node_rank}"):
            during.run.check()
        assert during.run.outcomes[node_rank].kind == "lost"
        assert during.run.outcomes[1 - node_rank].kind == "interrupted"
    with pytest.raises(jdist.UsageError, match=f"node {node_rank} .*gone"):
        own.run("1")
    assert own.pull("kept", ranks=[1 - node_rank]) == {1 - node_rank: 1 - node_rank}
    assert eventually(lambda: lost_worker not in traces.processes())
    other = jdist.attach(own.name) if phase == "cell" else own
    other.restart([node_rank])
    assert own.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=20).values == {
        node_rank: (2.0, None),
        1 - node_rank: (2.0, 1 - node_rank),
    }
    if other is not own:
        other.detach()
    own.stop()
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


# ---------------------------------------------------------------- while it starts


def starting(traces: Traces, victim: str, **options: Any) -> tuple[BaseException | None, float]:
    """Start and kill ``victim`` as soon as it is there; what start raised, and how many seconds after the kill."""
    outcome: list[BaseException | None] = []
    seen = set(traces.processes())

    def start() -> None:
        try:
            jdist.start(1, 2, backend="gloo", timeout=40, name="unborn", **LIMITS, **options).stop()
            outcome.append(None)
        except BaseException as e:
            outcome.append(e)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()

    def born() -> list[int]:
        return [p for p, command in traces.processes().items() if p not in seen and victim in command]

    pids = eventually(born, 20)
    traces.note_clusters()
    anatomy.kill(pids[0])
    killed_at = time.monotonic()
    thread.join(60)
    assert not thread.is_alive()
    return outcome[0], time.monotonic() - killed_at


@pytest.mark.usefixtures("started_nodes")
@pytest.mark.parametrize(
    ("victim", "words"),
    [("jdist controller", "controller"), ("join --node-rank 1", "node 1"), ("jdist.agent.processes.forkserver", "")],
)
def test_while_it_starts(traces: Traces, victim: str, words: str) -> None:
    """The start fails at once and says why; a forkserver is simply started again."""
    before = traces.snapshot()
    error, seconds = starting(traces, victim)
    if words:
        assert isinstance(error, jdist.LaunchError | jdist.ConnectionLost)
        assert words in str(error)
        assert seconds < SLACK
    else:
        assert error is None or isinstance(error, jdist.LaunchError)
    assert eventually(lambda: not traces.excess(before), AGENT_GRACE + SLACK), traces.excess(before)


def test_a_client_that_dies_while_it_starts_a_cluster(traces: Traces) -> None:
    """Nobody has attached yet, so nobody will: the cluster ends after its idle timeout."""
    before = traces.snapshot()
    code = "import jdist; jdist.start(1, 1, backend='gloo', idle_timeout=1.0, empty_timeout=1.0)"
    with subprocess.Popen([sys.executable, "-c", code]) as client:
        assert eventually(lambda: any("jdist controller" in c for c in traces.processes().values()), 20)
        client.kill()
    traces.note_clusters()
    assert eventually(lambda: not traces.excess(before), 20 + SLACK), traces.excess(before)
