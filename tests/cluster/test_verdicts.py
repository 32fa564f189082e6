"""Verdicts on real hangs: the culprit, the collective and the line are named while the cell still runs.

Every hang is made on a cluster of 2 nodes x 2 ranks, judged, interrupted, and followed by a right all_reduce.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

import jdist
from jdist.core.observation import Verdict
from support.cells import ALL_REDUCE
from support.waits import eventually

SETUP = """
import time
import torch.distributed._functional_collectives as funcol
pair = dist.new_group([0, 1])
_net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
"""
JUDGED = 10.0
"""Seconds until a test gives up waiting for a verdict; how soon it really comes is benchmarks/verdict.py's matter."""


class Hang(NamedTuple):
    code: str
    kind: str
    responsible: tuple[int, ...]
    words: str
    """Somewhere in the verdict's text."""


HANGS = {
    "one rank skips it": Hang(
        "if rank != 1:\n    dist.all_reduce(torch.ones(16))", "missing", (1,), "[16] float32 of group world"
    ),
    "one rank skips a barrier": Hang("if rank: dist.barrier()", "missing", (0,), "has not entered barrier #"),
    "two ranks skip it": Hang("if rank > 1:\n    dist.all_reduce(torch.ones(2))", "missing", (0, 1), "at cell line 2"),
    "async and waited for": Hang(
        "if rank != 3:\n    h = dist.all_reduce(torch.ones(2), async_op=True)\n    h.wait()", "missing", (3,), "line 3"
    ),
    "in a subgroup": Hang("if rank == 0: dist.all_reduce(torch.ones(4), group=pair)", "missing", (1,), "of ranks 0-1"),
    "objects": Hang("if rank != 2: dist.all_gather_object([None] * 4, rank)", "missing", (2,), "all_gather"),
    "DDP's backward": Hang("if rank != 2:\n    _net(torch.ones(1, 3)).sum().backward()", "missing", (2,), "line 2"),
    "a functional collective": Hang(
        "if rank != 1:\n    (funcol.all_reduce(torch.ones(2), 'sum', dist.group.WORLD) + 1).sum().item()",
        "missing",
        (1,),
        "line 2",
    ),
    "recv from a rank that has finished": Hang(
        "if rank == 0:\n    dist.recv(torch.ones(2), src=1)", "transfer", (1,), "waits in recv from rank 1"
    ),
    "recv from any": Hang("if rank == 2: dist.recv(torch.ones(2))", "transfer", (0, 1, 3), "from any rank"),
    "send to a rank that has finished": Hang(
        "if rank == 0: dist.send(torch.ones(2), dst=3)", "transfer", (3,), "waits in send to rank 3"
    ),
    "irecv waited for": Hang("if rank == 3: dist.irecv(torch.ones(2), src=0).wait()", "transfer", (0,), "from rank 0"),
    "receives that cross": Hang(
        "if rank < 2: dist.recv(torch.ones(2), src=1 - rank)", "transfer", (0, 1), "cross each other's"
    ),
    "groups the other way round": Hang(
        "if rank == 0: dist.all_reduce(torch.ones(1), group=pair)\ndist.all_reduce(torch.ones(1))",
        "cycle",
        (0, 1),
        "wait for each other in a circle",
    ),
    "new_group on some ranks": Hang(
        "if rank != 2: dist.new_group([0, 1, 2, 3])", "store", (2,), "not called new_group"
    ),
    "a key that nobody sets": Hang(
        "if rank == 1: dist.distributed_c10d._get_default_store().wait(['absent'])", "store", (0, 2, 3), "absent"
    ),
}


@pytest.fixture
def ready(cluster: jdist.Cluster) -> jdist.Cluster:
    """Groups that the cells use; a re-forming makes them again."""
    if cluster.run("'pair' in globals()", timeout=30).values != dict.fromkeys(range(4), True):
        cluster.run(SETUP, timeout=60)
    return cluster


def judged(run: jdist.CellRun) -> Verdict:
    found = eventually(lambda: (v := run.verdict) is not None and v.is_certain and v, JUDGED)
    assert found, f"no verdict: {run}, {run.verdict}"
    return found  # type: ignore[no-any-return]


