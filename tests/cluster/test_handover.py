"""Handover: ranks that gloo or C code of a cell's ends are started again with their names, and training goes on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest

import jdist
from jdist.core.messages.status import Notice
from jdist.notebook.text.cluster_text import describe_loss
from support.waits import eventually

MISMATCH = "dist.all_reduce(torch.ones(1001 if rank == 1 else 1000))"
ABORT = "import os\nif rank == 2: os.abort()\ndist.barrier()"
BEGIN = """
from torch.nn.parallel import DistributedDataParallel as DDP
pair = dist.new_group([0, 1])
every = dist.new_group([0, 1, 2, 3])
def begin():
    global model, optimizer, scheduler, done
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).double()
    model = DDP(layers, process_group=every, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    done = 0
def step():
    global done
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * done + rank)).double()
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    done += 1
    return loss.item()
"""
STUCK = """
def stuck():
    import ctypes
    mutex = ctypes.create_string_buffer(40)
    for _ in range(2): ctypes.CDLL(None).pthread_mutex_lock(mutex)
if rank in (1, 2): stuck()
dist.barrier()
"""
"""No signal ends the second lock of a mutex, in C without the interpreter lock."""
IGNORING = """
import signal
class Pair: first = second = 0
pair_of_counts = Pair()
if rank == 1:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pair_of_counts.first += 1
        pair_of_counts.second += 1
dist.barrier()
"""
STATE = "done, *scheduler.get_last_lr(), float(sum(p.abs().sum() for p in model.parameters()))"


@pytest.fixture
def notices(cluster: jdist.Cluster) -> Iterator[list[str]]:
    heard: list[str] = []
    unwatch = cluster.asynchronous.watch(lambda m: heard.append(m.text) if isinstance(m, Notice) else None)
    yield heard
    unwatch()


def crash(cluster: jdist.Cluster, code: str) -> set[int]:
    """The ranks that were lost in a cell, each of which has come back."""
    with pytest.raises(jdist.RankLost) as failed:
        cluster.run(code, timeout=60)
    lost = {rank for rank, outcome in failed.value.run.outcomes.items() if outcome.kind == "lost"}
    assert lost
    cluster.run("pass", timeout=120)
    assert not any(row.fresh for row in cluster.status().ranks)
    return lost


def test_training_goes_on_to_the_same_numbers(cluster: jdist.Cluster, notices: list[str]) -> None:
    cluster.run(BEGIN)
    alone = cluster.run(f"begin()\nlosses = [step() for _ in range(8)]\nlosses, ({STATE})", timeout=120).values
    cluster.run("begin()\nlosses = [step() for _ in range(4)]", timeout=60)
    for code in (MISMATCH, MISMATCH, ABORT):
        lost = crash(cluster, code)
        assert lost == {
            r for r in lost for n in notices if n.startswith(f"rank {r} was started again and has its names")
        }
        notices.clear()
        cluster.run("losses.append(step())", timeout=120)
    assert lost == {2}
    found = cluster.run(f"losses.append(step())\nlosses, ({STATE})", timeout=60).values
    for rank in range(4):  # to rounding: DDP begins anew with its buckets, and a ring adds in another order then
        assert found[rank][0] == pytest.approx(alone[rank][0], rel=1e-12)
        assert found[rank][1] == pytest.approx(alone[rank][1], rel=1e-12)
        assert found[rank][1] == found[0][1]
    assert cluster.run("t = torch.ones(1)\nif rank < 2: dist.all_reduce(t, group=pair)\nt.item()").values[1] == 2.0


def test_code_that_saves_all_signal_handlers_and_restores_them_does_not_cost_the_names(cluster: jdist.Cluster) -> None:
    """As Lightning's Trainer does; Python itself knows of no handlers but its own."""
    restore = """
    import signal
    saved = {n: signal.getsignal(n) for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}}
    signal.signal(signal.SIGABRT, print)
    for number, handler in saved.items():
        if handler is not None: signal.signal(number, handler)
    del saved
    """
    for code in (MISMATCH, ABORT):
        lost = crash(cluster, textwrap.dedent(restore) + f"kept = rank\n{code}")
        found = cluster.run("kept", timeout=60).values
        assert {r: found[r] for r in lost} == {r: r for r in lost}


