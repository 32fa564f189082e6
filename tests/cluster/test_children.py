"""Processes that cells start: they are no ranks, form worlds of their own, and what they write belongs to the cell."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

import jdist
from support import anatomy
from support.cells import ALL_REDUCE
from support.ports import free_port
from support.waits import eventually

# A process that ends is missed by those that are still connecting to it (gloo: "connectFullMesh failed"), in any
# script. So each of these functions ends with something that all ranks have to reach.
TUTORIAL = """
import os, signal, sys, subprocess, time
import torch
import torch.distributed as dist
from torch.multiprocessing import Process

def init_process(rank, size, fn, backend='gloo'):
    os.environ['MASTER_ADDR'] = '127.0.0.1'
    os.environ['MASTER_PORT'] = PORT
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)

def startprocesses(ranks, size, fn):
    processes = []
    for rank in ranks:
        p = Process(target=init_process, args=(rank, size, fn))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()

def blocking(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        for i in range(1, size):
            dist.send(tensor=tensor, dst=i)
    else:
        dist.recv(tensor=tensor, src=0)
    print('Rank ', rank, ' has data ', tensor[0])
    dist.barrier()

def sendreceive(rank, size):
    tensor = torch.full((1,), float(rank))
    if rank == 0:
        request = dist.isend(tensor=tensor + 1, dst=size - 1)
    elif rank == size - 1:
        request = dist.irecv(tensor=tensor, src=0)
    if rank in (0, size - 1):
        request.wait()
    print('Rank ', rank, ' has data ', tensor[0])
    dist.barrier()

def reduced(rank, size):
    group = dist.new_group(list(range(size)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
    dist.destroy_process_group()
    print('Rank ', rank, ' has data ', tensor[0])

class Partition:
    def __init__(self, data, index):
        self.data, self.index = data, index
    def __len__(self):
        return len(self.index)
    def __getitem__(self, index):
        return self.data[self.index[index]]

def partition_dataset():
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(3, (24,)))
    indexes = torch.randperm(24, generator=torch.Generator().manual_seed(1234)).tolist()
    share = 24 // dist.get_world_size()
    partition = Partition(data, indexes[dist.get_rank() * share:][:share])
    return torch.utils.data.DataLoader(partition, batch_size=4, shuffle=True, num_workers=1)

def average_gradients(model):
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= dist.get_world_size()

def training(rank, size):
    torch.manual_seed(1234)
    train_set, model = partition_dataset(), torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for data, target in train_set:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data), target).backward()
            average_gradients(model)
            optimizer.step()
    least = model.weight.detach().clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    print('Rank ', rank, ' has data ', torch.equal(least, model.weight))

def stuck(rank, size):
    with open(PIDS, 'a') as f:
        f.write(f'{os.getpid()}\\n')
    dist.recv(torch.ones(1), src=1 - rank)
"""

MODULE = """
import os, sys
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, get_worker_info

def work(index, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=2)
    total = torch.ones(1) * index
    dist.all_reduce(total)
    sys.stdout.write(f"sum {total.item()}\\n")
    os.system(f"echo shell {index}")
    sys.stderr.write("last words")

