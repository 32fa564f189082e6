"""kill -9 of each process, in each phase: who is told what, what goes on, and that nothing is left.

What survives a loss (a worker's, the forkserver's, the store's, a client's) is tried on one cluster, phase by phase.
What ends the cluster takes one each.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import psutil
import pytest

import jdist
from jdist.client import find
from jdist.client.lifecycle import sites, start
from jdist.client.threads import bridge
from jdist.core.messages.base import Message
from jdist.core.messages.runs import InputRequest
from jdist.wire.processes import has_ended
from jdist.wire.transport.keys import charter_path, connection_path, write_keys
from support import anatomy
from support.cells import ALL_REDUCE
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

AGENT_GRACE = 0.5
SLACK = 20.0
"""Seconds for processes to end on a busy machine once they know that they must."""
LIMITS = {"agent_grace": AGENT_GRACE, "interrupt_grace": 3.0, "idle_timeout": 60.0}
CELL = "import time\nwhile True: time.sleep(0.01)"
COLLECTIVE = "import time\nif rank == 1: time.sleep(100)\ndist.all_reduce(torch.ones(1))"
BIG = "big = torch.ones(1 << 26)"
PHASES = ("idle", "cell", "collective", "pull")


def kill_worker(cluster: jdist.Cluster, rank: int) -> None:
    """Kill, and wait until the cluster knows: a cell sent before that is lost with the rank, as it should be."""
    pid = anatomy.worker(cluster, rank)
    anatomy.kill(pid)
    assert eventually(lambda: pid not in {r.pid for r in cluster.status().ranks})


def are_in_cell(cluster: jdist.Cluster, first: str = "python") -> bool:
    """Whether all ranks are in the cell, the first one in ``first``; a run has started before its ranks begin it."""
    seen = cluster.look()
    inside = [rank for rank, at in seen.items() if at.doing.line]
    return len(inside) == cluster.topology.world_size and seen[0].doing.kind == first


class Phase:
    """A cluster busy with something, and how that ended."""

    def __init__(self, cluster: jdist.Cluster, name: str):
        self.cluster = cluster
        self.name = name
        self.run: jdist.CellRun | None = None
        self.error: BaseException | None = None

    def kill(self, pid: int, *, goes_on: bool = False) -> None:
        """Kill while the phase is on; return when what was going on has ended, unless it goes on."""
        if self.name in ("cell", "collective"):
            self.run = self.cluster.run(CELL if self.name == "cell" else COLLECTIVE, background=True)
            assert eventually(lambda: self.run is not None and self.run.state == "running")
            self._wait_until_inside()
            anatomy.kill(pid)
            if not goes_on:
                self._finish()
        elif self.name == "pull":
            self._kill_while_pulling(pid)
        else:
            anatomy.kill(pid)

    def _wait_until_inside(self) -> None:
        first = "collective" if self.name == "collective" else "python"
        assert eventually(lambda: are_in_cell(self.cluster, first))

    def _finish(self) -> None:
        assert self.run is not None
        try:
            assert self.run.wait(SLACK), "the run did not end"
            self.run.check()
        except (jdist.JdistError, AssertionError) as e:
            self.error = e

    def _kill_while_pulling(self, pid: int) -> None:
        killed = threading.Event()

        def on_progress(_what: str, _done: int, _total: int) -> None:
            if not killed.is_set():
                killed.set()
                anatomy.kill(pid)

        try:
            self.cluster.pull("big", on_progress=on_progress)
        except jdist.JdistError as e:
            self.error = e
        assert killed.is_set()


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


@pytest.fixture(scope="module")
def orphaned(run_traces: Traces) -> Iterator[jdist.Cluster]:
    """Two nodes of one rank, whose controller dies again and again."""
    with jdist.start("1,1", 2, backend="gloo", name="orphaned", timeout=60, **{**LIMITS, "agent_grace": 30.0}) as own:
        run_traces.note_clusters()
        before = set(run_traces.exempt)
        run_traces.exempt |= {anatomy.agent(own, 0), anatomy.agent(own, 1)}
        yield own
        run_traces.exempt = before


def kill_controller(cluster: jdist.Cluster, during: Phase, run_traces: Traces) -> None:
    """Kill it in a phase, and wait for the one that this process starts in its place."""
    replace_controller(cluster, run_traces, lambda old: during.kill(old, goes_on=True))


def replace_controller(
    cluster: jdist.Cluster, run_traces: Traces, kill: Callable[[int], object] = anatomy.kill
) -> None:
    """Kill it, and wait for the one that this process starts in its place."""
    old = anatomy.controller(cluster)
    run_traces.exempt.discard(old)
    kill(old)
    assert eventually(lambda: cluster.asynchronous.link.is_orphaned or anatomy.controller(cluster) != old)
    wait_revived(cluster, run_traces)
    assert anatomy.controller(cluster) != old


def wait_revived(cluster: jdist.Cluster, run_traces: Traces) -> None:
    """Until this process has attached to another controller, which is the cluster's from now on."""
    cluster.revived()
    run_traces.exempt.add(anatomy.controller(cluster))