def test_what_cannot_be_carried_is_named_and_the_history_and_the_session_are_there(
    cluster: jdist.Cluster, notices: list[str]
) -> None:
    cluster.run("gen = (i for i in range(3))\nimport os\nhome = os.getcwd()\nx = rank")
    cluster.run("os.environ['MINE'] = 'x'\nos.chdir('/tmp')")
    cluster.run("x * 100")
    cluster.run("def broken():\n    return 1 / 0")
    lost = crash(cluster, MISMATCH)
    for rank in lost:
        (told,) = [n for n in notices if n.startswith(f"rank {rank} was started again and has its names from before")]
        assert "gen (generator)" in told
    rank = min(lost)
    found = cluster.run("x, Out[max(Out)], os.environ['MINE'], os.getcwd(), 'gen' in globals(), In[-4][:3]").values
    assert found[rank] == (rank, rank * 100, "x", "/tmp", False, "def")
    assert found[3] == (3, 300, "x", "/tmp", True, "def")
    with pytest.raises(jdist.CellError) as failed:
        cluster.run("broken()")
    error = failed.value.run.outcomes[rank].error
    assert error is not None
    assert (error.cell_line, error.source) == (2, "return 1 / 0"), error
    cluster.run("globals().pop('gen', None)\ndel os.environ['MINE']\nos.chdir(home)")


UNENDING = {
    "a loop": "while True: pass",
    "a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "an exit": "raise SystemExit(3)",
}


def test_values_whose_own_code_does_not_end_are_lost_alone(cluster: jdist.Cluster, notices: list[str]) -> None:
    for i, code in enumerate(UNENDING.values()):
        cluster.run(f"class Kind{i}:\n    def __reduce__(self):\n        {code}\nvalue{i} = [Kind{i}()]")
    cluster.run("x = torch.full((1000,), float(rank)); y = x[1:]")
    with pytest.raises(jdist.RankLost, match="SIGABRT"):
        cluster.run("import os\nif rank == 1: os.abort()")
    found = cluster.run("x.mean().item(), y.data_ptr() - x.data_ptr(), 'value0' in globals()", timeout=120).values
    assert found == {rank: (float(rank), 4, rank != 1) for rank in range(4)}
    (told,) = [n for n in notices if n.startswith("rank 1 was started again and has its names from before")]
    for i in range(2):
        assert f"value{i} (list: saving it took longer than 5 s)" in told
    assert "value2[0] (Kind2: saving it raised SystemExit)" in told
    cluster.run("".join(f"globals().pop('value{i}', None)\n" for i in range(len(UNENDING))) + "Out.clear()")


STOPPING = "class Dead:\n    def __reduce__(self): import ctypes; ctypes.PyDLL(None).sleep(60)\n"
"""Python cannot run meanwhile, so that nothing can be saved."""


def test_a_rank_that_gets_stuck_while_it_saves_is_fresh(fresh_cluster: Callable[..., jdist.Cluster]) -> None:
    own = fresh_cluster(2, 1)
    own.run(f"{STOPPING}dead, x = Dead(), rank", ranks=[1])
    own.run("x = rank", ranks=[0])
    with pytest.raises(jdist.RankLost, match="SIGABRT"):
        own.run("import os\nif rank == 1: os.abort()")
    assert own.run("globals().get('x')", timeout=120).values == {0: 0, 1: None}
    assert [row.fresh for row in own.status().ranks] == [False, True]


def test_an_empty_place_keeps_the_names_until_it_is_restarted_and_a_child_hands_nothing_over(
    fresh_cluster: Callable[..., jdist.Cluster],
) -> None:
    own = fresh_cluster(2, 1, on_death="wait")
    own.run("import os\nran = globals().get('ran', 0) + 1", setup=True)
    own.run("x, ran = rank, 7")
    child = "pid = os.fork()\nif not pid: os.abort()\nos.waitpid(pid, 0)[1]"
    assert own.run(child, ranks=[1]).values == {1: 6}
    with pytest.raises(jdist.RankLost):
        own.run("if rank == 1: os.abort()")
    own.restart([1])
    assert own.run("x, ran").values == {0: (0, 7), 1: (1, 7)}, "the setup cell is not run again"
    own.restart([1])
    fresh = own.run("globals().get('x'), ran").values
    assert fresh == {0: (0, 7), 1: (None, 1)}, "one that lives is replaced by a fresh one"


