"""On death: the three policies on real clusters, and what status and the next cell say about a rank that was lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.client import find
from jdist.client.lifecycle.start import log_path
from jdist.notebook import verbs
from jdist.notebook.output.screen import Update
from jdist.notebook.session import Session
from support import anatomy
from support.cells import ALL_REDUCE
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

LIMITS = {"agent_grace": 0.5, "interrupt_grace": 3.0}


class Paper:
    """A screen that keeps what is shown as plain text."""

    is_live = False

    def __init__(self) -> None:
        self.text = ""

    def show(self, bundle: Mapping[str, str]) -> Update:
        self.update(bundle)
        return self.update

    def update(self, bundle: Mapping[str, str]) -> None:
        self.text += bundle["text/plain"] + "\n"

    def ask(self, prompt: str, is_password: bool) -> str:
        raise EOFError(prompt)


def status(cluster: jdist.Cluster) -> str:
    """What ``%dist status`` shows."""
    paper = Paper()
    session = Session(paper, {}, "test")
    session.current = cluster
    verbs.call(session, "status", [])
    return paper.text


def test_wait(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    """In a collective: the survivors keep their names, every cell says who is gone, restart brings it back."""
    own = fresh_cluster(2, 2, on_death="wait", **LIMITS)
    own.run("kept = rank + 1")
    pids = {r.rank: r.pid for r in own.status().ranks}
    run = own.run("import time\nif rank == 1: time.sleep(100)\ndist.all_reduce(torch.ones(1))", background=True)
    assert eventually(lambda: 0 in (seen := own.look([0])) and seen[0].doing.op == "all_reduce")
    anatomy.kill(pids[2])
    assert run.wait(60), run.outcomes
    assert {r: o.kind for r, o in run.outcomes.items()} == {
        0: "interrupted",
        1: "interrupted",
        2: "lost",
        3: "interrupted",
    }
    for ranks in (None, [0]):
        with pytest.raises(jdist.UsageError, match=r"rank 2 \(node 1.*SIGKILL.*restart rank 2"):
            own.run("kept", ranks)
    assert own.pull("kept", ranks="!2") == {0: 1, 1: 2, 3: 4}
    with pytest.raises(jdist.ValueFailed, match="rank 2"):
        own.pull("kept")
    text = status(own)
    assert "gone" in text
    assert "is gone since" in text
    assert "SIGKILL" in text
    own.restart([2])
    assert own.run(f"{ALL_REDUCE}, globals().get('kept')", timeout=20).values == {
        0: (4.0, 1),
        1: (4.0, 2),
        2: (4.0, None),
        3: (4.0, 4),
    }
    rows = {r.rank: r for r in own.status().ranks}
    assert {r: row.pid == pids[r] for r, row in rows.items()} == {0: True, 1: True, 2: False, 3: True}
    assert "idle, fresh" in status(own)


def test_stop(fresh_cluster: Callable[..., jdist.Cluster], traces: Traces, tmp_path: Path) -> None:
    """Every client hears why, and nothing is left."""
    begun = tmp_path / "begun"
    before = traces.snapshot()
    own = fresh_cluster(2, 1, on_death="stop", **LIMITS)
    other = jdist.attach(own.name)
    try:
        cell = f"import time\nif rank == 1:\n    open({str(begun)!r}, 'w').close()\ntime.sleep(100)"
        run = own.run(cell, background=True)
        assert eventually(begun.exists)
        anatomy.kill(anatomy.worker(own, 1))
        assert run.wait(60), run.outcomes
        assert run.outcomes[1].kind == "lost"
        for client in (own, other):
            assert eventually(lambda c=client: c.asynchronous.link.lost)
            with pytest.raises(jdist.ConnectionLost, match=r"rank 1 \(node 0.*started to stop.*SIGKILL"):
                client.run("1")
        assert eventually(lambda: own.name not in find.connections())
    finally:
        other.detach()
        own.detach()
    assert eventually(lambda: not traces.excess(before)), traces.excess(before)


def test_an_idle_death_is_told_above_the_next_cell_and_in_status(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 1)
    paper = Paper()
    session = Session(paper, {}, "test")
    session.use(own)
    assert "lost" not in status(own)
    anatomy.kill(pid := anatomy.worker(own, 1))
    assert eventually(lambda: pid not in {r.pid for r in own.status().ranks})
    own.run(ALL_REDUCE, timeout=60)
    told = "\n".join(session.drain_notices())
    assert "rank 1 (node 0" in told
    assert "is lost: killed by signal 9 (SIGKILL" in told
    assert "rank 1 is fresh: its namespace is lost; %dist restore 1 --from 0 NAMES to copy" in told
    text = status(own)
    assert "idle, fresh" in text
    assert "is fresh since" in text
    other = Session(paper, {}, "test")
    verbs.call(other, "attach", [own.name])
    verbs.call(other, "detach", [])
    assert "rank 1 is fresh since" in paper.text


def test_a_policy_that_is_none() -> None:
    with pytest.raises(jdist.UsageError, match="replace, wait, stop"):
        jdist.start(1, 1, on_death="ignore")  # type: ignore[arg-type]


# ---------------------------------------------------------------- out of memory

MEMORY_V1 = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")
LIMIT = 1500 << 20

EATER = """
import jdist
with jdist.start(2, 1, backend="gloo", timeout=60, name="hungry", idle_timeout=30) as cluster:
    try:
        cluster.run("if rank == 1:\\n    x = [torch.ones(1 << 22) for _ in range(200)]\\ndist.barrier()", timeout=60)
    except jdist.RankLost as e:
        print(e)
    print(cluster.run("dist.get_world_size()", timeout=20).values)
"""


@pytest.fixture
def small_cgroup() -> object:
    """A cgroup of 1.5 GB. Skips where this user can make none."""
    is_unified = (UNIFIED / "cgroup.controllers").exists()
    parent = UNIFIED if is_unified else MEMORY_V1
    group = parent / f"jdist-test-hungry-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if is_unified else "memory.limit_in_bytes")).write_text(str(LIMIT))
    except OSError as e:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made below {parent}: {e}")
    yield group
    assert eventually(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_a_rank_that_the_kernel_killed_for_memory(traces: Traces, small_cgroup: Path) -> None:
    enter = f"import os; open({str(small_cgroup / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    done = subprocess.run(
        [sys.executable, "-c", enter + EATER], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr + log_path("hungry").read_text()
    assert "rank 1 (node 0" in done.stdout
    assert "killed by signal 9 (SIGKILL), out of memory: the kernel's" in done.stdout
    assert done.stdout.endswith("{0: 2, 1: 2}\n")
