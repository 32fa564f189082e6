"""A world is debugged from a notebook, as its user sees it: paused cells, verbs, failures, a kernel's restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.client import find
from support import anatomy
from support.notebook import Cell, Notebook
from support.waits import eventually

if TYPE_CHECKING:
    from support.leaks import Traces

NAME = "debugged"
TRAIN = """%%dist
def train_step(step):
    loss = step * 1.0
    if step == 2:
        breakpoint()
    return loss
total = 0.0
for step in range(5):
    total += train_step(step)
    dist.barrier()
print('total', total)
"""
LOOP = """%%dist -b -o running
def wait():
    turns = 0
    while not over:
        turns += 1
    return turns > 0
over = False
wait()
"""


@pytest.fixture(scope="module")
def notebook(run_traces: Traces) -> Iterator[Notebook]:
    """A notebook that has started two ranks."""
    before = set(run_traces.exempt)
    found = Notebook()
    run_traces.exempt.add(found.manager.provisioner.pid)  # type: ignore[union-attr]
    try:
        found.run(f"%dist start -n 2 --backend gloo --name {NAME} --timeout 60 --idle-timeout 60")
        run_traces.note_clusters()
        watching = jdist.attach(NAME)
        run_traces.exempt |= {anatomy.controller(watching), anatomy.agent(watching, 0)}
        watching.detach()
        yield found
        found.execute(f"%dist stop {NAME}")
    finally:
        found.close()
        run_traces.exempt = before


def lines(cell: Cell) -> list[str]:
    return [line for line in cell.text.splitlines() if line]


def both_paused(text: str) -> bool:
    """On a busy machine the cell ends once a rank has paused, and shows the other later."""
    return "⏸ run " in text and "  [0-1] train_step, line " in text


def test_the_cell_gives_the_notebook_back_and_goes_on_in_its_place(notebook: Notebook) -> None:
    cell = notebook.run(TRAIN)
    assert "⏸ run " in cell.text
    assert "is paused · %dist continue resumes it · %%dist cells run in the paused frames" in cell.text
    notebook.until(cell, both_paused)
    inner = notebook.run("%%dist\nprint('here', step, loss + rank)\nloss")
    assert lines(inner)[0] == "[0-1] here 2 2.0 | 3.0"
    assert "in the paused frames" in inner.text
    assert "train_step" in notebook.run("%dist where").text
    assert "◂ cells run here" in notebook.run("%dist where").text
    assert notebook.execute("%%dist\n1 / 0").ename == "CellError"
    notebook.run("%%dist\nloss = 100.0 * (rank + 1)")
    notebook.run("%dist pull loss")
    assert notebook.value("loss") == "{0: 100.0, 1: 200.0}"
    assert "total" in notebook.run("%dist up").text
    assert "[0-1] total 1.0" in notebook.run("%%dist\nprint('total', total)").text
    notebook.run("%dist down")
    assert "return loss" in notebook.run("%dist next").text or "return loss" in notebook.run("%dist next").text
    moved = notebook.run("%dist next-call").text
    assert "about to call barrier" in moved
    notebook.run("%dist continue")
    text = notebook.until(cell, lambda text: "2 ranks · " in text)
    assert "[0-1] total 108.0 | 208.0" in text
    assert "⏸" not in text
    assert "[0-1] 5" in notebook.run("%%dist\nprint(5)").text


def test_a_cell_in_the_background_is_paused_by_a_verb(notebook: Notebook) -> None:
    cell = notebook.run(LOOP)
    watching = jdist.attach(NAME)
    assert eventually(lambda: all("in wait" in watching.stack(rank) for rank in (0, 1)))
    watching.detach()
    answer = notebook.run("%dist pause").text
    assert answer.count("⏸ ") >= 1
    assert "wait, line" in answer
    assert "⏸ run" in notebook.until(cell, lambda text: "⏸ run" in text)
    assert "⏸ paused" in notebook.run("%dist status").text
    notebook.run("%%dist\nover = True")
    assert "no rank is paused" not in notebook.run("%dist up").text
    notebook.run("%%dist\nover = True")
    notebook.run("%dist continue")
    notebook.until(cell, lambda text: "2 ranks · " in text)
    assert notebook.value("running.values") == "{0: True, 1: True}"
    assert "nothing is running that could be paused" in notebook.execute("%dist pause").evalue
    refused = notebook.execute("%dist continue")
    assert (refused.ename, refused.evalue) == ("UsageError", "no rank is paused")


def test_failures_are_looked_into(notebook: Notebook) -> None:
    failing = "def check(values):\n    worst = max(values)\n    return 1 / worst\ncheck([rank - 1])"
    assert notebook.execute(f"%%dist\n{failing}").ename == "CellError"
    advice = "no rank is paused; %dist debug to inspect where the last cell failed"
    assert notebook.execute("%dist where").evalue == advice
    assert "%%dist cells run where rank" in notebook.run("%dist debug").text
    assert "in the frames that failed" in notebook.run("%%dist\nworst").text
    notebook.run("%dist debug off")
    assert notebook.execute("%dist where").evalue == "no rank is paused"
    held = notebook.run(f"%%dist --hold\n{failing}")
    assert "ZeroDivisionError" in held.text
    assert "⏸ run" in held.text
    assert "[1] 0" in notebook.run("%%dist\nworst").text
    notebook.run("%dist continue")
    notebook.until(held, lambda text: "ZeroDivisionError: division by zero" in text and "⏸" not in text)


def test_a_paused_run_outlives_the_kernel_and_is_followed_again(notebook: Notebook, run_traces: Traces) -> None:
    notebook.until(notebook.run(TRAIN), both_paused)
    notebook.restart()
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    attached = notebook.run(f"%dist attach {NAME}")
    text = notebook.until(attached, both_paused)
    assert "it began before this notebook attached" in text
    assert "[0-1] 2.0" in notebook.run("%%dist\nloss").text
    notebook.run("%dist continue")
    assert "[0-1] total 10.0" in notebook.until(attached, lambda text: "2 ranks · " in text)


def test_a_paused_run_outlives_the_controller(notebook: Notebook, run_traces: Traces) -> None:
    """The notebook starts another controller by itself, and its cell goes on with the run."""
    cell = notebook.run(TRAIN)
    notebook.until(cell, both_paused)
    old = find.connections()[NAME].pid
    run_traces.exempt.discard(old)
    anatomy.kill(old)
    assert eventually(lambda: (now := find.connections().get(NAME)) is not None and now.pid != old)
    run_traces.exempt.add(find.connections()[NAME].pid)
    assert eventually(lambda: notebook.execute("%dist status").text.count("⏸ paused") == 2)
    notebook.until(cell, both_paused)
    notebook.run("%%dist\nloss = 10.0")
    notebook.run("%dist continue")
    assert "[0-1] total 18.0" in notebook.until(cell, lambda text: "2 ranks · " in text)
