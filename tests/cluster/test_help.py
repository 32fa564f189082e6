"""What a user is told who is stuck: where a missing name is, and how a question can be answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.core.errors import Remedy
from jdist.notebook.output.run_json import MIME
from support.notebook import Cell, Notebook

if TYPE_CHECKING:
    from support.leaks import Traces

SECRET = "a-value-that-nobody-asked-for"


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
    kernel.run(f"%dist attach {cluster.name}")
    yield kernel
    kernel.run("%dist detach")


def shown(cell: Cell) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", cell.text)


def suggested(cell: Cell) -> list[dict[str, str]]:
    """As JupyterLab gets them."""
    return [remedy for failure in cell.displays[-1][MIME]["failures"] for remedy in failure.get("remedies", ())]


def test_a_missing_name_that_is_elsewhere_comes_with_the_way_to_bring_it(
    notebook: Notebook, cluster: jdist.Cluster
) -> None:
    cluster.run(f"if rank < 2: scaler = {SECRET!r}\nlearning_rate = 0.1", timeout=30)
    notebook.run(f"import string as text_tools\nbatch_size = {SECRET!r}")

    cell = notebook.execute("%%dist\nbatch_size + 1")
    assert "\n  line 2: batch_size + 1\n  → %dist push batch_size  copy the notebook's\n" in cell.text
    assert "<code>%dist push batch_size</code> copy the notebook&#x27;s" in cell.html
    assert suggested(cell) == [{"action": "push", "effect": "copy the notebook's", "name": "batch_size"}]
    cell = notebook.execute("%%dist -r 1\nbatch_size + 1")
    assert "→ %dist push batch_size -r 1" in cell.text
    cell = notebook.execute("%%dist\ntext_tools.digits")
    assert "→ %%dist  import string there; text_tools is imported in the notebook only" in cell.text

    cell = notebook.execute("%%dist\nif scaler: 1")
    assert "→ %dist restore 2-3 --from 0 scaler  copy it from rank 0; ranks 0-1 have it\n" in cell.text
    assert SECRET not in str(cell.displays)
    notebook.run("%dist restore 2-3 --from 0 scaler")
    assert SECRET in notebook.run("%%dist -r 3\nscaler").text

    cell = notebook.execute("%%dist\nlearning_rat")
    assert "NameError: name 'learning_rat' is not defined. Did you mean: 'learning_rate'?" in cell.text
    cell = notebook.execute("%%dist\ndef f(width):\n    return widht\nf(1)")
    assert "Did you mean: 'width'?" in cell.text
    cell = notebook.execute("%%dist\nnowhere_at_all")
    assert "→" not in cell.text
    assert "mean" not in cell.text

    cell = notebook.execute("scaler")
    assert (cell.ename, cell.text) == (
        "NameError",
        "\nnote: ranks 0-3 have scaler; %dist pull scaler to copy it into the notebook",
    )
    assert SECRET not in str(cell.displays)
    assert "ranks 0-3 have torch, a module" in notebook.execute("torch").text
    assert notebook.execute("nowhere_at_all").displays == []
    assert notebook.execute("1 / 0").displays == []
    notebook.run("%dist pull scaler")
    assert notebook.run("len(scaler)").displays[-1]["text/plain"] == "4"
    notebook.run("del scaler, batch_size, text_tools")
    cluster.run("del scaler, learning_rate, f", timeout=30)


ASK = {
    "input()": "input('? ')",
    "getpass()": "import getpass; getpass.getpass()",
    "a debugger": "import pdb, sys\ntry: 1 / 0\nexcept ZeroDivisionError: pdb.post_mortem(sys.exc_info()[2])",
    "IPython.embed()": "import IPython; IPython.embed()",
    "%debug": "%debug",
}


def test_several_ranks_that_ask_are_told_in_one_line_how_one_can(notebook: Notebook, cluster: jdist.Cluster) -> None:
    for what, code in ASK.items():
        cell = notebook.execute(f"%%dist -r 1-3\n{code}")
        lines = shown(cell).strip().splitlines()
        assert re.fullmatch(
            rf"ranks 1-3 .* failed: InputRefused: {re.escape(what)} needs a cell that runs on one rank, .*", lines[0]
        ), (what, cell.text)
        assert any(line.startswith("  → %%dist -r 1  ") for line in lines), (what, lines)
        assert any("→ %dist debug  " in line for line in lines) == (what in ("a debugger", "%debug")), (what, lines)
        assert len(lines) <= 5, (what, lines)
        assert "traceback" not in cell.html, what
        assert "shell.py" not in cell.html, what
    run = cluster.submit("input()", (2,), timeout=30)
    assert run.wait(40)
    assert run.outcomes[2].error is not None
    assert run.outcomes[2].error.remedies == (Remedy("run_cell", "answer it there", ranks="2"),)


FAILS = """%%dist
def loss_of(batch):
    scaled = batch * 10
    if rank == 2:
        raise ValueError('no such batch')
    return scaled
_ = loss_of(7)
"""


def test_a_debugger_on_one_rank_starts_where_it_failed(notebook: Notebook) -> None:
    assert notebook.execute(FAILS).ename == "CellError"
    notebook.execute("%%dist\n%debug")  # refused, and the error is still the last one
    cell = notebook.execute("%%dist -r 2\n%debug", answers=["p scaled", "where", "up", "p rank", "q"])
    assert cell.status == "ok"
    text = shown(cell)
    assert text.index("raise ValueError") < text.index("70") < text.index("<module>()")
    assert re.search(r"_ = loss_of\(7\)\n(\[2\]\s*\n)?\[2\] 2\n", text), text
    assert "jdist/" not in text

    notebook.run("%%dist\n%pdb on")
    cell = notebook.execute(FAILS)
    assert "failed: ValueError: no such batch" in cell.text
    assert "[2] jdist: %pdb starts only in a cell that runs on one rank" in cell.text
    cell = notebook.execute(FAILS.replace("%%dist", "%%dist -r 2"), answers=["p scaled", "q"])
    assert "[2] 70" in shown(cell)
    assert "failed: ValueError: no such batch" in cell.text
    notebook.run("%%dist\n%pdb off\ndel _, loss_of")


def test_a_prompt_that_nobody_answers_ends_with_the_cell(cluster: jdist.Cluster) -> None:
    cluster.run("kept = rank", timeout=30)
    for code in ("input()", "import pdb\npdb.run('x = 1')", "import code\ncode.interact(local={})"):
        run = cluster.submit(code, (3,), timeout=1, allow_stdin=True)
        assert run.wait(30)
        assert run.outcomes[3].kind in ("timeout", "value"), (code, run.outcomes)
    assert cluster.run("kept", timeout=30).values == {r: r for r in range(4)}, "no rank was replaced"
    cluster.run("del kept", timeout=30)