def test_ranks_that_cannot_be_freed_are_started_again_with_their_names(
    fresh_cluster: Callable[..., jdist.Cluster],
) -> None:
    own = fresh_cluster(4, 1, interrupt_grace=3.0)
    heard: list[str] = []
    unwatch = own.asynchronous.watch(lambda m: heard.append(m.text) if isinstance(m, Notice) else None)
    own.run("import os\nran = globals().get('ran', 0) + 1", setup=True)
    own.run(BEGIN)
    alone = own.run(f"begin()\nlosses = [step() for _ in range(6)]\nlosses, ({STATE})", timeout=120).values
    own.run("begin()\nlosses = [step() for _ in range(4)]\ngen = (i for i in [1]) if rank == 2 else 0", timeout=60)
    pids = {row.rank: row.pid for row in own.status().ranks}
    reason = "it did not stop within 3 s of the interrupt and was started again"
    with pytest.raises(jdist.RankLost, match=f"ranks? 1.* lost: {reason}") as failed:
        own.run(STUCK, timeout=1.0)
    assert {r: o.kind for r, o in failed.value.outcomes.items()} == {0: "timeout", 1: "lost", 2: "lost", 3: "timeout"}
    found = own.run(f"losses += [step() for _ in range(2)]\nlosses, ({STATE})", timeout=120).values
    for rank in range(4):
        assert found[rank][0] == pytest.approx(alone[rank][0], rel=1e-12)
        assert found[rank][1] == pytest.approx(alone[rank][1], rel=1e-12)
    assert own.run("t = torch.ones(1); dist.all_reduce(t); t.item(), ran").values == dict.fromkeys(range(4), (4.0, 1))
    assert "rank 1 was started again and has its names from before" in heard
    assert "rank 2 was started again and has its names from before, except: gen (generator)" in heard
    rows = {row.rank: row for row in own.status().ranks}
    assert {r for r, row in rows.items() if row.pid != pids[r]} == {1, 2}
    assert not any(row.fresh for row in rows.values())
    assert describe_loss(rows[1]).startswith("was started again with its names at ")
    assert describe_loss(rows[1]).endswith(f": {reason}")
    unwatch()


@pytest.mark.parametrize("on_death", ["wait", "stop"])
def test_a_rank_that_ignores_interrupts_keeps_its_names_whatever_follows_a_death(
    fresh_cluster: Callable[..., jdist.Cluster], on_death: str
) -> None:
    own = fresh_cluster(2, 1, interrupt_grace=3.0, on_death=on_death)
    own.run("kept = rank")
    with pytest.raises(jdist.RankLost, match="did not stop within 3 s of the interrupt"):
        own.run(IGNORING, timeout=1.0)
    values = own.run("t = torch.ones(1); dist.all_reduce(t)\nt.item(), kept, vars(pair_of_counts)", timeout=120).values
    assert [values[rank][:2] for rank in (0, 1)] == [(2.0, 0), (2.0, 1)]
    counts = values[1][2]
    assert counts["first"] - counts["second"] in (0, 1), "the loop stood still while they were saved"
    assert counts["first"] > 0


def test_a_rank_that_cannot_be_freed_is_fresh_if_it_is_restarted_or_cannot_save(
    fresh_cluster: Callable[..., jdist.Cluster],
) -> None:
    own = fresh_cluster(2, 1, interrupt_grace=3.0)
    own.run(f"{STOPPING}kept = rank")
    with pytest.raises(jdist.RankLost, match="did not stop within 3 s"):
        own.run(f"dead = Dead() if rank else 0\n{STUCK}", timeout=1.0)
    assert own.run("globals().get('kept')", timeout=120).values == {0: 0, 1: None}
    own.run("kept = rank")
    run = own.run(STUCK, background=True)
    assert eventually(lambda: [look.doing.op for look in own.look([0]).values()] == ["barrier"])
    own.restart([1])
    assert run.wait(60)
    assert own.run("globals().get('kept')", timeout=120).values == {0: 0, 1: None}


def test_a_rank_that_aborts_keeps_its_names_while_another_is_restarted(
    cluster: jdist.Cluster, notices: list[str]
) -> None:
    """gloo ends a process whose peer sent more than it expected."""
    cluster.run("kept = rank; pair = dist.new_group([0, 1])", timeout=60)
    misfit = """
    t = torch.ones(500 if rank == 0 else 7)
    if rank < 2: dist.scatter(t, [t, t] if rank == 0 else None, src=0, group=pair)
    dist.barrier()
    """
    run = cluster.run(textwrap.dedent(misfit), background=True)
    assert eventually(lambda: "scatter" in str(run.verdict) or run.state == "done", 30.0)
    cluster.restart([0])
    assert cluster.run("globals().get('kept')", timeout=60).values == {0: None, 1: 1, 2: 2, 3: 3}, notices


def test_a_crash_in_a_paused_frame_hands_over_the_names_of_the_session(cluster: jdist.Cluster) -> None:
    """And not those of the frame, which the shell has while a cell runs there."""
    cluster.run("x = 1")
    code = "def f():\n    x, of_frame = 2, 3\n    breakpoint()\n    return x, of_frame\nf()"
    run = cluster.run(code, [1], background=True)
    assert eventually(lambda: run.paused)
    assert cluster.run("x", [1]).values == {1: 2}
    crashed = cluster.run("import os\nos.abort()", [1], check=False)
    assert crashed.outcomes[1].kind == "lost"
    found = cluster.run("x, 'of_frame' in globals()", timeout=60)
    assert found.values == dict.fromkeys(range(4), (1, False))
