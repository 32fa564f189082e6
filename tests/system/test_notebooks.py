"""The example notebooks, run from top to bottom as a reader would run them.

Each runs in a copy of its folder, with a Jupyter runtime folder of its own, so that it sees no other cluster.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from support.server.logins import Logins

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def shower() -> ModuleType:
    """``notebooks/show.py``, what `make demo` runs; the notebooks' folder is no package."""
    spec = importlib.util.spec_from_file_location("show", NOTEBOOKS / "show.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the notebooks' folder, so that what a run writes stays out of the tree."""
    return Path(shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def own_clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime folder for this test, and a host behind ssh; a cluster that a failed notebook has left is stopped."""
    # Not under tmp_path: the kernel's sockets lie in it, and a socket's path may have 107 characters only.
    with (
        tempfile.TemporaryDirectory(prefix="jdist-nb-") as runtime,
        tempfile.TemporaryDirectory(prefix="jdist-at-") as hosts,
    ):
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", runtime)
        monkeypatch.setenv("JDIST_SSH", str(Logins(Path(hosts)).program))
        monkeypatch.setenv("JDIST_AT_PYTHON", sys.executable)
        # Keeps the debugger's note about frozen modules out of the outputs.
        monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        yield
        for folder, where in ((Path(runtime), ()), (Path(hosts, "login"), ("--at", "login"))):
            if folder.exists() and any(folder.iterdir()):
                stop = [sys.executable, "-m", "jdist", "stop", *where]
                subprocess.run(stop, timeout=60, check=False, capture_output=True)


def test_there_are_notebooks() -> None:
    assert NAMES[0] == "01_first_cell.ipynb"


@pytest.mark.parametrize("name", NAMES)
def test_form(name: str) -> None:
    """Valid nbformat 4.5, starts the cluster it stops, and kept in the tree with the outputs of one run that was good.

    `python notebooks/show.py --save NOTEBOOK` makes them.
    """
    nb = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(nb)
    assert (nb.nbformat, nb.nbformat_minor) >= (4, 5)
    code = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    assert "%load_ext jdist" in code[0]
    assert any("%dist start" in source for source in code)
    assert code[-1] == "%dist stop"
    outputs = [out for cell in nb.cells for out in cell.get("outputs", ())]
    assert not [out for out in outputs if out.output_type == "error"]
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    # What a cell in the background shows comes when it is over for those who read the file.
    shows = [cell for cell in cells if "%dist" in cell.source and not cell.source.startswith("%%dist -b")]
    assert not [cell.source for cell in shows if not cell.outputs]


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_that_only_checks_is_folded(name: str) -> None:
    """A reader sees what is taught; the checks run all the same."""
    for cell in nbformat.read(NOTEBOOKS / name, as_version=4).cells:
        lines = [line for line in cell.source.splitlines() if not line.startswith("%%")]
        if cell.cell_type == "code" and lines and all(line.startswith("assert ") for line in lines):
            assert cell.metadata.get("jupyter", {}).get("source_hidden"), cell.source
            assert "hide-cell" in cell.metadata.get("tags", ()), cell.source


@pytest.mark.timeout(300)  # what each takes in seconds on an idle machine, a loaded one takes in minutes
@pytest.mark.usefixtures("own_clusters")
@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, folder: Path, shower: ModuleType) -> None:
    nb = nbformat.read(folder / name, as_version=4)
    shower.Show(nb, folder).execute()
    for cell in nb.cells:
        if cell.cell_type == "code":
            assert cell.execution_count is not None, f"did not run: {cell.source}"
            assert not [out for out in cell.outputs if out.output_type == "error"], cell.source


class TestShow:
    """What `make demo` promises: every cell with its output, and an exit code that tells."""

    @pytest.fixture
    def run(self, tmp_path: Path, own_clusters: None):
        def run(*cells: str, words: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
            nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
            nbformat.write(nb, tmp_path / "book.ipynb")
            command = [sys.executable, str(NOTEBOOKS / "show.py"), *words, str(tmp_path / "book.ipynb")]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)

        return run

    def test_prints_source_and_outputs_in_order(self, run, tmp_path: Path) -> None:
        done = run("print('one')\n'two'", "display('old', display_id='d')\ndisplay('new', display_id='d', update=True)")
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line]
        assert lines[:4] == ["    print('one')", "    'two'", "one", "'two'"]
        assert lines[-1] == "'new'"
        assert "'old'" not in lines
        assert not [cell.outputs for cell in nbformat.read(tmp_path / "book.ipynb", as_version=4).cells if cell.outputs]

    def test_a_failing_cell_ends_it(self, run) -> None:
        done = run("x = {}\nx['absent']", "print('never')")
        assert done.returncode == 1
        assert "KeyError: 'absent'" in done.stdout
        assert "never" not in done.stdout

    def test_outputs_are_kept_when_asked_for_and_all_went_well(self, run, tmp_path: Path) -> None:
        def kept() -> list[int]:
            return [len(cell.outputs) for cell in nbformat.read(tmp_path / "book.ipynb", as_version=4).cells]

        assert run("print('one')", words=["--save"]).returncode == 0
        assert kept() == [1]
        assert run("print('one')", "1 / 0", words=["--save"]).returncode == 1
        assert kept() == [0, 0]

    def test_a_file_that_is_no_notebook(self, tmp_path: Path) -> None:
        (tmp_path / "book.ipynb").write_text("not json")
        command = [sys.executable, str(NOTEBOOKS / "show.py"), str(tmp_path / "book.ipynb")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "cannot be read as a notebook" in done.stderr


def test_cell_errors_reach_the_caller(tmp_path: Path, own_clusters: None, shower: ModuleType) -> None:
    """What test_runs rests on: a cell that fails raises here."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("raise SystemError('on purpose')")])
    with pytest.raises(CellExecutionError, match="on purpose"):
        shower.Show(nb, tmp_path).execute()
