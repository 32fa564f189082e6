"""After a failure: cells run in the frame in which each rank has failed, and a held cell pauses there."""

from __future__ import annotations

from pathlib import Path

import pytest

import jdist
from jdist.client.active_runs import script_cell
from support.pauses import TIMEOUT, paused, places
from support.waits import eventually

FAILS = """\
def loss_of(batch):
    scaled = batch * 10
    if rank in (1, 2):
        int('no number')
    return scaled

def train():
    mine = rank * 2
    return loss_of(mine)

train()
"""


def test_cells_run_where_each_rank_has_failed(cluster: jdist.Cluster) -> None:
    run = cluster.run(FAILS, background=True, timeout=TIMEOUT)
    assert run.wait(TIMEOUT)
    stacks = cluster.debug()
    found = {r: " ".join(f"{f.function}:{f.line}" for f in s.frames) for r, s in stacks.items()}
    assert found == dict.fromkeys((1, 2), "<cell>:11 train:9 loss_of:4")
    assert {(s.run, s.reason, s.error) for s in stacks.values()} == {
        (run.number, "failure", "ValueError: invalid literal for int() with base 10: 'no number'")
    }

    def looked(code: str) -> dict[int, object]:
        return cluster.run(code, ranks=[1, 2], in_failure=True, timeout=TIMEOUT).values

    assert looked("batch, scaled") == {1: (2, 20), 2: (4, 40)}
    assert looked("scaled += 1\nextra = [scaled for _ in range(2)]\nextra") == {1: [21, 21], 2: [41, 41]}
    assert looked("extra") == {1: [21, 21], 2: [41, 41]}
    with pytest.raises(jdist.CellError):
        looked("1 / 0")
    assert looked("scaled") == {1: 21, 2: 41}
    cluster.up(ranks=[1, 2])
    assert looked("mine") == {1: 2, 2: 4}
    assert {s.chosen for s in cluster.where([1, 2]).values()} == {1}
    cluster.down(ranks=[1, 2])
    assert looked("scaled, rank") == {1: (21, 1), 2: (41, 2)}
    assert cluster.run("rank", ranks=0, in_failure=True, timeout=TIMEOUT).values == {0: 0}  # it has not failed
    cluster.stop_debugging()
    with pytest.raises(jdist.UsageError, match="no rank is paused"):
        cluster.where()
    assert cluster.run("'scaled' in globals(), 'extra' in globals()", timeout=TIMEOUT).values == dict.fromkeys(
        range(4), (False, False)
    )
    with pytest.raises(jdist.UsageError, match="no rank failed"):
        cluster.debug()


def test_tensors_of_a_failed_frame_are_freed_at_the_end_of_debugging(cluster: jdist.Cluster) -> None:
    fails = """\
import weakref
def train():
    global held
    activations = torch.ones(1000)
    held = weakref.ref(activations)
    activations.view(7)
train()
"""
    assert cluster.run(fails, background=True, timeout=TIMEOUT).wait(TIMEOUT)
    cluster.debug()
    assert cluster.run("float(activations.sum())", in_failure=True, timeout=TIMEOUT).values[0] == 1000
    assert set(cluster.pull("held() is None").values()) == {False}
    cluster.stop_debugging()
    assert set(cluster.pull("held() is None").values()) == {True}


def test_a_held_failure_pauses_and_the_others_wait_where_they_are(cluster: jdist.Cluster) -> None:
    code = """\
def f():
    x = torch.ones(2)
    try:
        if rank == 3: x.view(7)
    finally:
        done = True
    dist.all_reduce(x)
    return x.tolist()
f()
"""
    generation = cluster.asynchronous.facts.generation
    run = paused(cluster, code, [3], hold=True)
    at = run.paused[3]
    assert (at.reason, places(run)[3]) == ("failure", "f:4")
    assert at.error.startswith("RuntimeError: shape '[7]' is invalid")
    assert cluster.run("done, x.shape[0]", ranks=3).values == {3: (True, 2)}
    with pytest.raises(jdist.CellError):
        cluster.run("x.view(9)", ranks=3)
    assert not run.is_done
    assert set(run.paused) == {3}
    # What the others wait for is called in its frame, so that nothing is torn down.
    assert cluster.run("dist.all_reduce(x)\nx.tolist()", ranks=3, timeout=TIMEOUT).values == {3: [4.0, 4.0]}
    gone_on = cluster.resume(timeout=TIMEOUT)
    assert gone_on.others == {3: f"failed in run {run.number}: {at.error}"}
    assert run.wait(TIMEOUT)
    assert run.values == {r: [4.0, 4.0] for r in range(3)}
    error = run.outcomes[3].error
    assert error is not None
    assert error.ename == "RuntimeError"
    assert "[7]" in error.evalue
    assert (error.cell_line, error.source) == (4, "if rank == 3: x.view(7)")
    assert "view" in "".join(error.traceback)
    assert cluster.asynchronous.facts.generation == generation


def test_a_held_script_pauses_where_it_has_failed_or_exited(cluster: jdist.Cluster, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys\ndef main(n):\n    half = n / 2\n    assert half > 9, half\nmain(int(sys.argv[1]))\n")
    run = cluster.run(script_cell(str(script), ["5"]), background=True, hold=True)
    assert eventually(lambda: set(run.paused) == set(range(4)) or run.is_done)
    assert places(run) == dict.fromkeys(range(4), "main:4")
    assert {at.error for at in run.paused.values()} == {"AssertionError: 2.5"}
    assert cluster.run("n, half, __file__").values == dict.fromkeys(range(4), (5, 2.5, str(script)))
    cluster.resume(timeout=1)
    assert run.wait(TIMEOUT)
    assert {o.error.ename for o in run.outcomes.values() if o.error} == {"AssertionError"}

    script.write_text("import sys\ncode = 3\nsys.exit(code)\n")
    run = paused(cluster, script_cell(str(script), []), range(4), hold=True)
    assert {at.at.line for at in run.paused.values()} == {3}
    assert cluster.run("code").values == dict.fromkeys(range(4), 3)
    cluster.resume(timeout=1)
    assert run.wait(TIMEOUT)
    assert {o.error.exit_code for o in run.outcomes.values() if o.error} == {3}

    script.write_text("import sys\nsys.exit(0)\n")
    assert cluster.run(script_cell(str(script), []), background=True, hold=True).wait(TIMEOUT)


def test_an_interrupt_ends_a_held_failure(cluster: jdist.Cluster) -> None:
    run = paused(cluster, "1 / 0", range(4), hold=True)
    run.cancel()
    assert run.wait(TIMEOUT)
    assert {o.error.ename for o in run.outcomes.values() if o.error} <= {"ZeroDivisionError", "KeyboardInterrupt"}
    assert cluster.run("rank", timeout=TIMEOUT).values == {r: r for r in range(4)}