@pytest.mark.parametrize("phase", PHASES)
def test_the_controller(orphaned: jdist.Cluster, run_traces: Traces, phase: str) -> None:
    """Whoever is attached starts it again: every name is kept, and what was running goes on, with who waits for it."""
    own = orphaned
    own.run(f"kept = rank + 1\n{BIG}", timeout=20)
    pids, generation = {r.rank: r.pid for r in own.status().ranks}, own.generation
    file = charter_path(find.directory(), own.name).read_bytes()
    notices: list[str] = []
    unwatch = own.asynchronous.watch(lambda m: notices.append(getattr(m, "text", "")))
    during = Phase(own, phase)
    kill_controller(own, during, run_traces)
    if phase == "pull" and during.error is not None:  # else its bytes had left before it died
        assert isinstance(during.error, jdist.ConnectionLost | jdist.ValueFailed)
    assert sum("controller died and was started again" in n for n in notices) == 1
    if during.run is not None:
        ((number, state, ranks, _),) = own.status().runs
        assert (number, state, ranks) == (during.run.number, "running", (0, 1))
        assert eventually(lambda: any(f"run {number} goes on" in n for n in notices))
        assert own.follow(number) is during.run
        if phase == "collective":
            assert eventually(lambda: during.run.verdict), "whoever is blocked is seen again"
        during.run.cancel()
        assert during.run.wait(SLACK)
        assert {outcome.kind for outcome in during.run.outcomes.values()} == {"interrupted"}
    run = own.run(f"{ALL_REDUCE}, kept", timeout=20)
    assert run.values == {0: (2.0, 1), 1: (2.0, 2)}
    assert {r.rank: r.pid for r in own.status().ranks} == pids
    assert (own.generation > generation) == (phase in ("cell", "collective"))
    unwatch()
    assert charter_path(find.directory(), own.name).read_bytes() == file, "keys and ports are the same"


WAITS = """
import pathlib, time
def wait_for(name):
    while not (pathlib.Path({0!r}) / name).exists(): time.sleep(0.01)
print("before")
wait_for("first")
print("after the first")
if rank: wait_for("second")
print("after the second")
rank
"""


def test_a_cell_goes_on_with_another_controller(orphaned: jdist.Cluster, run_traces: Traces, tmp_path: Path) -> None:
    """What ranks write from then on, and how they end, comes to the run for which somebody waits."""
    own, told = orphaned, io.StringIO()
    run = own.run(WAITS.format(str(tmp_path)), background=True)
    run.watch(lambda message: told.write(str(message)))
    assert eventually(lambda: "before" in told.getvalue())
    for name in ("first", "second"):
        replace_controller(own, run_traces)
        assert eventually(lambda: "what ranks wrote meanwhile is missing" in told.getvalue())
        assert not run.is_done
        told.seek(told.truncate(0))
        (tmp_path / name).touch()
        assert eventually(lambda name=name: f"after the {name}" in told.getvalue())
    assert run.wait(SLACK)
    run.check()
    assert {rank: outcome.kind for rank, outcome in run.outcomes.items()} == {0: "value", 1: "value"}
    assert run.values[1] == 1
    assert own.run(ALL_REDUCE, timeout=20).values == {0: 2.0, 1: 2.0}


