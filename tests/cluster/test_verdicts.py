"""Verdicts on real hangs: the culprit, the collective and the line are named while the cell still runs.

Every hang is made on a cluster of 2 nodes x 2 ranks, judged, interrupted, and followed by a right all_reduce.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import jdist
from jdist.core.messages.observation import Verdict, VerdictChanged
from support.cells import ALL_REDUCE
from support.leaks import Traces
from support.shared_cluster import SharedCluster
from support.waits import eventually

SETUP = """
import datetime
import time
import torch.distributed._functional_collectives as funcol
pair = dist.new_group([0, 1])
if dist.get_debug_level() != dist.DebugLevel.DETAIL:  # with it, torch 2.13 and 2.14 crash in DDP without a GPU
    _net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
"""
JUDGED = 60.0
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
    "one rank skips a monitored barrier": Hang(
        "if rank != 2:\n    dist.monitored_barrier(timeout=datetime.timedelta(minutes=5))",
        "missing",
        (2,),
        "has not entered monitored_barrier of group world",
    ),
    "one rank sends to another that is in a monitored barrier": Hang(
        "dist.send(torch.ones(2), 0) if rank == 1 else dist.monitored_barrier(timeout=datetime.timedelta(minutes=5))",
        "cycle",
        (0, 1),
        "wait for each other in a circle",
    ),
    "one rank alone enters it": Hang(
        "if rank == 0: dist.reduce(torch.ones(2), 0)",
        "missing",
        (0,),
        "only rank 0 (node 0, {host}) has entered reduce #",
    ),
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
        "if rank == 0:\n    dist.recv(torch.ones(2), src=1)",
        "transfer",
        (1,),
        "rank 1 (node 0, {host}) has not sent to rank 0, which waits in recv from rank 1",
    ),
    "one recv more than there are sends, after an exchange": Hang(
        """
        x = torch.ones(2)
        if rank < 2:
            kept = [dist.isend(x, 1 - rank), dist.irecv(torch.ones(2), 1 - rank)]
            for w in kept: w.wait()
        if rank == 0: dist.recv(x, src=1)
        """,
        "transfer",
        (1,),
        "has sent 1 message to rank 0, which waits in recv number 2 from rank 1",
    ),
    "one recv in a batch more than there are sends": Hang(
        """
        def exchange(ops): return [w.wait() for w in dist.batch_isend_irecv(ops)]
        ops = [(dist.isend, torch.ones(2), (rank + 1) % 4), (dist.irecv, torch.ones(2), (rank + 3) % 4)]
        exchange([dist.P2POp(*op) for op in (ops[1:] if rank == 1 else ops)])
        """,
        "transfer",
        (1,),
        "has not sent to rank 2, which waits in irecv from rank 1",
    ),
    "a tag that nobody sends": Hang(
        "x = torch.ones(2)\nif rank == 0: dist.recv(x, src=1, tag=3)\nif rank == 1: kept = dist.isend(x, 0, tag=4)",
        "transfer",
        (1,),
        "has not sent to rank 0, which waits in recv from rank 1 with tag 3",
    ),
    "another tag on each side": Hang(
        "if rank == 0: dist.recv(torch.ones(2), src=1, tag=3)\nif rank == 1: dist.send(torch.ones(2), 0, tag=4)",
        "transfer",
        (0, 1),
        "send and receive past each other, with another tag",
    ),
    "another group on each side": Hang(
        "if rank == 0: dist.recv(torch.ones(2), src=1, group=pair)\nif rank == 1: dist.send(torch.ones(2), 0)",
        "transfer",
        (0, 1),
        "with another group",
    ),
    "recv from any, after one that was served": Hang(
        "if rank == 2:\n    for _ in range(2): dist.recv(torch.ones(2))\nif rank == 1: dist.send(torch.ones(2), 2)",
        "transfer",
        (0, 1, 3),
        "no rank has sent to rank 2",
    ),
    "recv from any": Hang("if rank == 2: dist.recv(torch.ones(2))", "transfer", (0, 1, 3), "from any rank"),
    "send to a rank that has finished": Hang(
        "if rank == 0: dist.send(torch.ones(2), dst=3)",
        "transfer",
        (3,),
        "has not received from rank 0, which waits in send to rank 3",
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
    "a key for which one waits, and the others for it": Hang(
        "if rank == 1:\n    dist.distributed_c10d._get_default_store().get('absent')\ndist.barrier()",
        "store",
        (1,),
        "rank 1 waits in store.get at cell line 2",
    ),
    "a key of a store of one's own, for which all wait": Hang(
        "dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False).wait(['absent'])",
        "store",
        (),
        "ranks 0-3 wait for key 'absent' at the store, and no rank is left that can set it",
    ),
    "two of them in another collective": Hang(
        "if rank < 2:\n    dist.barrier()\nelse:\n    dist.all_reduce(torch.ones(2))",
        "mismatch",
        (),
        "collectives at #",
    ),
    "objects on one rank": Hang(
        "if rank == 1:\n    dist.all_gather_object([None] * 4, 1)\nelse:\n    dist.all_reduce(torch.ones(2))",
        "mismatch",
        (1,),
        "ranks 0, 2-3 call all_reduce [2] float32 op=SUM (cell line 4)",
    ),
}


def prepare(cluster: jdist.Cluster) -> jdist.Cluster:
    """Make the groups that the cells use; a re-forming makes them again."""
    if cluster.run("'pair' in globals()", timeout=30).values != dict.fromkeys(range(4), True):
        cluster.run(SETUP, timeout=60)
    return cluster


@pytest.fixture
def ready(cluster: jdist.Cluster) -> jdist.Cluster:
    return prepare(cluster)


@pytest.fixture(scope="module")
def comparing_ranks(run_traces: Traces) -> Iterator[SharedCluster]:
    """A cluster whose ranks compare the arguments of each collective before they begin it."""
    ranks = SharedCluster(run_traces, "comparing", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, warm=False)
    ranks.get()
    yield ranks
    ranks.end()


@pytest.fixture
def comparing(comparing_ranks: SharedCluster, traces: Traces) -> Iterator[jdist.Cluster]:
    yield prepare(comparing_ranks.get())
    comparing_ranks.check()


def judged(run: jdist.CellRun) -> Verdict:
    found = eventually(lambda: (v := run.verdict) is not None and v.is_certain and v, JUDGED)
    assert found, f"no verdict: {run}, {run.verdict}"
    return found  # type: ignore[no-any-return]


def recovers(cluster: jdist.Cluster, run: jdist.CellRun) -> None:
    run.cancel()
    assert run.wait(60)
    assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)


def names_its_culprit(cluster: jdist.Cluster, hang: Hang) -> None:
    run = cluster.run(textwrap.dedent(hang.code), background=True)
    found = judged(run)
    assert (found.kind, found.responsible) == (hang.kind, hang.responsible), str(found)
    assert hang.words.format(host=cluster.topology.hostnames[0]) in str(found)
    assert run.state == "running"
    (shown,) = cluster.status().verdicts  # a later poll may have found it again: then its times are later
    assert shown.is_same_finding(found)
    recovers(cluster, run)
    with pytest.raises(jdist.CellInterrupted, match="did not finish"):
        run.check()


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_names_its_culprit(ready: jdist.Cluster, name: str) -> None:
    names_its_culprit(ready, HANGS[name])


COMPARED = {n: h for n, h in HANGS.items() if h.kind != "mismatch" and not re.search(r"_net|funcol", h.code)}
COMPARED["async and waited for"] = HANGS["async and waited for"]._replace(words="line 2")  # the call itself blocks


@pytest.mark.parametrize("name", COMPARED)
def test_a_hang_names_its_culprit_where_torch_compares_calls_first(comparing: jdist.Cluster, name: str) -> None:
    names_its_culprit(comparing, COMPARED[name])


def test_a_failure_frees_the_others_where_torch_compares_calls_first(comparing: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellError, match="ZeroDivisionError") as caught:
        comparing.run("1 / 0 if rank == 1 else dist.barrier()", timeout=60)
    assert {r: o.kind for r, o in caught.value.outcomes.items() if r != 1} == dict.fromkeys((0, 2, 3), "interrupted")


SIZES = "n = 1007 if rank == 2 else 1000\n"
MISFITS = {
    "operation": (
        "dist.all_reduce(torch.ones(4)) if rank != 2 else dist.broadcast(torch.ones(4), 0)",
        (2,),
        "different",
    ),
    "root": ("dist.broadcast(torch.ones(4), src=1 if rank == 2 else 0)", (2,), "in root"),
    "all_reduce": (f"{SIZES}dist.all_reduce(torch.ones(n))", (2,), "in size"),
    "all_reduce, asynchronous": (f"{SIZES}dist.all_reduce(torch.ones(n), async_op=True).wait()", (2,), "in size"),
    "all_reduce of two and two": ("dist.all_reduce(torch.ones(1000 + rank // 2))", (), "in size"),
    "dtype": (
        "dist.all_reduce(torch.ones(1000, dtype=torch.float64 if rank == 2 else torch.float32))",
        (2,),
        "in dtype",
    ),
    "functional": (
        f"{SIZES}(funcol.all_reduce(torch.ones(n), 'sum', dist.group.WORLD) + 1).sum().item()",
        (2,),
        "in size",
    ),
    "all_gather": (f"{SIZES}dist.all_gather([torch.ones(n) for _ in range(4)], torch.ones(n))", (2,), "in size"),
    "reduce": (f"{SIZES}dist.reduce(torch.ones(n), 0)", (2,), "in size"),
    "reduce_scatter": (
        f"{SIZES}dist.reduce_scatter(torch.ones(n), [torch.ones(n) for _ in range(4)])",
        (2,),
        "in size",
    ),
    "gather": (
        f"{SIZES}dist.gather(torch.ones(n), [torch.ones(1000) for _ in range(4)] if rank == 0 else None)",
        (2,),
        "in size",
    ),
    "broadcast": ("dist.broadcast(torch.ones(907 if rank == 2 else 1000), 0)", (2,), "in size"),
    "scatter": (
        "dist.scatter(torch.ones(907 if rank == 2 else 1000), [torch.ones(1000)] * 4 if rank == 0 else None)",
        (2,),
        "in size",
    ),
    "all_to_all_single": (
        "n = 1004 if rank == 2 else 1000\ndist.all_to_all_single(torch.ones(n), torch.ones(n))",
        (2,),
        "in size",
    ),
    "all_to_all": (
        f"{SIZES}dist.all_to_all([torch.ones(n) for _ in range(4)], [torch.ones(n) for _ in range(4)])",
        (2,),
        "in split sizes",
    ),
    "splits": (
        "s = [1, 1, 1, 1 + (rank == 2)]\ndist.all_to_all_single(torch.ones(4), torch.ones(sum(s)), [1] * 4, s)",
        (),
        "in split sizes",
    ),
    "a pair": ("if rank < 2: dist.all_reduce(torch.ones(1000 + rank), group=pair)", (), "of group of ranks 0-1"),
    "DDP": (
        "_net(torch.ones(1, 3)).sum().backward() if rank != 2 else dist.all_reduce(torch.ones(9))",
        (2,),
        "in size",
    ),
    "send": (
        "if rank == 0: dist.send(torch.ones(1001), 1)\nif rank == 1: dist.recv(torch.ones(1000))",
        (),
        "what rank 0 sends to rank 1 differs in size",
    ),
    "isend": (
        "if rank == 0: dist.isend(torch.ones(9).double(), 1).wait()\nif rank == 1: dist.irecv(torch.ones(9), 0).wait()",
        (),
        "what rank 0 sends to rank 1 differs in dtype",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_calls_that_do_not_fit_are_told_side_by_side_whether_they_hang_or_gloo_ends_a_rank(
    ready: jdist.Cluster, name: str
) -> None:
    """Which rank gloo ends, if any, is not for a test to say: the verdict is the same."""
    code, responsible, what = MISFITS[name]
    run = ready.run(f"dist.barrier()\n{code}\ndist.barrier()", background=True)
    found = eventually(lambda: (v := run.verdict) is not None and v.kind == "mismatch" and v, JUDGED)
    assert found, f"no mismatch: {run}, {run.verdict}"
    if any(o.kind == "lost" for o in run.outcomes.values()):
        assert run.wait(JUDGED)
        assert run.verdict is not None
        found = run.verdict  # once all ranks that gloo has ended are known
    recovers(ready, run)
    assert (found.kind, found.responsible, found.has_passed) == ("mismatch", responsible, False), str(found)
    assert what in found.headline, str(found)
    assert sum("call" in line and "(cell line" in line for line in found.details) >= 2, str(found)
    with pytest.raises(jdist.JdistError, match=re.escape(found.reason)):
        run.check()


def test_how_much_a_lost_rank_explains(ready: jdist.Cluster) -> None:
    """Whoever is killed from outside is lost, and nothing else."""
    with pytest.raises(jdist.RankLost, match="SIGABRT"):
        ready.run("import os\nif rank == 1:\n    os.abort()\ndist.all_reduce(torch.ones(4))", timeout=30)
    recovered = ready.run(ALL_REDUCE, timeout=60)
    assert recovered.values == dict.fromkeys(range(4), 4.0)


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
    assert run.wait(60)
    assert run.values == {0: [6.0, 6.0], 1: [1.0, 1.0], 2: [6.0, 6.0], 3: [6.0, 6.0]}
    assert run.verdict is None, "it came to a good end"
    assert ready.generation == generation


def test_a_deadline_tells_what_the_ranks_did(ready: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellTimeout, match="still busy") as raised:
        ready.run("x = 1\ntime.sleep(100)", timeout=4.0)
    verdict = raised.value.run.verdict
    assert verdict is not None
    assert "rank 0 is at cell line 2: time.sleep(100)" in str(verdict)
    assert ready.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)


def test_a_rank_that_is_late_is_not_accused(ready: jdist.Cluster) -> None:
    told: list[object] = []
    run = ready.run(
        "if rank == 2: time.sleep(2)\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()", background=True, timeout=30
    )
    run.watch(lambda m: told.append(m) if isinstance(m, VerdictChanged) and m.verdict else None)
    assert run.wait(20)
    assert run.values == dict.fromkeys(range(4), 4.0)
    assert told == []


def test_whom_the_others_wait_for_is_said_after_a_while(ready: jdist.Cluster) -> None:
    late = "late = True\nif rank == 2:\n    while late: time.sleep(0.01)\ndist.all_reduce(torch.ones(1))"
    run = ready.run(late, background=True, timeout=120)
    found = eventually(lambda: run.verdict, JUDGED)
    assert found, "slow, and nobody said so"
    assert (found.kind, found.responsible, found.is_certain) == ("slow", (2,), False)
    assert "rank 2 is at cell line 3: while late: time.sleep(0.01)" in str(found)
    ready.push(late=False)
    assert run.wait(20)
    run.check()
    assert run.verdict is None


LOOP = """\
if rank == 1:
    while True: pass
if rank == 0:
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(2), 1)])[0].wait()
if rank == 2:
    list(map(lambda w: w.wait(), [dist.irecv(torch.ones(2), 1)]))
[dist.all_reduce(torch.ones(2), async_op=True)].pop().wait()
"""


def test_a_loop_on_one_rank_is_named_to_those_that_wait_for_it(ready: jdist.Cluster) -> None:
    """However the wait is written: here no name holds the Work."""
    run = ready.run(LOOP, background=True)
    waiting, line = (0, 2, 3), "rank 1 is at cell line 2: while True: pass"

    def slow() -> Verdict | None:
        """With the line, which is not known before rank 1 has answered: on a busy machine, not in the first poll."""
        verdict = run.verdict
        return verdict if verdict is not None and verdict.waiting == waiting and line in str(verdict) else None

    found = eventually(slow, JUDGED)
    assert found, f"slow, and nobody said so: {run.verdict}"
    assert (found.kind, found.responsible, found.is_certain) == ("slow", (1,), False), str(found)
    text = str(found)
    assert "in irecv at cell line 4" in text
    assert "in irecv at cell line 6" in text
    assert re.search(r"in all_reduce #\d+ \[2\] float32 of group world at cell line 7", text), text
    recovers(ready, run)


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
