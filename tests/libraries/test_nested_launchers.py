"""Launchers in a cell: ranks that launch the processes of a world are told that they are these processes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import jdist
from jdist.client.run import CellRun
from jdist.core.messages.status import Notice
from support.cells import ALL_REDUCE
from support.lacking import need

WORLD = range(4)
TRAINER = """
import lightning

class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp_notebook", devices=2, num_nodes=2, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
)
trainer.fit(Tiny(), data)
"""
IN_WORLD_OF_TWO = """
import os
def work(index, init_method):
    dist.init_process_group("gloo", init_method=init_method, rank=index, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"sum {total.item()}\\n".encode())
"""


class Ended(NamedTuple):
    run: CellRun
    notices: list[Notice]

    @property
    def kinds(self) -> dict[int, str]:
        return {rank: outcome.kind for rank, outcome in self.run.outcomes.items()}


def ended(cluster: jdist.Cluster, code: str, ranks: tuple[int, ...] = tuple(WORLD)) -> Ended:
    """The run when it has ended by itself, and what was said about it."""
    run = cluster.submit(code, ranks, timeout=100)
    messages: list[object] = []
    run.watch(messages.append)
    assert run.wait(120)
    return Ended(run, [message for message in messages if isinstance(message, Notice)])


def assert_told(found: Ended) -> None:
    [notice] = found.notices
    assert "notebook_launcher" in notice.text
    assert 'strategy="ddp"' in notice.text
    assert [str(remedy) for remedy in notice.remedies] == ["run SCRIPT.py"]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port at which somebody listens, as the first rank's launcher does for those of the others."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture(autouse=True)
def world_stays(cluster: jdist.Cluster) -> Iterator[None]:
    cluster.run("import warnings; warnings.simplefilter('ignore')")
    yield
    assert cluster.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(WORLD, 4.0)


def test_lightning_in_forked_processes(cluster: jdist.Cluster) -> None:
    need("lightning")
    found = ended(cluster, TRAINER)
    assert found.kinds == dict.fromkeys(WORLD, "error")
    assert_told(found)


def test_notebook_launcher_on_all_ranks(cluster: jdist.Cluster, taken_port: int) -> None:
    need("accelerate")
    code = "from accelerate import notebook_launcher\nnotebook_launcher(print, num_processes=2, use_port='{}')"
    found = ended(cluster, code.format(taken_port))
    assert found.kinds == dict.fromkeys(WORLD, "error")
    assert_told(found)


def test_notebook_launcher_on_one_rank_has_a_world_of_its_own(
    fresh_cluster: Callable[..., jdist.Cluster], free_port: int
) -> None:
    """Its processes have the ranks that they are told, not that of the rank that has forked them."""
    need("accelerate")
    cluster = fresh_cluster(2, 1)  # accelerate refuses where there has been an Accelerator
    code = f"""
    def train():
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        total = accelerator.reduce(torch.tensor(float(accelerator.process_index + 1)))
        print(accelerator.process_index, accelerator.num_processes, total.item())
    from accelerate import notebook_launcher
    notebook_launcher(train, num_processes=2, use_port="{free_port}")
    """
    found = ended(cluster, code, (1,))
    assert (found.kinds, found.notices) == ({1: "value"}, [])
    lines = found.run.outcomes[1].stdout.splitlines()
    assert sorted(line for line in lines if line[0] in "01") == ["0 2 3.0", "1 2 3.0"]


def test_processes_that_want_one_address(cluster: jdist.Cluster, taken_port: int) -> None:
    code = f"""
    torch.multiprocessing.start_processes(work, ("tcp://127.0.0.1:{taken_port}",), nprocs=2, start_method="fork")
    """
    found = ended(cluster, IN_WORLD_OF_TWO + code.strip())
    assert found.kinds == dict.fromkeys(WORLD, "error")
    assert_told(found)
    # A program of its own says so on its standard error alone.
    script = f"import torch.distributed as dist; dist.TCPStore('127.0.0.1', {taken_port}, is_master=True)"
    found = ended(cluster, f"import subprocess\nsubprocess.run([{sys.executable!r}, '-c', {script!r}]).returncode")
    assert found.run.values == dict.fromkeys(WORLD, 1)
    assert_told(found)


def test_processes_that_form_no_world_and_worlds_of_one_rank(cluster: jdist.Cluster, tmp_path: Path) -> None:
    help_out = "torch.multiprocessing.start_processes(print, nprocs=2, start_method='fork')"
    found = ended(cluster, help_out)
    assert (found.kinds, found.notices) == (dict.fromkeys(WORLD, "value"), [])
    launch = f"torch.multiprocessing.start_processes(work, ('file://{tmp_path}/store',), nprocs=2, start_method='fork')"
    found = ended(cluster, IN_WORLD_OF_TWO + launch, (2,))
    assert (found.kinds, found.notices) == ({2: "value"}, [])
    assert found.run.outcomes[2].stdout.splitlines() == ["sum 2.0"] * 2


def test_a_forked_child_cannot_wait_for_the_ranks_of_its_world(cluster: jdist.Cluster) -> None:
    """Its rank's connections and threads are not there. What needs none of them works."""
    code = """
    import os
    pid = os.fork()
    if not pid:
        weight = torch.ones(1, requires_grad=True)
        (weight * 2).sum().backward()
        print(dist.get_rank(), weight.grad.item())
        try:
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        except Exception as e:
            print(e)
        dist.all_reduce(torch.ones(1))
    else:
        _, status = os.waitpid(pid, 0)
    os.waitstatus_to_exitcode(status)
    """
    found = ended(cluster, code, (1,))
    assert found.run.values == {1: 1}
    first, second = found.run.outcomes[1].stdout.splitlines()
    assert first == "1 2.0"
    assert second.startswith("DistributedDataParallel was called in a forked child")
    assert "forked child" in found.run.outcomes[1].stderr
    assert_told(found)


def test_torchrun(cluster: jdist.Cluster, tmp_path: Path, taken_port: int, free_port: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch.distributed as dist; dist.init_process_group('gloo'); print(dist.get_world_size())")
    command = f"!{sys.executable} -m torch.distributed.run --nproc-per-node 2 --master-port {{}} {script}"
    assert_told(ended(cluster, command.format(taken_port), (0, 1)))
    found = ended(cluster, command.format(free_port), (0,))
    assert found.notices == []
    assert "".join(found.run.outcomes[0].stdout.split()) == "22", "either may write its newline first"