def test_a_cell_keeps_its_client_and_its_timeout(orphaned: jdist.Cluster, run_traces: Traces, tmp_path: Path) -> None:
    own = orphaned
    code = WAITS.format(str(tmp_path)) + "print(input('name?'))\nwhile True: time.sleep(0.01)"
    asynchronous = own.asynchronous
    run = bridge().call(asynchronous.run(code, ranks=[1], background=True, allow_stdin=True, timeout=20.0))

    answers: list[asyncio.Future[None]] = []

    def answer(message: Message) -> None:
        if isinstance(message, InputRequest):
            answers.append(asyncio.ensure_future(asynchronous.answer_input(run.number, message.rank, "Ada")))

    unwatch = asynchronous.watch(answer)
    assert eventually(lambda: own.look()[1].doing.line)
    replace_controller(own, run_traces)
    for name in ("first", "second"):
        (tmp_path / name).touch()
    assert run.wait(60)
    unwatch()
    assert run.reason == "timeout"
    assert "Ada" in run.outcomes[1].stdout


def test_a_cell_that_ends_while_there_is_no_controller(
    orphaned: jdist.Cluster, run_traces: Traces, tmp_path: Path
) -> None:
    """The agents tell the next one."""
    own = orphaned
    code = WAITS.format(str(tmp_path)) + "pathlib.Path({0!r}, f'ended {rank}').touch()\n1 / (1 - rank)"
    run = own.run(code.replace("{0!r}", repr(str(tmp_path))), background=True)
    assert eventually(lambda: are_in_cell(own))
    psutil.Process(anatomy.controller(own)).suspend()
    for name in ("first", "second"):
        (tmp_path / name).touch()
    assert eventually(lambda: all((tmp_path / f"ended {rank}").exists() for rank in (0, 1)))
    replace_controller(own, run_traces)
    assert run.wait(SLACK)
    assert {rank: outcome.kind for rank, outcome in run.outcomes.items()} == {0: "value", 1: "error"}
    with pytest.raises(jdist.CellError, match="ZeroDivisionError"):
        run.check()


BIG_VALUE = np.ones(1_000_000)
USES: dict[str, Callable[[jdist.Cluster], object]] = {
    "a cell": lambda own: own.run("kept").values,
    "status": lambda own: own.status().facts.phase,
    "pull": lambda own: own.pull("kept"),
    "push": lambda own: own.push(value=BIG_VALUE),
    "pull a big one": lambda own: {rank: value.sum() for rank, value in own.pull("value").items()},
    "interrupt": lambda own: own.interrupt(),
    "variables": lambda own: {each.name for each in own.variables("kept")},
}


def test_the_next_use_has_the_controller_started_again(orphaned: jdist.Cluster, run_traces: Traces) -> None:
    """Nobody has to attach: what is called once its process has ended works as if it were still there."""
    own = orphaned
    own.run("kept = rank")
    own.push(value=BIG_VALUE)
    for what, use in USES.items():
        expected, old = use(own), anatomy.controller(own)
        run_traces.exempt.discard(old)
        anatomy.kill(old)
        assert eventually(lambda old=old: has_ended(old))
        assert use(own) == expected, what
        run_traces.exempt.add(anatomy.controller(own))
        assert anatomy.controller(own) != old


