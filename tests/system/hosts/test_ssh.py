"""Nodes over ssh: real daemons on hosts of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import jdist
from jdist.launch.hosts import read_hostfile
from support.cells import ALL_REDUCE, SEND
from support.hosts.namespaces import Bed
from support.hosts.sshd import Sshd
from support.waits import eventually

ROOT = Path(jdist.__file__).parents[1]
KERNEL = """
import sys, jdist
from jdist.launch.hosts import read_hostfile
cluster = jdist.start(launcher="ssh", hosts=read_hostfile(sys.argv[1]), timeout=90,
                      backend="gloo", idle_timeout=60, env=dict(v.split("=", 1) for v in sys.argv[2:]))
print(cluster.name, flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    """What makes this jdist the one that is imported on the nodes, and its processes this test run's."""
    return {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": os.environ["JUPYTER_RUNTIME_DIR"], "MARK": "seen there"}


def test_a_cluster_over_ssh_outlives_its_kernel_and_gets_a_node_back(
    logins: Sshd, hosts: Bed, traces: Any, tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"a slots=2 python={sys.executable}  # the first\nb slots=1 directory=/usr\nthrough slots=1\n")
    with contextlib.ExitStack() as stack:
        stack.enter_context(hosts.nodes[1].own_name_on_loopback())
        variables = [f"{k}={v}" for k, v in environment().items()]
        words = [sys.executable, "-c", KERNEL, str(hostfile), *variables]
        kernel = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.enter_context(kernel)
        stack.callback(kernel.kill)
        assert kernel.stdout is not None
        name = kernel.stdout.readline().strip()
        assert name
        kernel.kill()
        kernel.wait()
        assert eventually(lambda: not logins.sessions())
        cluster = jdist.attach(name)
        stack.callback(cluster.detach)
        stack.callback(cluster.stop)
        traces.note_clusters()
        here = "import os, socket; socket.gethostname(), os.getcwd(), os.environ['MARK'], local_rank"
        a, b, c = (n.name for n in hosts.nodes)
        places = [(a, "/root", 0), (a, "/root", 1), (b, "/usr", 0), (c, "/root", 0)]
        assert cluster.run(here, timeout=30).values == {
            r: (host, where, "seen there", local) for r, (host, where, local) in enumerate(places)
        }
        assert cluster.run(SEND, timeout=30).values == {0: 0.0, 1: 0.0, 2: 0.0, 3: 7.0}
        assert cluster.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(4), 4.0)
        assert len(set(cluster.run("hash('a string')", timeout=30).values.values())) == 1
        cluster.run("kept = rank")

        lost = cluster.status().ranks[2].pid
        for process in [psutil.Process(lost).parent(), psutil.Process(lost)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # the agent, and with it all that is its own
        assert eventually(lambda: not cluster.facts.hostnames[1], 20)
        assert cluster.pull("kept", ranks=[0, 1, 3]) == {0: 0, 1: 1, 3: 3}
        cluster.restart(ranks=[2])
        found = cluster.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=30).values
        assert found == {0: (4.0, 0), 1: (4.0, 1), 2: (4.0, None), 3: (4.0, 3)}


def test_every_host_that_cannot_be_had_is_named_with_its_reason(
    logins: Sshd, hosts: Bed, traces: Any, tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts"
    lines = ["a", "stranger", "changed", "unseen", "nowhere", "b python=/no/python", "c directory=/no/directory"]
    hostfile.write_text("\n".join(f"{line} slots=1" for line in lines))
    with pytest.raises(jdist.LaunchError) as caught:
        jdist.start(launcher="ssh", hosts=read_hostfile(hostfile), timeout=90, env=environment())
    told = dict(part.partition(": ")[::2] for part in str(caught.value).replace("; node", "\nnode").splitlines())
    assert list(told) == [f"node {n}" for n in range(1, 7)]
    assert "Permission denied" in told["node 1"]
    assert "ssh-copy-id stranger" in told["node 1"]
    assert "is not the key in known_hosts" in told["node 2"]
    assert "ssh-keygen -R 'changed'" in told["node 2"]
    assert "not in known_hosts yet" in told["node 3"]
    assert "ssh unseen" in told["node 3"]
    assert "ssh nowhere must work" in told["node 4"]
    assert "there is no /no/python" in told["node 5"]
    assert "No such file or directory: '/no/directory'" in told["node 6"]


def test_the_world_is_formed_with_fewer_and_every_node_stays_on_its_own_host(
    logins: Sshd, hosts: Bed, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    cluster = fresh_cluster(1, 3, launcher="ssh", hosts="a,stranger,c", min_nodes=2, env=environment(), timeout=90)
    a, b, c = (n.name for n in hosts.nodes)
    assert cluster.nodes == [a, c]
    (why,) = cluster.facts.left_out
    assert why.startswith("node 1 was left out: stranger: Permission denied")
    assert cluster.run(ALL_REDUCE, timeout=30).values == {0: 2.0, 1: 2.0}

    psutil.Process(cluster.status().ranks[1].pid).parent().kill()
    assert eventually(lambda: not cluster.facts.hostnames[1], 20)
    cluster.restart(ranks=[1])
    assert cluster.nodes == [a, c], "not where the second host of the start would have been"

    cluster.add_node(host="b")
    assert cluster.nodes == [a, c, b]
    assert cluster.run(ALL_REDUCE, timeout=30).values == dict.fromkeys(range(3), 3.0)


def test_no_fewer_than_the_least(logins: Sshd, hosts: Bed, traces: Any) -> None:
    with pytest.raises(jdist.LaunchError, match=r"node 1: stranger: Permission denied.*; node 2: unseen: "):
        jdist.start(1, launcher="ssh", hosts="a,stranger,unseen", min_nodes=2, env=environment())


def test_an_agent_that_ends_says_why(logins: Sshd, hosts: Bed, traces: Any) -> None:
    told = r"node 0: a: its agent ended with code 1: .*PYTHONHASHSEED"
    with pytest.raises(jdist.LaunchError, match=told):
        jdist.start(1, launcher="ssh", hosts="a", env={**environment(), "PYTHONHASHSEED": "no"}, timeout=90)
