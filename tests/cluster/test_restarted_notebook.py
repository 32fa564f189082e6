"""A notebook whose kernel is restarted and that is run from the top again: its clusters do not add up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jdist.client import find
from support.notebook import Notebook

if TYPE_CHECKING:
    from support.leaks import Traces

OPTIONS = "-n 1 --backend gloo --timeout 60 --idle-timeout 60"
START = f"%dist start {OPTIONS}"
LOOP = "import time\nwhile True: time.sleep(0.01)"


@pytest.fixture(scope="module")
def opened(run_traces: Traces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook in a directory of its own."""
    notebook = Notebook(tmp_path_factory.mktemp("notebook"))
    run_traces.exempt.add(kernel(notebook))
    yield notebook
    run_traces.exempt.discard(kernel(notebook))
    notebook.close()


@pytest.fixture
def notebook(opened: Notebook, run_traces: Traces) -> Iterator[Notebook]:
    """The same; whatever it starts is stopped at the end."""
    before, old = set(find.here()), kernel(opened)
    yield opened
    run_traces.exempt = (run_traces.exempt - {old}) | {kernel(opened)}
    for name in find.here().keys() - before:
        opened.run(f"%dist stop {name} --now")


def kernel(notebook: Notebook) -> int:
    """The process of its kernel, which a restart replaces."""
    pid: int = notebook.manager.provisioner.pid  # type: ignore[union-attr]
    return pid


def start(notebook: Notebook) -> tuple[str, str]:
    """The identifier of the cluster that the notebook uses after a start, and what it shows."""
    cell = notebook.run(START)
    return notebook.value("cluster.id"), cell.text


def running() -> set[str]:
    return {repr(connection.cluster) for connection in find.here().values()}


def test_an_idle_cluster_is_stopped_as_a_kernel_ends(notebook: Notebook, tmp_path: Path) -> None:
    first, _ = start(notebook)
    file = tmp_path / "ended"
    notebook.run(f"%%dist\nkept = 1\nimport atexit, pathlib\natexit.register(pathlib.Path({str(file)!r}).touch)")
    notebook.restart()
    second, shown = start(notebook)
    assert "was idle and has been stopped" in shown
    assert "--keep" in shown
    assert first not in running()
    assert second in running()
    assert file.exists(), "exit functions have run"
    assert "False" in notebook.run("%%dist\n'kept' in globals()").text


@pytest.mark.parametrize("how", ["--keep", "%dist detach"])
def test_who_wants_it_keeps_it(notebook: Notebook, how: str) -> None:
    first, _ = start(notebook)
    if how.startswith("%"):
        notebook.run(how)
    notebook.restart()
    shown = notebook.run(START + (" --keep" if how.startswith("--") else "")).text
    assert "stopped" not in shown
    assert {first, notebook.value("cluster.id")} <= running()


def test_the_same_cell_again_goes_on_with_the_cluster(notebook: Notebook) -> None:
    first, _ = start(notebook)
    notebook.run("%%dist\nkept = 1")
    second, shown = start(notebook)
    assert second == first
    assert "in use here already" in shown
    assert "%dist restart" in shown
    assert "1" in notebook.run("%%dist\nkept").text
    other = notebook.execute("%dist start -n 2")
    assert other.ename == "UsageError"
    assert "in use here, with other options" in other.evalue
    notebook.restart()
    notebook.run("%dist attach")
    assert start(notebook)[0] == first, "whoever attaches first goes on with it, too"


CLIENT = """
import sys, jdist
cluster = jdist.attach(sys.argv[1])
print("attached", flush=True)
sys.stdin.readline()
"""


def test_one_that_others_use_is_left(notebook: Notebook) -> None:
    first, _ = start(notebook)
    name = notebook.value("cluster.name").strip("'")
    notebook.restart()
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "attached\n"
        second, shown = start(notebook)
    assert {first, second} <= running()
    assert first != second
    assert "1 other client is attached" in shown
    assert f"%dist stop {name}" in shown


@pytest.mark.parametrize(
    ("answers", "is_left", "is_used"), [(None, True, False), (["?", "end"], False, False), (["a"], True, True)]
)
def test_the_user_is_asked_about_a_run(
    notebook: Notebook, answers: list[str] | None, is_left: bool, is_used: bool
) -> None:
    """Where nobody can be asked, as under nbconvert, it is left running, and another cluster is started beside it."""
    first, _ = start(notebook)
    notebook.run(f"%%dist -b\n{LOOP}")
    notebook.restart()
    cell = notebook.execute(START, answers=answers)
    assert cell.status == "ok", cell.evalue
    assert (first in running()) == is_left
    assert (notebook.value("cluster.id") == first) == is_used
    assert ("is running on rank 0" in cell.text) == (answers is None)


def test_the_function_does_the_same_and_asks_nobody(notebook: Notebook) -> None:
    code = "import jdist\ncluster = jdist.start(1, backend='gloo', timeout=60, idle_timeout=60.0)"
    notebook.run(code)
    first = notebook.value("cluster.id")
    notebook.restart()
    assert "was idle and has been stopped" in notebook.run(code).stderr
    assert first not in running()