class Squares(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        rank = dist.get_rank() if dist.is_initialized() else None
        sys.stdout.write(f"{index} for {rank} by {get_worker_info().id}\\n")
        return index ** 2
"""


@pytest.fixture(scope="module")
def own(run_traces: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[jdist.Cluster]:
    """Two nodes of one machine, two ranks each."""
    modules = tmp_path_factory.mktemp("modules")
    Path(modules, "children_of_tests.py").write_text(MODULE)
    with jdist.start(nproc_per_node=2, nnodes=2, backend="gloo", timeout=60, idle_timeout=60) as found:
        before = set(run_traces.exempt)
        run_traces.exempt |= {process.pid for process in psutil.Process().children(recursive=True)}
        found.run(TUTORIAL)
        found.run(f"sys.path.insert(0, {str(modules)!r})\nimport children_of_tests as module")
        yield found
        run_traces.exempt = before


@pytest.fixture
def cluster_of_children(own: jdist.Cluster) -> Iterator[jdist.Cluster]:
    """After each test the ranks' own world is as it was."""
    yield own
    assert own.run(ALL_REDUCE, timeout=60).values == dict.fromkeys(range(4), 4.0)


_WORLDS = [("blocking", "tensor(1.)"), ("sendreceive", "tensor(1.)"), ("reduced", "tensor(3.)"), ("training", "True")]


@pytest.mark.parametrize(("function", "last"), _WORLDS)
def test_a_world_of_children_on_two_nodes(cluster_of_children: jdist.Cluster, function: str, last: str) -> None:
    own = cluster_of_children
    own.run(f"PORT = '{free_port()}'")
    first = own.run(f"startprocesses([0, 1], 3, {function})", ranks=[0], background=True, timeout=60)
    second = own.run(f"startprocesses([2], 3, {function})", ranks=[2], timeout=60)
    first.wait(60)
    errors = [_without_torchs_warnings(o.stderr) for o in (first.outcomes[0], second.outcomes[2])]
    assert (second.outcomes[2].stdout, errors) == (f"Rank  2  has data  {last}\n", ["", ""])
    lines = first.outcomes[0].stdout.splitlines()
    assert sorted(line[:17] for line in lines) == ["Rank  0  has data", "Rank  1  has data"]


def _without_torchs_warnings(text: str) -> str:
    """What else was written, such as a traceback: torch warns where a name server does not answer, for example."""
    return re.sub(r"^\[W\d{4} .*\n", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_started_by_each_method(cluster_of_children: jdist.Cluster, method: str) -> None:
    own = cluster_of_children
    call = f"args=({free_port()},), nprocs=2, start_method={method!r}"
    run = own.run(f"torch.multiprocessing.start_processes(module.work, {call})", ranks=[1], timeout=60)
    assert sorted(run.outcomes[1].stdout.splitlines()) == ["shell 0", "shell 1", "sum 1.0", "sum 1.0"]
    assert run.outcomes[1].stderr == "last wordslast words"
    # A worker of a data loader sees the world of its rank if it was forked, as under torchrun.
    loader = f"torch.utils.data.DataLoader(module.Squares(), num_workers=2, multiprocessing_context={method!r})"
    run = own.run(f"[int(x) for x in {loader}]", ranks=[0, 3], timeout=60)
    assert run.values == {0: [0, 1, 4, 9], 3: [0, 1, 4, 9]}
    for rank, outcome in run.outcomes.items():
        seen = rank if method == "fork" else None
        assert sorted(outcome.stdout.splitlines()) == [f"{i} for {seen} by {i % 2}" for i in range(4)]


def test_a_child_that_goes_on_to_the_end_of_the_cell(cluster_of_children: jdist.Cluster) -> None:
    own = cluster_of_children

    def ran(child: str) -> jdist.Outcome:
        code = f"pid = os.fork()\nif pid == 0:\n{dedent(child).strip()}\nelse:\n    _, status = os.waitpid(pid, 0)\n"
        code = code.replace("if pid == 0:\n", "if pid == 0:\n    ", 1)
        return own.run(code + "os.waitstatus_to_exitcode(status) if pid else 'an answer'", [1], timeout=60).outcomes[1]

    outcome = ran("print('child', end='')")
    assert (outcome.value, outcome.stdout) == (0, "child")
    assert ran("sys.exit(7)").value == 7
    outcome = ran("raise ValueError('in the child')")
    assert outcome.value == 1
    assert "ValueError" in outcome.stderr
    assert "in the child" in outcome.stderr
    outcome = ran("input(); print('never')")
    assert outcome.value == 1
    assert "EOFError" in outcome.stderr
    assert ran("display('shown')").stdout == "'shown'\n"
    outcome = ran("dist.destroy_process_group(); print(dist.is_initialized())")
    assert outcome.stdout == "False\n"


def test_stop_ends_the_children_of_the_run_and_no_others(cluster_of_children: jdist.Cluster, tmp_path: Path) -> None:
    own, pids = cluster_of_children, tmp_path / "pids"
    sleep = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']"
    server = own.run(f"PORT, PIDS = '{free_port()}', {str(pids)!r}\nserver = {sleep})\nserver.pid", [3]).values[3]
    run = own.run(f"daemon = {sleep}, start_new_session=True)\nstartprocesses([0, 1], 2, stuck)", [3], background=True)
    assert eventually(lambda: pids.exists() and pids.read_text().count("\n") == 2)
    stuck = [int(line) for line in pids.read_text().split()]
    own.interrupt()
    assert run.wait(30)
    assert run.outcomes[3].kind == "interrupted"
    assert eventually(lambda: not any(map(_is_running, stuck)))
    pids.unlink()
    waits = f"subprocess.run(['sh', '-c', 'echo $$ > {pids}; exec sleep 600'])\nprint('went on')"
    run = own.run(waits, [3], background=True)
    assert eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
    own.interrupt()
    assert run.wait(30)
    assert (run.outcomes[3].kind, run.outcomes[3].stdout) == ("interrupted", "")
    assert eventually(lambda: not _is_running(int(pids.read_text())))
    daemon = own.run("daemon.pid", [3]).values[3]
    assert _is_running(server)
    assert _is_running(daemon)
    os.kill(daemon, signal.SIGKILL)
    own.restart(ranks=[3])  # what it has started ends with the process
    assert eventually(lambda: not _is_running(server))


def _is_running(pid: int) -> bool:
    return anatomy.lives(pid)


def test_a_cell_has_no_command_line(cluster_of_children: jdist.Cluster) -> None:
    code = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('{}')\nparser.parse_args()"
    run = cluster_of_children.run(code.format("--backend"), [0])
    assert run.values[0].backend is None
    run = cluster_of_children.run(code.format("backend"), [0], check=False)
    error = run.outcomes[0].error
    assert error is not None
    assert [str(remedy) for remedy in error.remedies] == ["run FILE --option value"]
    assert "%tb" not in "".join(error.traceback)  # IPython would suggest it
    assert "To exit" not in run.outcomes[0].stderr
