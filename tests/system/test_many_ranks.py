"""64 ranks on one machine start, run, hang, are named, come free, go on with their names, and follow one slider."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from support.cells import ALL_REDUCE
from support.notebook import Cell, Notebook
from support.waits import eventually
from support.widget_page import STEERED, Page

if TYPE_CHECKING:
    from support.leaks import Traces

SIZE = 64
MISSING = 37
STARTED = 300.0
"""Seconds for the start on a busy machine, which imports torch once and forks each rank."""


@pytest.fixture(scope="module")
def notebook(run_traces: Traces) -> Iterator[Notebook]:
    """Made before a test is watched for what it leaves."""
    made = Notebook()
    run_traces.exempt.add(made.manager.provisioner.pid)  # type: ignore[union-attr]
    yield made
    made.close()


def test_64_ranks(fresh_cluster: Callable[..., jdist.Cluster], notebook: Notebook) -> None:
    own = fresh_cluster(SIZE, 1, timeout=STARTED)
    kept = "kept = torch.full((3,), float(rank))"
    assert own.run(f"{kept}\n{ALL_REDUCE}", timeout=120).values == dict.fromkeys(range(SIZE), float(SIZE))
    run = own.run(f"if rank != {MISSING}: dist.all_reduce(torch.ones(1))", background=True)
    assert eventually(lambda: run.verdict and run.verdict.responsible, 60)
    assert run.verdict is not None
    assert run.verdict.responsible == (MISSING,)
    run.cancel()
    assert run.wait(60)
    assert {o.kind for rank, o in run.outcomes.items() if rank != MISSING} == {"interrupted"}
    expected = {rank: (float(SIZE), 3.0 * rank) for rank in range(SIZE)}
    assert own.run(f"{ALL_REDUCE}, kept.sum().item()", timeout=120).values == expected
    steer(own, notebook)


def steer(own: jdist.Cluster, notebook: Notebook) -> None:
    """Move one slider for all ranks, while they train."""
    notebook.run(f"%dist attach {own.name}")
    page, moved = Page(notebook, own), False
    model = page.show()

    def move(cell: Cell) -> None:
        nonlocal moved
        if "begun" in cell.text and not moved:
            moved = True
            page.move(model, 9)

    shown = page.execute(STEERED, move)
    assert shown.status == "ok", shown.text
    assert re.search(rf"^\[0-{SIZE - 1}\] \d+$", shown.text, re.MULTILINE), shown.text  # the same step on each
    notebook.run("%dist detach")
