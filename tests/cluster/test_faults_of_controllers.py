"""kill -9 of the controller: whoever is attached starts it again, and what runs goes on."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import subprocess
import sys
import threading
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
from jdist.client.lifecycle.lifecycle import ClusterLifecycle
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
from support.phases import BIG, LIMITS, PHASES, SLACK, Phase, are_in_cell, kill_worker


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


COUNTS = """
import jdist, pathlib, time
for i in range(100_000):
    print(i, flush=True)
    jdist.log(number=i, step=i)
    time.sleep(0.01)
    if (pathlib.Path({0!r}) / "enough").exists(): break
i
"""


def test_all_that_ranks_write_while_there_is_no_controller_comes_once(
    orphaned: jdist.Cluster, run_traces: Traces, tmp_path: Path
) -> None:
    own = orphaned
    run = own.run(COUNTS.format(str(tmp_path)), background=True)
    for _ in range(3):
        count = len(list(run.metrics))
        assert eventually(lambda count=count: len(list(run.metrics)) > count + 20)
        replace_controller(own, run_traces)
    (tmp_path / "enough").touch()
    assert run.wait(SLACK)
    run.check()
    for rank in (0, 1):
        whole = list(range(run.values[rank] + 1))
        assert [int(line) for line in run.outcomes[rank].stdout.split()] == whole
        assert [step for step, of, *_ in run.metrics if of == rank] == whole


def test_a_cell_goes_on_with_another_controller(orphaned: jdist.Cluster, run_traces: Traces, tmp_path: Path) -> None:
    """What ranks write, and how they end, comes to the run for which somebody waits."""
    own, told = orphaned, io.StringIO()
    run = own.run(WAITS.format(str(tmp_path)), background=True)
    run.watch(lambda message: told.write(str(message)))
    assert eventually(lambda: "before" in told.getvalue())
    for name in ("first", "second"):
        replace_controller(own, run_traces)
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


def test_a_controller_that_dies_while_it_is_told_to_stop(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    """The one that is started in its place ends the cluster; the leak check sees that nothing is left."""
    own = fresh_cluster(2, 1, **{**LIMITS, "agent_grace": 30.0})
    controller = psutil.Process(anatomy.controller(own))
    controller.suspend()
    lifecycle = own.asynchronous.part(ClusterLifecycle)
    stopping = threading.Thread(target=own.stop)
    stopping.start()
    assert eventually(lambda: lifecycle._is_stopping)
    controller.kill()
    stopping.join(60)
    assert not stopping.is_alive()
    assert own.name not in find.connections()


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
