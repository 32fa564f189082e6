"""Lines of a cell have the numbers that the notebook's editor shows, wherever jdist names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from support.notebook import Notebook

if TYPE_CHECKING:
    from support.leaks import Traces


@pytest.fixture(scope="module")
def kernel(run_traces: Traces) -> Iterator[Notebook]:
    before = set(run_traces.exempt)
    notebook = Notebook()
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    yield notebook
    notebook.close()
    run_traces.exempt = before


@pytest.fixture
def notebook(kernel: Notebook, cluster: jdist.Cluster) -> Iterator[Notebook]:
    """It uses the shared cluster."""
    kernel.run(f"%dist attach {cluster.name}")
    yield kernel
    kernel.execute("%dist continue")
    kernel.run("%dist auto off\n%dist detach")


def line_of(cell: str, text: str) -> int:
    """The number of the line that begins with ``text``, as an editor counts."""
    return next(number for number, line in enumerate(cell.split("\n"), 1) if line.strip().startswith(text))


CELLS = [
    "%%dist\n1 / 0",
    "%%dist -r 0,2\nx = 1\n\n1 / 0\n",
    "%%dist\n\n\n1 / 0\n\n\n",
    "# a comment\n\n# another\n%%dist\nx = 1\n1 / 0",
    "\n\n%%dist\nx = 1\n1 / 0",
    "%%dist\n    x = 1\n    1 / 0",
]


@pytest.mark.parametrize("cell", CELLS)
def test_a_failure_and_its_traceback(notebook: Notebook, cell: str) -> None:
    shown = notebook.execute(cell)
    line = line_of(cell, "1 / 0")
    assert f"\n  line {line}: 1 / 0\n" in shown.text
    assert f"line {line}\n" in shown.text, "IPython's header of the frame"
    assert f"----> {line} 1 / 0" in " ".join(shown.text.split("\n")).replace("-----> ", "----> ")
    assert f"at cell line {line}" in shown.evalue


def test_a_cell_that_auto_sends(notebook: Notebook) -> None:
    notebook.run("%dist auto on")
    cell = "\nx = 1\n1 / 0"
    assert f"\n  line {line_of(cell, '1 / 0')}: 1 / 0\n" in notebook.execute(cell).text


def test_a_syntax_error(notebook: Notebook) -> None:
    assert "\n  line 3: x = = 1\n" in notebook.execute("%%dist\ny = 1\nx = = 1").text


def test_a_function_of_an_earlier_cell(notebook: Notebook) -> None:
    notebook.run("# of the module\n%%dist\ndef fail():\n    raise ValueError('here')")
    shown = notebook.execute("%%dist\nx = 1\nfail()")
    assert "line 4" in shown.text


def test_a_verdict(notebook: Notebook) -> None:
    cell = "# waits\n%%dist -t 1\nx = torch.ones(1)\nif rank != 1:\n    dist.all_reduce(x)"
    shown = notebook.execute(cell)
    assert "cannot finish" in shown.text or "did not finish" in shown.text
    assert f"wait in all_reduce at cell line {line_of(cell, 'dist.all_reduce')}" in shown.text


def test_a_breakpoint_a_step_and_a_cell_in_the_paused_frame(notebook: Notebook) -> None:
    cell = "%%dist\nx = 1\nbreakpoint()\nx = 2\nx = 3"
    shown = notebook.execute(cell)
    notebook.until(shown, lambda text: f"[0-3] <cell>, line {line_of(cell, 'breakpoint()')}: breakpoint()" in text)
    assert "line 3: 1 / 0" in notebook.execute("%%dist\nx += 10\n1 / 0").text
    stepped = notebook.run(f"%dist until {line_of(cell, 'x = 3')}")
    assert "<cell>, line 5: x = 3" in stepped.text


def test_a_trace(notebook: Notebook) -> None:
    notebook.run("%%dist\nx = 1\ndist.barrier()")
    assert "at cell line 3" in notebook.run("%dist trace").text


def test_code_without_a_magic_begins_with_its_own_line(cluster: jdist.Cluster) -> None:
    with pytest.raises(jdist.CellError, match="at cell line 2"):
        cluster.run("x = 1\n1 / 0")
