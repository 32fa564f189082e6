"""Exported scripts, run by torchrun on a world like the session's: each rank prints what cells printed there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import jdist
from jdist.client.run import CellRun
from jdist.core.errors import UsageError
from jdist.notebook.options import split_words
from jdist.notebook.output.screen import TerminalScreen
from jdist.notebook.session import Session
from jdist.notebook.verbs.registry import call
from support.ports import free_port

DEADLINE = 150.0

SETUP = "base = 3\nprint('set up')"
CELLS: list[tuple[str, str | None]] = [
    ('import os\nprint(f"hello from {rank} of {world_size}: node {node_rank}, local {local_rank}, {device}")', None),
    ("t = torch.ones(3) * rank\ndist.all_reduce(t)\nprint(t)", None),
    ('text = """one\n  two\nthree"""\nif rank:\n    print(text)\nprint((text, rank))', "0,2"),
    ("total = torch.tensor([rank + 1.0])\ndist.all_reduce(total, group=groups['pair'])\nprint(total.item())", "pair"),
    ("part = torch.tensor(rank)\ndist.all_reduce(part, group=mesh['tp'].get_group())\nprint(part.item());", None),
    ("print(dist.get_process_group_ranks(mesh['dp'].get_group()))", "dp=1"),
    ("raise RuntimeError('not in the script')", "1"),
    ("print({'rate': rate, 'rows': [list(range(12)) for _ in range(rank + 1)]})", "!0"),
    ("print(shard.sum(), shard.dtype)\nshard", None),
    ("import asyncio\nslept = await asyncio.sleep(0, result=rank)", None),
    ("!true\nif rank:\n    %matplotlib inline\nprint('after the magics')", "3"),
    ("from torch.distributed import init_process_group\nprint(dist.is_initialized())", None),
    ("mine = f'rank {rank}'", None),
]
LAST = [
    "print(mine)",
    """\
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
for step in range(3):
    model.zero_grad()
    loss = model(torch.full((2, 4), rank + 1.0)).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= rate / 40 * parameter.grad
    print(f"step {step} loss {loss.item():.6f}")
print(model.weight)
""",
]


def verb(s: Session, line: str) -> None:
    words = split_words(line)
    call(s, words[0], words[1:])


def printed(run: CellRun, rank: int) -> str:
    """What a rank's part of a run has printed."""
    outcome = run.outcomes.get(rank)
    return outcome.stdout if outcome is not None and outcome.ok else ""


def run_torchrun(script: Path, folder: Path) -> dict[int, str]:
    """``{rank: what it printed}`` of two nodes of two ranks, both here."""
    port = free_port()
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"),
                *("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                *("--redirects", "3", "--log-dir", str(folder / str(node)), str(script)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for node in range(2)
    ]
    try:
        said = [node.communicate(timeout=DEADLINE)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    logs = {f"{f.parts[-5]}/{f.parent.name}": f for f in folder.rglob("*.log")}
    errors = "\n".join(f"{f}: {f.read_text()}" for f in logs.values() if f.name == "stderr.log")
    assert [node.returncode for node in nodes] == [0, 0], (said, errors)
    found = {}
    for node in range(2):
        for log in (folder / str(node)).rglob("stdout.log"):
            found[node * 2 + int(log.parent.name)] = log.read_text()
    return found


@pytest.mark.timeout(300)  # six processes that import torch, after a cluster
def test_every_rank_prints_what_it_printed_in_the_session(
    fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path
) -> None:
    s = Session(TerminalScreen(), {}, "test")
    s.use(fresh_cluster(2, 2))
    cluster, script = s.cluster, tmp_path / "train.py"
    s.namespace |= {"rate": 0.25, "shard": torch.arange(10, dtype=torch.float64) / 8, "whole": torch.ones(1000)}
    for line in ("group pair 1,3", "mesh dp=2,tp=2", "push rate,whole", "scatter shard"):
        verb(s, line)
    runs = [cluster.run(code, ranks, check=False, timeout=60) for code, ranks in CELLS]
    verb(s, "broadcast mine --src 2")
    runs += [cluster.run(code, timeout=60) for code in LAST]
    setup = cluster.run(SETUP, setup=True)
    verb(s, f"export {script}")

    history = jdist.export(cluster, str(script))
    assert (history.cells, history.left_out) == (len(CELLS) + len(LAST) - 1, 2)
    warned = ["whole pushed from the notebook"]
    failed = next(run.number for run in runs if run.first_failure == 1)
    warned += [f"run {number}" for number in (failed, failed + 3, failed + 4, failed + 4)]
    assert [w.partition(":")[0] for w in history.warnings] == warned
    expected = {rank: "".join(printed(run, rank) for run in [setup, *runs]) for rank in range(4)}
    assert "hello from 3 of 4: node 1, local 1, cpu" in expected[3]
    assert run_torchrun(script, tmp_path) == expected


def test_nothing_is_written_over_the_users_work(cluster: jdist.Cluster, tmp_path: Path) -> None:
    own = jdist.attach(cluster.name)
    path = tmp_path / "mine.py"
    path.write_text("mine = 1\n")
    try:
        with pytest.raises(UsageError, match=f"nothing was run on cluster {cluster.name} from here"):
            jdist.export(own, str(path))
        own.run("x = 1")
        with pytest.raises(UsageError, match="was not written by export"):
            jdist.export(own, str(path))
        assert path.read_text() == "mine = 1\n"
        assert jdist.export(own, str(path), force=True).cells == 1
    finally:
        own.detach()
    assert "x = 1" in path.read_text()
