"""Saving and loading sessions: training goes on in another world as if uninterrupted, and nothing is half done."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import jdist
from jdist.core.messages.saving import MANIFEST
from jdist.core.messages.status import Notice
from support import anatomy
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

MAKE = """
import torch.nn as nn, torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)
    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))

torch.manual_seed(0)
data, target = torch.randn(48, 10), torch.randint(0, 4, (48,))
replica = DDP(Net())
sharded = Net()
for layer in (sharded.first, sharded.second):
    fully_shard(layer)
fully_shard(sharded)
optimizers = {"replica": torch.optim.AdamW(replica.parameters(), lr=0.01)}
optimizers["sharded"] = torch.optim.Adam(sharded.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizers["replica"], 3)

def train(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        own = slice(rank * 48 // world_size, (rank + 1) * 48 // world_size)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[own]), target[own])
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / world_size)
    return losses

before = train(replica, optimizers["replica"], 5), train(sharded, optimizers["sharded"], 5)
scheduler.step()
"""
GO_ON = 'train(replica, optimizers["replica"], 5), train(sharded, optimizers["sharded"], 5)'
VALUES = """
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
own = torch.full((3,), float(rank))
whole = torch.arange(12.0)
part = whole[3:6]
table = distribute_tensor(torch.arange(14.0), init_device_mesh("cpu", (world_size,)), [Shard(0)])
generator = torch.Generator().manual_seed(rank)
torch.manual_seed(100 + rank)
def scaled(x, factor=3): return x * factor
if rank == 2:
    only_here = "rank 2"
stream = (n for n in range(3))
"""


@pytest.fixture(scope="module")
def saved(run_traces: Traces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[list[float]]]]:
    """A session of four ranks on two nodes, saved; and the losses with which its training went on."""
    directory = tmp_path_factory.mktemp("sessions") / "run"
    with jdist.start(2, 2, backend="gloo", name="saved", timeout=120, idle_timeout=60) as cluster:
        cluster.run("greeting = 'hello from a setup cell'", setup=True)
        cluster.new_group("evens", [0, 2])
        cluster.run(MAKE, timeout=120)
        cluster.run(VALUES)
        done = cluster.save(str(directory))
        assert [(each.name, each.ranks, each.why) for each in done.left_out] == [("stream", "0-3", "generator")]
        assert done.folder == str(directory / "save-000001")
        losses = cluster.run(GO_ON, timeout=60).values[0]
        random = cluster.run("torch.rand(1).item(), torch.rand(1, generator=generator).item()").values
    yield directory, [list(losses), random]  # type: ignore[list-item]
    shutil.rmtree(directory)


def test_the_manifest_can_be_read_by_a_person(saved: tuple[Path, object]) -> None:
    manifest = json.loads((saved[0] / "save-000001" / MANIFEST).read_text())
    names = {each["name"]: each for each in manifest["names"]}
    about = {"ranks": "0-3", "type": "Tensor", "held": "by rank", "shape": [3], "dtype": "float32", "nbytes": 12}
    assert names["own"] == {"name": "own", **about}
    assert names["table"]["placement"] == "Shard(0) on mesh 4"
    assert names["table"]["shape"] == [14]
    assert names["whole"]["held"] == "equal on all ranks"
    assert names["replica"]["held"] == "equal on all ranks"
    assert names["sharded"]["held"] == "sharded"
    assert names["only_here"]["ranks"] == "2"
    assert manifest["left_out"] == [{"name": "stream", "ranks": "0-3", "why": "generator"}]
    assert manifest["groups"] == {"evens": [0, 2]}
    assert manifest["setup"] == ["greeting = 'hello from a setup cell'"]
    assert manifest["world_size"] == 4


def test_equal_values_are_stored_once(saved: tuple[Path, object]) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    keys = FileSystemReader(saved[0] / "save-000001" / "tensors").read_metadata().state_dict_metadata
    assert "replica.first.weight" in keys
    assert "sharded.first.weight" in keys
    assert {key for key in keys if key.endswith("own")} == {f"rank {rank}/own" for rank in range(4)}
    by_rank = {key.partition("/")[2] for key in keys if key.startswith("rank")}
    assert {key for key in by_rank if not key.startswith(("/", "generator"))} == {"own"}  # "/": random numbers


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_training_goes_on_as_if_uninterrupted(saved: tuple[Path, list[list[float]]], size: int) -> None:
    directory, (losses, random) = saved
    with jdist.start(size, backend="gloo", name=f"loaded{size}", timeout=120, idle_timeout=60) as cluster:
        found = cluster.load(str(directory))
        assert not found.failed
        assert found.manifest.world_size == 4
        for done in cluster.run(GO_ON, timeout=120).values.values():
            for went_on, expected in zip(done, losses, strict=True):
                assert went_on == pytest.approx(expected, abs=1e-4)
        same = (
            'replica.module.first.weight is optimizers["replica"].param_groups[0]["params"][0]',
            'scheduler.optimizer is optimizers["replica"]',
            'sharded.first.weight is optimizers["sharded"].param_groups[0]["params"][0]',
            "part.data_ptr() == whole.data_ptr() + 12",
            "table.full_tensor().tolist() == list(range(14))",
            "scaled(2) == 6 and greeting.startswith('hello')",
            "type(sharded).__name__ == 'FSDPNet'",
        )
        for expr in same:
            assert cluster.run(expr).values == dict.fromkeys(range(size), True), expr
        with pytest.raises(jdist.CellError) as failed:
            cluster.run("scaled(None)")
        assert {outcome.error.source for outcome in failed.value.run.outcomes.values() if outcome.error} == {
            "def scaled(x, factor=3): return x * factor"
        }
        old = range(min(size, 4))
        assert cluster.run("own[0].item()", old).values == {rank: float(rank) for rank in old}
        drawn = cluster.run("torch.rand(1).item(), torch.rand(1, generator=generator).item()", old).values
        assert drawn == {rank: random[rank] for rank in old}
        assert cluster.groups["evens"] == [0, 2] if size > 2 else "evens" not in cluster.groups
        assert found.names.get("only_here", (2,)) == (2,)
        decisions = "\n".join(found.decisions)
        assert ("the mesh 4 is" in decisions) == (size != 4)
        assert ("what" in decisions and "held is not loaded" in decisions) == (size < 4)
        assert ("ranks 4-7 have none" in decisions) == (size > 4)
        if size == 2:
            assert "group evens is not made" in found.notes[0]
        if size == 8:
            taken = cluster.load(str(directory), "own", sources={4: 1, 7: 3})
            assert taken.names == {"own": (0, 1, 2, 3, 4, 7)}
            assert cluster.run("own[0].item()", [4, 7]).values == {4: 1.0, 7: 3.0}


CROSSED = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

crossed_mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
crossed = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
parallelize_module(crossed, crossed_mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
for part in (crossed[0], crossed):
    fully_shard(part, mesh=crossed_mesh["dp"])
crossed_optimizer = torch.optim.Adam(crossed.parameters(), lr=0.01)
batch = torch.randn(16, 8)

def crossed_losses():
    losses = []
    for _ in range(4):
        crossed_optimizer.zero_grad()
        loss = crossed(batch).square().mean()
        loss.backward()
        crossed_optimizer.step()
        losses.append(loss.item())
    return losses
"""


def test_fsdp_over_tensor_parallelism(cluster: jdist.Cluster, tmp_path: Path) -> None:
    """Sharded along two dimensions of a mesh, of which the first is half as large afterwards."""
    names = "crossed,crossed_optimizer,crossed_losses,batch"
    cluster.run("if rank == 1: torch.nn.Linear(1, 1).register_forward_hook(print)")  # of no other module
    cluster.run(f"{CROSSED}\nlosses = crossed_losses()", timeout=60)
    assert not cluster.save(str(tmp_path / "d"), names).left_out
    expected = cluster.run("crossed_losses()", timeout=60).values[0]
    with jdist.start(2, backend="gloo", name="halved", timeout=120, idle_timeout=60) as other:
        found = other.load(str(tmp_path / "d"))
        assert found.decisions == ("the mesh dp=2,tp=2 is dp=1,tp=2 here",)
        assert not found.failed
        for losses in other.run("crossed_losses()", timeout=60).values.values():
            assert losses == pytest.approx(expected, abs=1e-5)


def test_only_some_names(cluster: jdist.Cluster, tmp_path: Path) -> None:
    directory = str(tmp_path / "d")
    cluster.run("a = torch.ones(3); b = {'of': a}; c = 5; schedule = None")
    assert set(cluster.save(directory, "b,c").names) == {"b", "c"}
    with pytest.raises(jdist.UsageError, match=r"no rank has a name 'scedule'; did you mean schedule\?"):
        cluster.save(directory, "scedule")
    cluster.run("del b, c")
    with pytest.raises(jdist.UsageError, match="has no name 'a'"):
        cluster.load(directory, "a")
    assert set(cluster.load(directory, "b").names) == {"b"}
    assert cluster.run("b['of'].sum().item(), 'c' in globals()").values == dict.fromkeys(range(4), (3.0, False))


def test_a_folder_that_cannot_be_used_is_named_and_nothing_is_lost(cluster: jdist.Cluster, tmp_path: Path) -> None:
    cluster.run("x = 1")
    with pytest.raises(jdist.UsageError, match="there is no folder"):
        cluster.load(str(tmp_path / "nothing"))
    with pytest.raises(jdist.UsageError, match="cannot be written to"):
        cluster.save("/proc/jdist")
    cluster.save(str(tmp_path / "d"), "x")
    (tmp_path / "d" / "save-000001" / MANIFEST).chmod(0o666)
    cluster.run("x = 2")
    with pytest.raises(jdist.UsageError, match=r"others may change .*chmod go-w"):
        cluster.load(str(tmp_path / "d"))
    assert cluster.run("x").values == dict.fromkeys(range(4), 2)


HELD_UP = """
import threading
from jdist.worker.session import folder
go_on, write = threading.Event(), folder.write
def held_up(*args):
    go_on.wait(60)
    write(*args)
folder.write = held_up
"""


def test_cells_run_while_a_save_is_written(cluster: jdist.Cluster, tmp_path: Path) -> None:
    """What they change is not in it; and a second save has to wait."""
    directory = str(tmp_path / "d")
    cluster.run(f"{HELD_UP}\nx = torch.zeros(4)")
    done = cluster.save(directory, "x", background=True)
    cluster.run("x += 1; dist.all_reduce(x)")
    with pytest.raises(jdist.UsageError, match="save-000001 is still being written"):
        cluster.save(directory, "x")
    with pytest.raises(jdist.UsageError, match="no saved session"):
        cluster.load(directory)
    cluster.run("go_on.set(); folder.write = write")
    assert eventually(lambda: Path(done.folder).is_dir())
    cluster.load(directory)
    assert cluster.run("x.sum().item()").values == dict.fromkeys(range(4), 0.0)


@pytest.mark.parametrize("loss", ["kill", "interrupt"])
def test_a_lost_rank_leaves_the_older_save(loss: str, run_traces: Traces, tmp_path: Path) -> None:
    directory = str(tmp_path / "d")
    with jdist.start(2, backend="gloo", name="losing", timeout=120, idle_timeout=60) as cluster:
        cluster.run(f"x = 1\n{HELD_UP}\nfolder.write = write")
        cluster.save(directory, "x")
        cluster.run("x = 2; folder.write = held_up", [1])
        run = cluster.save(directory, "x", background=True)
        if loss == "kill":
            anatomy.kill(anatomy.worker(cluster, 1))
            assert cluster.run("1", timeout=60).values == {0: 1, 1: 1}
            assert cluster.load(directory).folder == f"{directory}/save-000001"
        else:  # the world is formed anew, and the save goes on
            cluster.interrupt()
            cluster.run("go_on.set()")
            assert eventually(lambda: Path(run.folder).is_dir())
            assert cluster.load(directory).folder == run.folder
        assert cluster.run("x").values == ({0: 1, 1: 1} if loss == "kill" else {0: 1, 1: 2})
        cluster.save(directory, "x")


def test_a_loop_is_saved_by_itself_and_goes_on(run_traces: Traces, tmp_path: Path) -> None:
    """Between cells, and in a cell at its calls of save_if_due; also after the controller was started again."""
    directory = tmp_path / "d"
    with jdist.start(2, backend="gloo", name="autosaved", timeout=120, idle_timeout=60) as cluster:
        cluster.run("import jdist, time; done = torch.zeros(1)")
        cluster.autosave(str(directory), every=1.0)
        assert eventually(lambda: list(directory.glob("save-*")))
        old = anatomy.controller(cluster)
        anatomy.kill(old)
        assert eventually(lambda: cluster.asynchronous.link.is_orphaned or anatomy.controller(cluster) != old)
        cluster.revived()
        run = cluster.run(
            "for step in range(100_000):\n"
            "    done += 1\n"
            "    dist.all_reduce(torch.ones(1))\n"
            "    time.sleep(0.01 * rank)\n"
            "    jdist.save_if_due()",
            background=True,
        )
        first = max(directory.glob("save-*")).name
        assert eventually(lambda: max(directory.glob("save-*")).name > first)
        second = max(directory.glob("save-*")).name
        assert eventually(lambda: max(directory.glob("save-*")).name > second)
        assert not run.is_done
        assert eventually(lambda: len(list(directory.glob("save-*"))) <= 3), "the oldest goes when the newest is there"
        cluster.autosave(str(directory), every=None)
        run.cancel()
        assert run.wait(60)
        cluster.load(str(directory), "done,step")
        found = cluster.run("done.item() - step").values
        assert found == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("loop", ["jdist.save_if_due()", "pass"])
def test_a_session_is_saved_before_its_job_ends(loop: str, tmp_path: Path) -> None:
    """A scheduler sends SIGTERM to every process of the job; a run without calls of save_if_due is interrupted."""
    directory = tmp_path / "d"
    told: list[str] = []
    patience = {"timeout": 120, "idle_timeout": 60, "leave_grace": 90.0}  # a busy machine takes its time for a save
    with jdist.start(1, 2, backend="gloo", name="ending", **patience) as cluster:
        cluster.asynchronous.watch(lambda message: told.append(message.text) if isinstance(message, Notice) else None)
        cluster.autosave(str(directory), every=3600.0)  # and after a cell, every agent and rank has heard of it
        cluster.run("import jdist, subprocess, time; count = 0; other = subprocess.Popen(['sleep', '60'])")
        run = cluster.run(f"while True:\n    count += 1; time.sleep(0.01)\n    {loop}", background=True)
        assert eventually(lambda: all(count > 0 for count in cluster.pull("count").values()))
        for agent in (anatomy.agent(cluster, 0), anatomy.agent(cluster, 1)):
            process = psutil.Process(agent)
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if each.name() != "sleep":
                        each.terminate()
        assert run.wait(60)
        assert eventually(lambda: list(directory.glob("save-*")), 60), told
    with jdist.start(2, backend="gloo", name="ended", timeout=120, idle_timeout=60) as again:
        again.load(str(directory), "count")
        assert min(again.run("count").values.values()) > 0


def test_ranks_that_outlive_their_jobs_end_leave_the_signals_to_everyone_else(cluster: jdist.Cluster) -> None:
    """Programs that they start, and their forked children, end by SIGTERM; a handler of the user's own is called."""
    cluster.autosave("/nowhere", every=3600.0)
    cluster.run(
        "import os, signal, subprocess\n"
        "program = subprocess.Popen(['sleep', '60']); program.terminate()\n"
        "child = os.fork()\n"
        "if not child:\n    signal.pause()\n"
        "os.kill(child, signal.SIGTERM)\n"
        "ends = program.wait(30), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    )
    ends = (-signal.SIGTERM, -signal.SIGTERM)
    assert cluster.run("ends, signal.getsignal(signal.SIGTERM)").values == dict.fromkeys(
        range(4), (ends, signal.SIG_DFL)
    )
    assert cluster.run("os.kill(os.getpid(), signal.SIGUSR1); 1").values == dict.fromkeys(range(4), 1)
    cluster.run(
        "caught = []; signal.signal(signal.SIGUSR1, lambda *_: caught.append(1)); os.kill(os.getpid(), signal.SIGUSR1)"
    )
    found = cluster.run("signal.signal(signal.SIGUSR1, signal.SIG_DFL); sum(caught)").values
    assert found == dict.fromkeys(range(4), 1)
    cluster.autosave("", every=None)
