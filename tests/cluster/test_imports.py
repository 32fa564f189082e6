"""Modules beside the notebook are found on the ranks as its kernel finds them, and by what ranks start."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

import jdist
from jdist.client.sync import SyncedCode
from support.notebook import Notebook

if TYPE_CHECKING:
    from support.leaks import Traces

Start = Callable[..., jdist.Cluster]

HELPER = """
import sys
ANSWER = 1
def answer(): return ANSWER
def square(x): return x * x
def show(index, folder):
    import beside
    open(f"{folder}/{index}", "w").write(f"{beside.NAME} {sys.flags.safe_path}")
class Numbers:
    def __len__(self): return 3
    def __getitem__(self, i):
        import beside
        return i + ANSWER * len(beside.NAME)
"""


@pytest.fixture
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with modules; this process finds them as a kernel that was started there does."""
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "script.py").write_text("import helper; print('script', helper.answer())\n")
    monkeypatch.chdir(tmp_path)
    path = [entry for entry in sys.path if entry]
    first = next(n for n, entry in enumerate(path) if entry.endswith("site-packages"))
    monkeypatch.setattr(sys, "path", [*path[:first], "", *path[first:]])
    return tmp_path


def test_a_module_beside_the_notebook_is_imported_everywhere(fresh_cluster: Start, in_project: Path) -> None:
    own = fresh_cluster(2)
    paths = own.run("import sys; list(dict.fromkeys(sys.path)), sys.flags.safe_path").values
    assert paths == dict.fromkeys(range(2), (list(dict.fromkeys(sys.path)), False))
    assert own.run("import helper; helper.answer()").values == {0: 1, 1: 1}

    pools = dedent("""
        import multiprocessing
        def squares(method):
            with multiprocessing.get_context(method).Pool(1) as pool:
                return pool.map(helper.square, [2, 3])
        [squares(method) for method in ("fork", "spawn")]
    """)
    assert own.run(pools).values == {0: [[4, 9]] * 2, 1: [[4, 9]] * 2}
    loaders = dedent("""
        from torch.utils.data import DataLoader
        def load(method):
            return [int(x) for x in DataLoader(helper.Numbers(), num_workers=1, multiprocessing_context=method)]
        [load(method) for method in ("fork", "spawn")]
    """)
    assert own.run(loaders, timeout=60).values == {0: [[6, 7, 8]] * 2, 1: [[6, 7, 8]] * 2}
    own.run(f"import torch.multiprocessing; torch.multiprocessing.spawn(helper.show, ({str(in_project)!r},), 2)", [0])
    assert [(in_project / name).read_text() for name in "01"] == ["beside False"] * 2

    own.restart([1])
    assert own.run("import helper; helper.answer()", [1]).values == {1: 1}
    assert "script 1" in own.run_script("script.py").outcomes[1].stdout


def test_modules_with_the_names_of_others_break_nothing(fresh_cluster: Start, in_project: Path) -> None:
    for name in ("random", "queue", "typing", "torch", "numpy", "zmq", "msgspec", "IPython", "psutil"):
        (in_project / f"{name}.py").write_text(f"raise SystemError('{name} of the user')\n")
    own = fresh_cluster(2)
    assert own.run("x = torch.ones(1); dist.all_reduce(x); x.item()").values == {0: 2.0, 1: 2.0}
    own.restart([1])
    assert own.run("import random, queue, helper; (random.randint(1, 1), helper.answer())").values[1] == (1, 1)
    assert own.pull("rank", [1]) == {1: 1}
    spawned = fresh_cluster(1, fork=False)
    assert spawned.run("import random, queue, helper; (random.randint(1, 1), helper.answer())").values == {0: (1, 1)}


def test_a_forkserver_imports_what_is_beside_the_notebook(fresh_cluster: Start, in_project: Path) -> None:
    own = fresh_cluster(1)
    code = "import helper, multiprocessing\nwith multiprocessing.get_context('forkserver').Pool(1) as pool:\n    print("
    assert own.run(f"{code}pool.map(helper.square, [3]))").outcomes[0].stdout == "[9]\n"


def test_entries_that_the_notebook_adds_later_reach_the_ranks(
    cluster: jdist.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "added_later.py").write_text("A = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(tmp_path / "absent")])
    assert cluster.run("import added_later; added_later.A").values == dict.fromkeys(cluster.ranks, 1)
    ends = cluster.run("import sys; sys.path[-1]").values
    assert ends == dict.fromkeys(cluster.ranks, str(tmp_path))
    cluster.run(f"sys.path.remove({str(tmp_path)!r})")


def test_a_changed_module_is_current_in_the_next_cell(fresh_cluster: Start, in_project: Path) -> None:
    own = fresh_cluster(2)
    own.run("import helper; from helper import answer")
    (in_project / "helper.py").write_text(HELPER.replace("ANSWER = 1", "ANSWER = 2"))
    os.utime(in_project / "helper.py", (2e9, 2e9))
    run = own.run("answer(), helper.ANSWER")
    assert run.values == dict.fromkeys(range(2), (2, 2))
    assert [run.outcomes[r].stderr.count("helper") for r in range(2)] == [1, 1]
    assert own.run("answer()").outcomes[0].stderr == ""


def test_an_import_that_waits_for_the_notebook_can_be_interrupted(
    fresh_cluster: Start, in_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = threading.Event()

    async def never(_code: SyncedCode, _module: str) -> str:
        requested.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(SyncedCode, "_sync_requested", never)
    own = fresh_cluster(1)
    own.run("kept = 1")
    lacking = f"import sys\nsys.path[:] = [p for p in sys.path if p not in ('', {str(in_project)!r})]\nimport helper"
    run = own.run_async(lacking)
    assert requested.wait(30)
    own.interrupt()
    assert run.wait(30)
    error = run.outcomes[0].error
    assert error is not None
    assert error.ename == "KeyboardInterrupt"
    assert own.run("kept").values == {0: 1}


@pytest.fixture(scope="module")
def notebook(run_traces: Traces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook beside a module, with a cluster."""
    before = set(run_traces.exempt)
    directory = tmp_path_factory.mktemp("project")
    (directory / "helper.py").write_text(HELPER)
    notebook = Notebook(directory)
    run_traces.exempt.add(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
    try:
        notebook.run("%dist start -n 2 --timeout 60 --idle-timeout 60")
        run_traces.note_clusters()
        yield notebook
        notebook.execute("%dist stop")
    finally:
        notebook.close()
        run_traces.exempt = before


def test_a_module_that_only_the_notebook_finds_can_be_synced(notebook: Notebook) -> None:
    assert "[0-1] 1" in notebook.run("%%dist\nimport helper; helper.answer()").text
    cell = notebook.run("import helper; helper.answer()")
    assert cell.text.strip() == "1"

    notebook.run(
        "%%dist\nimport sys; sys.path.remove('')\ndel sys.modules['helper']"
    )  # as on a node that lacks the directory
    failed = notebook.execute("%%dist\nimport helper")
    assert failed.ename == "CellError"
    assert "%dist sync ." in failed.text
    notebook.run("%dist sync .")
    assert "[0-1] 1" in notebook.run("%%dist\nimport helper; helper.answer()").text
    other = notebook.execute("%%dist\nimport no_such_module")
    assert "%dist sync" not in other.text
    notebook.run("%dist stop")  # it removes the copies