def recovers(cluster: jdist.Cluster, run: jdist.CellRun) -> None:
    run.cancel()
    assert run.wait(10)
    assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_names_its_culprit(ready: jdist.Cluster, name: str) -> None:
    hang = HANGS[name]
    run = ready.run(hang.code, background=True)
    found = judged(run)
    assert (found.kind, found.responsible) == (hang.kind, hang.responsible), str(found)
    assert hang.words in str(found)
    assert run.state == "running"
    assert ready.status().verdicts == (found,)
    recovers(ready, run)
    with pytest.raises(jdist.CellInterrupted, match="did not finish"):
        run.check()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("dist.all_reduce(torch.ones(4)) if rank != 2 else dist.broadcast(torch.ones(4), 0)", "different collectives"),
        ("dist.all_reduce(torch.ones(4 if rank != 2 else 8))", "in size"),
        ("dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 2 else torch.float32))", "in dtype"),
        ("dist.broadcast(torch.ones(4), src=1 if rank == 2 else 0)", "in root"),
    ],
)
def test_calls_that_do_not_fit_are_told_side_by_side(ready: jdist.Cluster, code: str, what: str) -> None:
    """Some ranks may fail in such a call, and then the others are freed by themselves."""
    run = ready.run(f"dist.barrier()\n{code}\ndist.barrier()", background=True)
    found = judged(run)
    if found.kind == "lost":  # gloo ends the process of a rank that gets more than it expects
        assert run.wait(10)
        found = run.verdict or found
        died = [r for r, o in run.outcomes.items() if o.kind == "lost"]
    else:
        died = []
    recovers(ready, run)
    if 2 not in died:
        assert (found.kind, what in found.headline) == ("mismatch", True), str(found)
        assert 2 in found.responsible
        assert "rank 2 calls" in str(found)


def test_a_rank_that_raises_has_the_others_freed(ready: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellError, match=r"rank 2 .* failed .*ValueError: no data") as raised:
        ready.run("if rank == 2:\n    raise ValueError('no data')\ndist.all_reduce(torch.ones(1))\nrank")
    run = raised.value.run
    assert run.verdict is not None
    assert (run.verdict.kind, run.verdict.responsible) == ("missing", (2,))
    assert "ValueError: no data" in str(run.verdict)
    assert ready.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)


def test_the_missing_rank_can_join(ready: jdist.Cluster) -> None:
    generation = ready.generation
    run = ready.run("t = torch.full((2,), float(rank))\nif rank != 1: dist.all_reduce(t)\nt.tolist()", background=True)
    found = judged(run)
    assert [(r.action, r.ranks) for r in found.remedies] == [("interrupt", ""), ("run_cell", "1")]
    joined = ready.run("dist.all_reduce(t); t.tolist()", ranks="1", timeout=20)
    assert joined.values == {1: [6.0, 6.0]}
    assert run.wait(10)
    assert run.values == {0: [6.0, 6.0], 1: [1.0, 1.0], 2: [6.0, 6.0], 3: [6.0, 6.0]}
    assert run.verdict is None, "it came to a good end"
    assert ready.generation == generation


def test_a_deadline_tells_what_the_ranks_did(ready: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellTimeout, match="still busy") as raised:
        ready.run("x = 1\ntime.sleep(100)", timeout=1.5)
    verdict = raised.value.run.verdict
    assert verdict is not None
    assert "rank 0 is at cell line 2: time.sleep(100)" in str(verdict)
    assert ready.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)


def test_a_rank_that_is_late_is_not_accused(ready: jdist.Cluster) -> None:
    told: list[object] = []
    run = ready.run(
        "if rank == 2: time.sleep(2)\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()", background=True, timeout=30
    )
    run.watch(lambda m: told.append(m) if type(m).__name__ == "Judged" else None)
    assert run.wait(20)
    assert run.values == dict.fromkeys(range(4), 4.0)
    assert told == []


def test_whom_the_others_wait_for_is_said_after_a_while(ready: jdist.Cluster) -> None:
    run = ready.run("if rank == 2:\n    time.sleep(7)\ndist.all_reduce(torch.ones(1))", background=True, timeout=30)
    found = eventually(lambda: run.verdict, JUDGED)
    assert found, "slow, and nobody said so"
    assert (found.kind, found.responsible, found.is_certain) == ("slow", (2,), False)
    assert "rank 2 is at cell line 2: time.sleep(7)" in str(found)
    assert run.wait(20)
    run.check()
    assert run.verdict is None


PASSES = {
    "reduction": "dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)",
    "dtype": "dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 2 else torch.float32))",
    "size": "dist.broadcast(torch.ones(8 if rank == 2 else 4), src=0)",
}


@pytest.mark.parametrize("what", PASSES)
def test_calls_that_gloo_lets_pass_although_they_do_not_fit(ready: jdist.Cluster, what: str) -> None:
    run = ready.run(f"for _ in range(3):\n    dist.all_reduce(torch.ones(1))\n{PASSES[what]}\nrank")
    assert run.values == {0: 0, 1: 1, 2: 2, 3: 3}, "nothing has failed"
    found = run.verdict
    assert found is not None, "the numbers are wrong, and nobody said so"
    assert (found.kind, found.responsible, found.has_passed, found.is_certain) == ("mismatch", (2,), True, False)
    assert f"finished, but {found.op} #{found.number} of group world differed between ranks in {what}" in str(found)
    assert [line.partition(" call")[0] for line in found.details] == ["ranks 0-1, 3", "rank 2"]
    assert all("(cell line 3)" in line for line in found.details)
    good = ready.run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item()")
    assert good.values == dict.fromkeys(range(4), 4.0)
    assert good.verdict is None
