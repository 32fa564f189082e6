"""Front ends without a browser, run as users run them: IPython and Jupyter's console in a pseudo-terminal, nbconvert,
papermill and ``jupyter run`` with their output in a file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pexpect
import pytest

import jdist
from jdist.core.outcome import WIDGET_VIEW

BIN = Path(sys.executable).parent
LONG = 120.0
COLUMNS = 90
WORKS = """
import time
from tqdm.auto import tqdm
for _ in tqdm(range(20), desc="train"):
    time.sleep(0.1)
print("trained", rank * 1111)
"""


@contextmanager
def terminal(program: str, *options: str) -> Iterator[pexpect.spawn]:
    """The program in a terminal, at its first prompt."""
    size = (40, COLUMNS)
    shell = pexpect.spawn(str(BIN / program), list(options), timeout=LONG, dimensions=size, encoding="utf-8")
    try:
        shell.expect_exact("In [1]:")
        yield shell
    finally:
        shell.close(force=True)


@pytest.mark.parametrize("program", ["ipython", "jupyter-console"])
def test_a_terminal_shows_bars_that_move_and_then_the_lines(program: str, cluster: jdist.Cluster) -> None:
    with terminal(program, "--simple-prompt") as shell:
        shell.sendline("%load_ext jdist")
        shell.expect_exact("In [2]:")
        shell.sendline(f"%dist attach {cluster.name}")
        shell.expect_exact("In [3]:")
        assert "attached to cluster" in shell.before
        code = "\\n".join(WORKS.strip().splitlines())
        shell.sendline(f"get_ipython().run_cell_magic('dist', '', {code!r}.encode().decode('unicode_escape'))")
        shell.expect_exact("In [4]:")
        shown = shell.before
        shell.sendline("exit")
        shell.expect(pexpect.EOF)
    assert re.search(r"train: +\d+%", shown), shown
    assert "\x1b[J" in shown, "the bar is written over"
    assert re.search(r"\d+/20 \[", shown.rpartition("\x1b[J")[0]), "what stands after the bar is seen"
    for rank in range(4):
        assert f"trained {rank * 1111}" in shown
    last = shown.rpartition("\x1b[J")[2]
    assert "train:" not in last or "100%" in last
    assert re.search(r"run \d+ · 4 ranks · ", last)


def notebook_of(folder: Path, *cells: str) -> Path:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "trains.ipynb"
    nbformat.write(book, path)
    return path


def run(program: str, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / program), *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONG, check=False)


@pytest.mark.parametrize("program", ["nbconvert", "papermill", "papermill --log-output"])
def test_an_executed_notebook_has_each_output_once(program: str, cluster: jdist.Cluster, tmp_path: Path) -> None:
    book = notebook_of(tmp_path, f"%load_ext jdist\n%dist attach {cluster.name}", f"%%dist\n{WORKS}")
    if program == "nbconvert":
        done = run("jupyter", "nbconvert", "--execute", "--to", "notebook", "--inplace", book.name, cwd=tmp_path)
        written = book
    else:
        written = tmp_path / "out.ipynb"
        done = run("papermill", *program.split()[1:], book.name, written.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = nbformat.read(written, 4)
    shown = [output["data"]["text/plain"] for output in found.cells[-1].outputs if "data" in output]
    assert sum("trained" in text for text in shown) == 1, shown
    assert "run " in shown[-1]
    assert done.stderr.count("\n") < 60, "its log is not flooded"


def test_an_executed_notebook_has_the_widgets_of_ranks(cluster: jdist.Cluster, tmp_path: Path) -> None:
    displays = "%%dist\nimport ipywidgets\nipywidgets.IntSlider()"
    book = notebook_of(tmp_path, f"%load_ext jdist\n%dist attach {cluster.name}", displays)
    done = run("jupyter", "nbconvert", "--execute", "--to", "notebook", "--inplace", book.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (output,) = (o for o in nbformat.read(book, 4).cells[-1].outputs if WIDGET_VIEW in o.get("data", {}))
    assert output["data"]["text/plain"] == "widget of ranks 0-3"


def test_a_script_of_jupyter_run_writes_whole_lines_into_a_file(cluster: jdist.Cluster, tmp_path: Path) -> None:
    script = tmp_path / "trains.ipy"
    script.write_text(f"%load_ext jdist\n%dist attach {cluster.name}\n%dist check 1\n")
    done = run("jupyter", "run", script.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b[" not in done.stdout
    assert "attached to cluster" in done.stdout
