"""Nodes over ssh that cannot open a connection to this machine: their logins carry the connections."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jdist
from support.cells import ALL_REDUCE
from support.hosts.namespaces import Bed
from support.hosts.sshd import PORT, Sshd
from support.waits import eventually

ROOT = Path(jdist.__file__).parents[1]
COUNT = "import time\nfor i in range({n}):\n    print('line', i, flush=True)\n    time.sleep(0.1)\ni"
PYTHON = ("--python", sys.executable)
KERNEL = """
import sys, jdist
cluster = jdist.start(launcher="ssh", hosts="a:1,b:1", timeout=90, idle_timeout=60,
                      env=dict(v.split("=", 1) for v in sys.argv[1:]))
print(cluster.name, flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    """What makes this jdist the one that is imported on the nodes, and its processes this test run's."""
    return {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"]}


def processes(word: str) -> list[psutil.Process]:
    """Those of this test run's that have this word in their command lines."""
    mark, found = f"JUPYTER_RUNTIME_DIR={os.environ['JUPYTER_RUNTIME_DIR']}", []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environ = Path(f"/proc/{process.pid}/environ").read_text(errors="replace").split("\0")
            if word in process.cmdline() and mark in environ:
                found.append(process)
    return found


def keepers() -> list[psutil.Process]:
    return processes("jdist.launch.tunnel_keeper")


def ends() -> list[psutil.Process]:
    return processes("node-end")


@pytest.fixture
def shut_out(hosts: Bed, logins: Sshd) -> Iterator[Bed]:
    """The nodes cannot open a connection to this machine. In the end, nothing that carries is left."""
    hosts.shut_out(PORT)
    yield hosts
    hosts.let_in()
    assert eventually(lambda: not keepers() + ends()), keepers() + ends()


@pytest.fixture
def carried(shut_out: Bed, fresh_cluster: Callable[..., jdist.Cluster]) -> Callable[..., jdist.Cluster]:
    """Starts ranks on hosts that are shut out."""

    def start(hosts: str = "a:2,b:1", *words: str, **options: Any) -> jdist.Cluster:
        args = (*PYTHON, *words)
        options = {"timeout": 90, "env": environment(), **options}
        return fresh_cluster(None, None, launcher="ssh", hosts=hosts, launcher_args=args, **options)

    return start


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("line")]


def test_nodes_that_cannot_reach_the_controller_form_a_world_at_their_own_addresses(
    carried: Callable[..., jdist.Cluster], hosts: Bed
) -> None:
    cluster = carried("a:2,b:1")  # b forwards nothing
    assert len(keepers()) == len(ends()) == 2
    assert cluster.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(3), 3.0)
    found = cluster.run("import os; os.environ['MASTER_ADDR']", timeout=30).values
    assert found == dict.fromkeys(range(3), hosts.nodes[0].address)
    cluster.run("import torch\nx = torch.full((12_500_000,), float(rank))")
    pulled = cluster.pull("x", ranks=[2])[2]
    assert (len(pulled), pulled[-1].item()) == (12_500_000, 2.0)
    cluster.push(y=pulled)
    assert cluster.run("y[-1].item()").values == dict.fromkeys(range(3), 2.0)
    run = cluster.run("while True: pass", background=True)
    assert eventually(lambda: run.state == "running")
    run.cancel()
    assert run.wait(30)
    assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(3), 3.0)
    diagnosis = cluster.doctor()
    assert diagnosis.is_well, diagnosis
    assert {r.address for r in diagnosis.examination.nodes.values()} == {n.address for n in hosts.nodes[:2]}


def test_a_controller_that_is_started_again_waits_for_a_node_whose_login_is_away(
    carried: Callable[..., jdist.Cluster], hosts: Bed
) -> None:
    """As long as its agent waits, not only for the grace of a node that needs no login."""
    cluster = carried("a:1,b:1", node_grace=3.0)
    cluster.run("kept = rank + 7")
    hosts.cut(1)
    link = cluster.asynchronous.link
    psutil.Process(link.connection.pid).kill()
    assert eventually(lambda: link.lost)
    cluster.detach()
    cluster = jdist.attach(cluster.name)
    assert eventually(lambda: [bool(each) for each in cluster.facts.hostnames] == [True, False])
    time.sleep(4)  # longer than that grace
    hosts.heal(1)
    assert cluster.run(f"{ALL_REDUCE}, kept", timeout=90).values == {0: (2.0, 7), 1: (2.0, 8)}
    cluster.stop()


def test_without_a_tunnel_the_start_says_what_to_do(carried: Callable[..., jdist.Cluster]) -> None:
    with pytest.raises(jdist.LaunchError, match=r"a: its agent .*not answer at port \d+ of .*--at a"):
        carried("a:1", "--tunnel", "never")
    assert not keepers()


