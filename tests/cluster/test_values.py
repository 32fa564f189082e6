# ruff: noqa: PD011, PD013 (``.values`` are a run's here, and ``.stack`` is a rank's)
"""Values between notebook and ranks: every kind of value, every way it travels, and what is said when it cannot."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import torch

import jdist
from jdist.client.attachment import Attachment
from jdist.client.threads import bridge
from jdist.client.variables.carrier import Carrier
from jdist.core.errors import NotPicklable
from jdist.core.messages.base import ProbeWire
from jdist.notebook.output.screen import TerminalScreen
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import call
from support import anatomy, elsewhere
from support.lacking import with_own
from support.waits import eventually

WORLD = range(4)
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
]


def same(one: Any, other: Any) -> bool:
    """Bit for bit, with dtype and shape."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))


# ---------------------------------------------------------------- kinds of values


@pytest.mark.parametrize("size", [5, 300_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_there_and_back(cluster: jdist.Cluster, dtype: torch.dtype, size: int) -> None:
    """Small values travel in the message, large ones through shared memory."""
    sent = (torch.arange(size) % 3).to(dtype)
    cluster.push(ranks=[1], v=sent)
    got = cluster.pull("v", ranks=[1])[1]
    assert same(got, sent)
    assert cluster.run("str(v.dtype)", ranks=[1]).values == {1: str(dtype)}


@pytest.mark.parametrize(
    "expression",
    [
        "torch.arange(12.0).reshape(3, 4).t()",
        "torch.arange(12.0)[::3]",
        "torch.ones(1).expand(4, 5)",
        "torch.zeros(0, 3)",
        "torch.tensor(3.5)",
        "torch.tensor(True)",
        "torch.arange(6).reshape(1, 2, 3, 1)",
    ],
)
def test_odd_tensors(cluster: jdist.Cluster, expression: str) -> None:
    sent = eval(expression)
    assert same(cluster.pull(expression, ranks=[2])[2], sent)
    cluster.push(ranks=[2], v=sent)
    assert cluster.run(f"v.equal({expression}) and v.shape == ({expression}).shape", ranks=[2]).values == {2: True}


def test_a_tensor_with_gradient(cluster: jdist.Cluster) -> None:
    cluster.run("leaf = torch.ones(2, requires_grad=True); made = leaf * 2; made.sum().backward()")
    leaf, made = cluster.pull("leaf", ranks=[0])[0], cluster.pull("made", ranks=[0])[0]
    assert leaf.requires_grad
    assert made.tolist() == [2.0, 2.0]
    assert cluster.pull("leaf.grad", ranks=[0])[0].tolist() == [2.0, 2.0]
    parameter = cluster.pull("torch.nn.Parameter(torch.ones(2))", ranks=[0])[0]
    assert isinstance(parameter, torch.nn.Parameter)


@pytest.mark.parametrize("layout", ["to_sparse()", "to_sparse_csr()"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch 2.12: also with checks on
def test_sparse_tensors(cluster: jdist.Cluster, layout: str) -> None:
    got = cluster.pull(f"torch.eye(4).{layout}", ranks=[0])[0]
    assert got.layout == getattr(torch.eye(4), layout.removesuffix("()"))().layout
    assert got.to_dense().equal(torch.eye(4))


def test_a_dtensor_comes_whole(cluster: jdist.Cluster) -> None:
    cluster.run(
        "from torch.distributed.tensor import distribute_tensor, Shard, init_device_mesh\n"
        "_mesh = init_device_mesh('cpu', (4,))\n"
        "d = distribute_tensor(torch.arange(10.0), _mesh, [Shard(0)])",
        timeout=60,
    )
    whole = cluster.pull("d", full=True)
    assert all(torch.equal(whole[r], torch.arange(10.0)) for r in WORLD)
    assert cluster.pull("d.to_local()")[3].shape[0] == 1
    assert cluster.run("'__jdist_full__' in globals()").values == dict.fromkeys(WORLD, False)


def test_a_model_and_its_state(cluster: jdist.Cluster) -> None:
    cluster.run("torch.manual_seed(3); net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))")
    state = cluster.pull("net.state_dict()", ranks=[1])[1]
    net = cluster.pull("net", ranks=[1])[1]
    assert isinstance(net, torch.nn.Sequential)
    assert state.keys() == net.state_dict().keys()
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in state.items())
    assert torch.equal(cluster.pull("net[0].weight", ranks=[1])[1], net[0].weight)


@pytest.mark.parametrize(
    "sent",
    [
        np.arange(12, dtype=np.int16).reshape(3, 4).T,
        np.array(["a", "bcd"]),
        np.zeros((0, 2)),
        np.array([(1, 2.5)], dtype=[("i", "i4"), ("f", "f8")]),
        np.arange(200_000, dtype=np.float32),
    ],
    ids=["transposed", "strings", "empty", "records", "large"],
)
def test_arrays(cluster: jdist.Cluster, sent: np.ndarray[Any, Any]) -> None:
    cluster.push(ranks=[3], v=sent)
    got = cluster.pull("v", ranks=[3])[3]
    assert got.dtype == sent.dtype
    assert np.array_equal(got, sent)


def test_frames_and_plain_objects(cluster: jdist.Cluster) -> None:
    frame = pd.DataFrame({"n": range(3), "s": list("abc")})
    plain = {"a": [1, (2.5, None)], "b": {3, 4}, "c": b"bytes", "d": "text", "e": range(3), "f": 1 << 80}
    cluster.push(frame=frame, plain=plain, ranks=[0, 2])
    got = cluster.pull("frame, plain", ranks=[0, 2])
    assert got["frame"][2].equals(frame)
    assert got["plain"] == {0: plain, 2: plain}


def test_a_class_made_in_a_cell(cluster: jdist.Cluster) -> None:
    cluster.run(
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "    def twice(self): return self.x * 2\n"
        "point = Point(rank + 0.5)"
    )
    points = cluster.pull("point")
    assert {r: p.twice() for r, p in points.items()} == {r: 2 * r + 1.0 for r in WORLD}
    cluster.push(back=points[3])
    assert cluster.run("back.twice()").values == dict.fromkeys(WORLD, 7.0)


def test_shared_storage_stays_writable_and_apart(cluster: jdist.Cluster) -> None:
    """What is pushed to several ranks through one segment is each rank's own."""
    cluster.push(v=torch.zeros(200_000))
    cluster.run("v += rank")
    assert cluster.run("v[0].item(), v[-1].item()").values == {r: (float(r), float(r)) for r in WORLD}
    got = cluster.pull("v")
    got[0] += 100
    assert got[1][0] == 1
    assert cluster.run("v[0].item()", ranks=[0]).values == {0: 0.0}


# ---------------------------------------------------------------- expressions, and what cannot be had


def test_expressions(cluster: jdist.Cluster) -> None:
    cluster.run("table = {'k': [torch.ones(2) * rank, 'x']}")
    assert cluster.pull("table['k'][0].sum().item()") == {r: 2.0 * r for r in WORLD}
    assert cluster.pull("len(table), rank", ranks=[1, 2]) == {"len(table)": {1: 1, 2: 1}, "rank": {1: 1, 2: 2}}


def test_what_arrives_arrives_and_the_rest_says_why(cluster: jdist.Cluster) -> None:
    cluster.run("import threading\nhalf = rank if rank < 2 else threading.Lock()\nif rank == 3: del half")
    with pytest.raises(jdist.ValueFailed) as caught:
        cluster.pull("half")
    assert caught.value.values == {0: 0, 1: 1}
    assert set(caught.value.errors) == {2, 3}
    assert "lock" in caught.value.errors[2]
    assert "half" in caught.value.errors[3]
    assert "rank 3" in str(caught.value)


UNWELCOME = """
import sys
class Raises:
    def __init__(self, error):
        self.error = error
    def __reduce__(self):
        raise self.error
    def __len__(self):
        raise self.error
    __getattr__ = __len__
class Unsayable(Exception):
    def __str__(self):
        sys.exit("on purpose")
class Calls:
    def __reduce__(self):
        dist.all_reduce(torch.ones(1))
        return int, (3,)
class Leaves:
    def __reduce__(self):
        return sys.exit, ("on purpose",)
unwelcome = {"exit": Raises(SystemExit(3)), "interrupt": Raises(KeyboardInterrupt()), "unsayable": Raises(Unsayable()),
    "calls": Calls(), "leaves": Leaves(), "file": open("/etc/hostname")}
"""


def test_no_value_ends_a_rank_or_the_client(cluster: jdist.Cluster) -> None:
    """A helper thread of the rank, or the client's, would end with what the value raises, and the question be lost."""
    cluster.run(UNWELCOME)
    reasons = {
        "exit": "Raises.__reduce__ raised SystemExit: 3",
        "interrupt": "Raises.__reduce__ raised KeyboardInterrupt",
        "unsayable": r"raised Unsayable \(its text raises SystemExit\)",
        "calls": "UsageError|all_reduce was called by a value that is being pulled or inspected",
        "leaves": "Leaves arrived but cannot be made here: SystemExit: on purpose",
        "file": r"an open file \(/etc/hostname\) cannot leave its process; take its content",
    }
    for name, reason in reasons.items():
        with pytest.raises(jdist.ValueFailed, match=reason):
            cluster.pull(f"unwelcome['{name}']")
    with pytest.raises(jdist.ValueFailed, match=r"\['exit'\] is a Raises"):
        cluster.pull("unwelcome")
    cluster.show("unwelcome['exit']")
    cluster.check("unwelcome['exit']")
    with pytest.raises(NotPicklable, match=r"Refuses.__reduce__ raised SystemExit"):
        cluster.push(x=Refuses())
    assert cluster.pull("rank") == {r: r for r in WORLD}
    cluster.run("del unwelcome")


class Refuses:
    def __reduce__(self) -> Any:
        raise SystemExit


def test_a_value_that_hangs_is_left_by_an_interrupt(cluster: jdist.Cluster) -> None:
    """The client's loop goes on: the value is pickled, or made again, on a thread of its own."""
    is_asked, is_over = threading.Event(), threading.Event()

    class Hangs:
        def __reduce__(self) -> Any:
            is_asked.set()
            is_over.wait(60)
            return int, (3,)

    pushing, ended = bridge().begin(cluster.asynchronous.push(x=Hangs()))
    assert is_asked.wait(60)
    assert cluster.run("rank").values == {r: r for r in WORLD}
    pushing.cancel()
    assert ended.wait(60)
    is_over.set()


def test_some_of_several_names(cluster: jdist.Cluster) -> None:
    cluster.run("one = rank\nif rank != 1: two = rank")
    with pytest.raises(jdist.ValueFailed) as caught:
        cluster.pull("one, two")
    assert caught.value.values == {"one": {r: r for r in WORLD}, "two": {0: 0, 2: 2, 3: 3}}
    assert "two" in caught.value.errors[1]


@pytest.mark.parametrize("expression", ["no_such_name", "rank +", "1 / 0", "x = 1"])
def test_expressions_that_fail(cluster: jdist.Cluster, expression: str) -> None:
    with pytest.raises((jdist.ValueFailed, jdist.UsageError)) as caught:
        cluster.pull(expression, ranks=[0])
    assert caught.value.args


def test_a_value_whose_class_cannot_be_read_here(cluster: jdist.Cluster, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("class Thing: pass\n")
    cluster.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import only_there; thing = only_there.Thing()")
    with pytest.raises(jdist.ValueFailed, match="only_there"):
        cluster.pull("thing", ranks=[0])
    cluster.run("sys.path.pop(0)")


@pytest.mark.parametrize("name", ["a b", "1x", ""])
def test_names_that_cannot_be_bound(cluster: jdist.Cluster, name: str) -> None:
    with pytest.raises((jdist.ValueFailed, jdist.UsageError)):
        cluster.push(**{name: 1})


def test_a_pull_larger_than_memory_is_refused_before_it_starts(
    cluster: jdist.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Little:
        available = 1_000_000

    cluster.run("wide = torch.zeros(1_000_000)")
    monkeypatch.setattr(psutil, "virtual_memory", Little)
    with pytest.raises(jdist.ValueFailed, match=r"16,000,000 bytes.*1,000,000 free") as caught:
        cluster.pull("wide")
    assert "nothing was moved" in str(caught.value)
    monkeypatch.undo()
    assert cluster.pull("wide")[3].shape == (1_000_000,)


# ---------------------------------------------------------------- scatter, gather, broadcast


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("length", [8, 10, 3])
def test_scatter_and_gather(cluster: jdist.Cluster, dim: int, length: int) -> None:
    whole = torch.arange(length * length).reshape(length, length)
    cluster.scatter("part", whole, dim=dim)
    expected = torch.tensor_split(whole, 4, dim)
    assert all(torch.equal(p, expected[r]) for r, p in cluster.pull("part").items())
    assert torch.equal(cluster.gather("part", dim=dim), whole)


def test_scatter_of_other_things(cluster: jdist.Cluster) -> None:
    cluster.scatter("part", np.arange(8), ranks=[1, 3])
    assert np.array_equal(cluster.gather("part", ranks=[1, 3]), np.arange(8))
    cluster.scatter("part", list(range(6)), ranks=[0, 1])
    assert cluster.gather("part", ranks=[0, 1]) == list(range(6))


def test_broadcast(cluster: jdist.Cluster) -> None:
    cluster.run("b = torch.full((3,), float(rank)); o = {'r': rank}")
    cluster.broadcast("b", src=2)
    cluster.broadcast("o", src=1)
    assert cluster.run("b.tolist(), o").values == {r: ([2.0] * 3, {"r": 1}) for r in WORLD}
    with pytest.raises(jdist.JdistError):
        cluster.broadcast("not_a_name")
    assert cluster.run("t = torch.ones(1); dist.all_reduce(t); t.item()", timeout=20).values[0] == 4.0


# ---------------------------------------------------------------- ways


def test_progress_of_a_large_pull(cluster: jdist.Cluster) -> None:
    cluster.run("wide = torch.full((1 << 24,), float(rank))")
    steps: list[tuple[str, int, int]] = []
    got = cluster.pull("wide", ranks=[0, 1], on_progress=lambda *step: steps.append(step))
    assert {r: t[-1].item() for r, t in got.items()} == {0: 0.0, 1: 1.0}
    assert steps
    assert {s[0] for s in steps} == {"wide"}
    assert steps[-1][1] == steps[-1][2] == 2 << 26
    assert [s[1] for s in steps] == sorted(s[1] for s in steps)


def test_control_messages_pass_a_large_pull(cluster: jdist.Cluster) -> None:
    cluster.run("wide = torch.zeros(1 << 26)")
    slowest, over = 0.0, threading.Event()
    found: list[Any] = []

    def pull() -> None:
        found.append(cluster.pull("wide", ranks=[0, 1]))
        over.set()

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    while not over.is_set():
        began = time.monotonic()
        assert cluster.run("rank", ranks=[2], timeout=20).values == {2: 2}
        slowest = max(slowest, time.monotonic() - began)
    thread.join(60)
    assert found[0][1].shape == (1 << 26,)
    assert slowest < 10.0


def test_values_while_a_cell_runs(cluster: jdist.Cluster) -> None:
    run = cluster.run("import time\nlive = 1\nwhile live: time.sleep(0.01)", background=True)
    assert eventually(lambda: all("while live" in cluster.stack(rank) for rank in WORLD))
    cluster.push(seen=torch.ones(3), ranks=[0])
    assert cluster.pull("seen", ranks=[0])[0].tolist() == [1.0] * 3
    cluster.push(live=0)
    assert run.wait(20)
    run.check()


def test_a_client_that_shares_no_memory(cluster: jdist.Cluster, tmp_path: Path) -> None:
    """All bulk bytes pass through the data port."""
    prefix = with_own("/dev/shm")
    cluster.run("far = torch.full((3_000_017,), rank + 1, dtype=torch.bfloat16)")
    script = elsewhere.__file__
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*prefix, sys.executable, script, cluster.name],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    n = 3_000_017
    assert found["shared"] == []
    assert found["pulled"] == {str(r): [[n], "torch.bfloat16", float(n * (r + 1))] for r in WORLD}
    assert found["pushed"] == {str(r): [n * (n - 1) // 2, n] for r in WORLD}
    assert found["gathered"] is True
    assert found["pickled"] == n * 2.0
    assert found["steps"] > 0
    assert found["left"] == found["fds"] == []


class FarFromRanks(Carrier):
    """Shares memory with the controller's host and with no rank's, as when all nodes are other machines."""

    def __init__(self, attachment: Attachment):
        super().__init__(attachment)
        self._seen = self.probe
        self.probe = self._unseen = ProbeWire(f"{self._seen.path[:-32]}{'0' * 32}", self._seen.nonce)

    async def _receive(self, *args: Any) -> list[memoryview]:
        self.probe = self._seen
        try:
            return await super()._receive(*args)
        finally:
            self.probe = self._unseen

    def close(self) -> None:
        self.probe = self._seen
        super().close()


def test_a_client_beside_the_controller_and_far_from_the_ranks(cluster: jdist.Cluster) -> None:
    """The rank's connection is handed over; what the rank cannot send is explained by the rank."""
    cluster.run("far = torch.arange(3_000_017) + rank")
    carrier, before = FarFromRanks(cluster.asynchronous.attachment), connections(cluster)
    try:
        found = bridge().call(carrier.pull(("far", "[far[:10], {'a': far}]"), (0, 2)))
        assert all(torch.equal(found["far"][r], torch.arange(3_000_017) + r) for r in (0, 2))
        assert found["[far[:10], {'a': far}]"][2][1]["a"][-1] == 3_000_018
        kept = carrier._receive(1, "no such handle", [1 << 20], lambda _rank, _step: None)
        with pytest.raises(jdist.UsageError, match="rank 1 no longer holds that value"):
            bridge().call(kept)
        assert eventually(lambda: connections(cluster) <= before)
    finally:
        carrier.close()


STOPPED = """
import os, signal, sys, jdist
def pulled(what, done, total):
    if done < total:
        os.kill(os.getpid(), signal.SIGSTOP)
jdist.attach(sys.argv[1]).pull("wide", ranks=[0], on_progress=pulled)
"""


def test_a_client_that_is_killed_while_its_value_passes_the_data_port(cluster: jdist.Cluster, traces: Any) -> None:
    """Nothing of the value rests at the controller, and the rank that sends it is free again."""
    prefix = with_own("/dev/shm")
    cluster.run("wide = torch.zeros(1 << 30, dtype=torch.uint8)", ranks=[0])
    cluster.pull("rank")  # this client's own probe stays from now on
    before, idle = traces.files(), connections(cluster)
    with subprocess.Popen([*prefix, sys.executable, "-c", STOPPED, cluster.name]) as client:
        try:
            assert eventually(lambda: psutil.Process(client.pid).status() == psutil.STATUS_STOPPED, 60)
            assert connections(cluster) > idle
            assert traces.files() == before
        finally:
            client.kill()
    assert eventually(lambda: connections(cluster) <= idle)
    assert cluster.pull("wide", ranks=[0])[0].shape == (1 << 30,)
    assert traces.files() == before
    cluster.run("del wide", ranks=[0])


def connections(cluster: jdist.Cluster) -> int:
    """How many the controller's data port has, liveness connections included."""
    data_port = cluster.asynchronous.link.connection.data_port
    found = psutil.Process(anatomy.controller(cluster)).net_connections("tcp")
    return len([c for c in found if c.laddr.port == data_port and c.raddr])


# ---------------------------------------------------------------- about values


def test_show(cluster: jdist.Cluster) -> None:
    cluster.run("s = torch.full((2, 3), float(rank)); s[0, 0] = float('nan') if rank == 1 else rank")
    found = cluster.show("s")
    assert [found[r]["shape"] for r in WORLD] == [[2, 3]] * 4
    assert [found[r]["nan_count"] for r in WORLD] == [0, 1, 0, 0]
    assert found[2]["mean"] == 2.0
    assert "error" in cluster.show("nothing_there")[0]


def test_show_has_histograms_in_bins_that_are_the_same_on_all_ranks(cluster: jdist.Cluster) -> None:
    cluster.run("h = torch.linspace(-1, 1, 64) * (1 + rank // 2); h[0] = float('nan') if rank == 1 else h[0]")
    found = {rank: each["histogram"] for rank, each in cluster.show("h").items()}
    assert {(each["low"], each["high"]) for each in found.values()} == {(-2.0, 2.0)}
    assert found[2] == found[3]
    assert found[2]["counts"] == [2] * 32
    assert sum(found[0]["counts"]) == 64
    assert found[0]["counts"][:8] == [0] * 8, "it goes from -1 to 1 there"
    assert (sum(found[1]["counts"]), found[1]["nan"]) == (63, 1)
    assert "histogram" not in cluster.show("h[0]")[0], "one element has no distribution"
    cluster.run("h = torch.arange(6) if rank else 'text'")
    found = cluster.show("h")
    assert "histogram" not in found[0]
    assert found[1]["histogram"]["counts"] == [1] * 6


def test_the_histogram_of_a_dtensor_is_that_of_each_ranks_part(cluster: jdist.Cluster) -> None:
    cluster.run(
        "from torch.distributed.tensor import DTensor, Shard\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "own = init_device_mesh('cpu', (4,))\nd = DTensor.from_local(torch.full((3, 2), rank), own, [Shard(0)])"
    )
    found = cluster.show("d")
    assert found[0]["shape"] == [12, 2]
    counts = {rank: each["histogram"]["counts"] for rank, each in found.items()}
    assert counts == {rank: [6 * (each == rank) for each in WORLD] for rank in WORLD}


def test_check_of_tensors(cluster: jdist.Cluster) -> None:
    cluster.run("c = torch.zeros(50, 70)")
    assert cluster.check("c").is_equal
    cluster.run("if rank == 2: c[31, 7] = 1; c[40, 1] = 1")
    found = cluster.check("c")
    assert not found.is_equal
    assert found.index == (31, 7)
    assert "[31, 7]" in str(found)
    assert "2" in str(found)
    cluster.run("if rank == 2: c = c.double()")
    assert "float64" in str(cluster.check("c"))


def test_check_of_state_dicts(cluster: jdist.Cluster) -> None:
    cluster.run("torch.manual_seed(5); m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))")
    assert cluster.check("m.state_dict()").is_equal
    cluster.run("with torch.no_grad():\n    if rank == 3: m[1].bias[1] += 1")
    found = cluster.check("m.state_dict()")
    assert (found.key, found.index) == ("1.bias", (1,))
    assert [ranks for ranks, _ in found.found] == [(0, 1, 2), (3,)]


def test_check_of_plain_values_and_missing_ones(cluster: jdist.Cluster) -> None:
    assert cluster.check("world_size")
    found = cluster.check("rank")
    assert not found
    assert [ranks for ranks, _ in found.found] == [(0,), (1,), (2,), (3,)]
    cluster.run("if rank == 1: only_here = 1")
    with pytest.raises(jdist.UsageError, match="only_here"):
        cluster.check("only_here")


def test_nothing_is_left_in_shared_memory(
    cluster: jdist.Cluster, traces: Any, fresh_cluster: Callable[..., jdist.Cluster]
) -> None:
    before = traces.files()
    cluster.run("wide = torch.zeros(1 << 20)")
    for _ in range(5):
        held = cluster.pull("wide")
        cluster.push(wide=held[0])
    assert traces.files() == before
    del held
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    assert "/dev/shm/jdist-" not in maps


def test_any_name_of_the_notebook_can_be_pushed(cluster: jdist.Cluster) -> None:
    session = Session(TerminalScreen(), {"ranks": [3, 4], "on_progress": "x"}, "notebook")
    session.use(cluster)
    call(session, "push", ["ranks,on_progress", "-r", "1"])
    assert cluster.run("ranks, on_progress", ranks=[1]).values == {1: ([3, 4], "x")}
    session.use(None)