def test_threads_that_need_it_at_once_share_one_controller(orphaned: jdist.Cluster, run_traces: Traces) -> None:
    own = orphaned
    other = jdist.attach(own.name)
    old, values = anatomy.controller(own), []
    run_traces.exempt.discard(old)
    anatomy.kill(old)
    assert eventually(lambda: has_ended(old))
    clients = (own, other, own, other)
    threads = [threading.Thread(target=lambda c=c: values.append(c.run("rank").values)) for c in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    run_traces.exempt.add(anatomy.controller(own))
    assert values == [{0: 0, 1: 1}] * 4
    assert anatomy.controller(own) == anatomy.controller(other)
    other.detach()


def listener_at(address: tuple[str, int]) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_server(address)
    return None


@pytest.mark.parametrize("of", ["control", "data"])
def test_a_port_that_another_program_has_taken_for_a_while(
    orphaned: jdist.Cluster, run_traces: Traces, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """It accepts connections and never answers. It is not taken for a controller that another client has started."""
    own = orphaned
    is_taken = threading.Event()

    def start_controller(*args: Any) -> object:
        assert is_taken.wait(60)
        return start.start_controller(*args)

    monkeypatch.setattr(sites, "start_controller", start_controller)
    own.run("kept = rank")
    old, connection = anatomy.controller(own), own.asynchronous.link.connection
    run_traces.exempt.discard(old)
    anatomy.kill(old)
    assert eventually(lambda: has_ended(old))
    address = (connection.host, getattr(connection, f"{of}_port"))
    with eventually(lambda: listener_at(address)):  # the threads of the dead one may hold its sockets for a moment
        is_taken.set()
        threading.Event().wait(2)
    assert own.run(f"{ALL_REDUCE}, kept", timeout=20).values == {0: (2.0, 0), 1: (2.0, 1)}
    run_traces.exempt.add(anatomy.controller(own))


def test_what_a_cluster_was_told_outlives_its_controller(orphaned: jdist.Cluster, run_traces: Traces) -> None:
    own = orphaned
    own.new_group("both", "0-1")
    own.new_mesh("dp=2")
    own.run("made = dist.new_group([1])")
    own.run("told = 1", setup=True)
    kill_controller(own, Phase(own, "idle"), run_traces)
    assert own.groups["both"] == [0, 1]
    assert own.mesh is not None
    assert len(own.status().groups) == 1
    kill_worker(own, 1)
    assert own.run("told, dist.get_world_size(groups['both'])", timeout=20).values == {0: (1, 2), 1: (1, 2)}


def test_a_worker_that_dies_without_a_controller_is_replaced(orphaned: jdist.Cluster, run_traces: Traces) -> None:
    own = orphaned
    own.run("kept = rank")
    pid = anatomy.worker(own, 1)
    old = anatomy.controller(own)
    run_traces.exempt.discard(old)
    anatomy.kill(old)
    anatomy.kill(pid)
    assert eventually(lambda: own.asynchronous.link.is_orphaned or anatomy.controller(own) != old)
    wait_revived(own, run_traces)
    assert own.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=20).values == {0: (2.0, 0), 1: (2.0, None)}
    assert [r.fresh for r in own.status().ranks] == [False, True]


KILL_AND_LEAVE = """
import os, signal, sys, jdist
own = jdist.start("1,1", 2, backend="gloo", name="left", timeout=60, agent_grace=20.0, idle_timeout=60.0)
own.run("kept = rank")
run = own.run("import time\\nwhile True: time.sleep(0.01)", background=True)
while run.state != "running": pass
os.kill(own.asynchronous.link.connection.pid, signal.SIGSTOP)
os.kill(own.asynchronous.link.connection.pid, signal.SIGKILL)
os._exit(0)
"""


def test_a_controller_that_died_while_nobody_was_there(traces: Traces) -> None:
    """Two clients attach at once: one controller is started, and both have the ranks' names."""
    subprocess.run([sys.executable, "-c", KILL_AND_LEAVE], check=True, timeout=60)
    found = eventually(lambda: find.restartable().get("left"))  # it is killed, and may not have ended yet
    assert eventually(lambda: "left" not in find.connections())
    assert 0 < find.restart_time(found) <= 20.0
    with pytest.raises(jdist.UsageError, match="called left is already running"):
        jdist.start(1, 1, name="left")
    attached: list[jdist.Cluster] = []
    threads = [threading.Thread(target=lambda: attached.append(jdist.attach("left"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    traces.note_clusters()
    one, other = attached
    one.interrupt()
    assert anatomy.controller(one) == anatomy.controller(other)
    assert sum("jdist controller" in c for c in traces.processes().values() if "left" not in c) >= 1
    assert one.run(f"{ALL_REDUCE}, kept", timeout=20).values == {0: (2.0, 0), 1: (2.0, 1)}
    assert other.run("kept", timeout=20).values == {0: 0, 1: 1}
    other.detach()
    one.stop()
    assert not charter_path(find.directory(), "left").exists()


def test_a_client_that_found_the_file_of_the_controller_before(cluster: jdist.Cluster) -> None:
    """As while another client starts the controller again: it listens before its connection file is written."""
    connection = cluster.asynchronous.link.connection
    path = connection_path(find.directory(), cluster.name)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    try:
        write_keys(path, msgspec.structs.replace(connection, pid=ended.pid), replace=True)
        threading.Timer(1.0, write_keys, (path, connection), {"replace": True}).start()
        other = jdist.attach(cluster.name)
    finally:
        write_keys(path, connection, replace=True)
    assert anatomy.controller(other) == anatomy.controller(cluster)
    assert other.run("rank").values == {r: r for r in range(4)}
    other.detach()


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