def test_a_node_that_reaches_the_controller_is_carried_only_if_that_is_asked_for(
    logins: Sshd, hosts: Bed, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    options: dict[str, Any] = {"launcher": "ssh", "hosts": "a:1", "timeout": 90, "env": environment()}
    direct = fresh_cluster(None, None, launcher_args=PYTHON, **options)
    assert not keepers()
    direct.stop()
    cluster = fresh_cluster(None, None, launcher_args=(*PYTHON, "--tunnel", "always"), **options)
    assert len(keepers()) == 1
    assert cluster.run("rank").values == {0: 0}
    cluster.stop()
    assert eventually(lambda: not keepers() + ends())


def kill_login(hosts: Bed) -> None:
    """End the process of sshd's that carries node b's connections."""
    address = hosts.nodes[1].address
    (end,) = [e for e in ends() if f"{address}" in end_address(e)]
    session = end.parent()
    assert session is not None
    session.kill()


def end_address(end: psutil.Process) -> str:
    """Where the login of this end was let in."""
    environ = Path(f"/proc/{end.pid}/environ").read_text().split("\0")
    return next(v for v in environ if v.startswith("SSH_CONNECTION="))


def kill_node_end(_: Bed) -> None:
    for end in ends():
        end.kill()


def cut_cable(hosts: Bed) -> None:
    hosts.cut(1)
    time.sleep(8)  # the agents and the controller have noticed, ssh has not
    hosts.heal(1)


def cut_cable_for_long(hosts: Bed) -> None:
    hosts.cut(1)
    time.sleep(25)  # ssh has given the login up as well, and the time of a node that is not carried is over
    hosts.heal(1)


def sleep(_: Bed) -> None:
    """As a laptop that sleeps, with all of its processes."""
    ours = [*keepers(), *processes("controller")]
    for process in ours:
        process.suspend()
    time.sleep(20)
    for process in ours:
        process.resume()


@pytest.mark.parametrize(
    "fault", [sleep, kill_login, kill_node_end, cut_cable, cut_cable_for_long], ids=lambda f: f.__name__
)
def test_a_run_goes_on_while_a_login_is_broken_and_its_output_arrives_whole(
    carried: Callable[..., jdist.Cluster], hosts: Bed, fault: Callable[[Bed], None]
) -> None:
    cluster = carried("a:1,b:1")
    cluster.run("kept = rank + 7")
    run = cluster.run(COUNT.format(n=100) + " + kept", ranks=[1], background=True)
    assert eventually(lambda: run.state == "running")
    fault(hosts)
    assert run.wait(120)
    assert run.values == {1: 107}
    assert lines(run.outcomes[1].stdout) == [f"line {n}" for n in range(100)]
    assert cluster.run(f"{ALL_REDUCE}, kept", timeout=60).values == {0: (2.0, 7), 1: (2.0, 8)}
    cluster.stop()
    assert eventually(lambda: not keepers() + ends())


def test_the_notebook_may_end_and_the_controller_die_and_nodes_are_lost_and_added(
    carried: Callable[..., jdist.Cluster], shut_out: Bed, logins: Sshd, traces: Any
) -> None:
    variables = [f"{k}={v}" for k, v in environment().items()]
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, *variables], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(kernel)
        stack.callback(kernel.kill)
        assert kernel.stdout is not None
        name = kernel.stdout.readline().strip()
        assert name
        kernel.kill()
        kernel.wait()
        cluster = jdist.attach(name)
        stack.callback(cluster.detach)
        stack.callback(cluster.stop)
        traces.note_clusters()
        assert cluster.run(f"kept = rank + 7\n{ALL_REDUCE}", timeout=30).values == {0: 2.0, 1: 2.0}
        cluster.detach()
        cluster = jdist.attach(name)

        controller = psutil.Process(cluster.asynchronous.link.connection.pid)
        controller.kill()
        link = cluster.asynchronous.link
        assert eventually(lambda: link.lost)
        assert cluster.run(f"{ALL_REDUCE}, kept", timeout=60).values == {0: (2.0, 7), 1: (2.0, 8)}

        lost = cluster.status().ranks[1].pid
        agent = psutil.Process(lost).parent()
        assert agent is not None
        agent.kill()
        assert eventually(lambda: not cluster.facts.hostnames[1], 20)
        cluster.restart(ranks=[1])
        found = cluster.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=60).values
        assert found == {0: (2.0, 7), 1: (2.0, None)}

        cluster.add_node(host="c")
        assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(3), 3.0)
        cluster.restart()
        assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(3), 3.0)
        cluster.stop()
        assert eventually(lambda: not keepers() + ends())
