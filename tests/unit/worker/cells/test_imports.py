from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jdist.core.import_path import ImportPath
from jdist.worker.cells.imports import Imports

OLD, NEW = "def f():\n    return 1\n", "def f():\n    return 2\n"


class Events:
    def register(self, event: str, callback: Callable[..., None]) -> None:
        assert event == "pre_run_cell"
        self.before_cell = callback


class Shell:
    def __init__(self) -> None:
        self.events = Events()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    loader: Any = importlib.machinery.SourceFileLoader
    monkeypatch.setattr(loader, "path_stats", loader.path_stats)  # what is installed below is taken back
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return Shell()


@pytest.fixture
def imports(shell: Shell) -> Imports:
    return Imports(shell)


@pytest.fixture
def module(imports: Imports, tmp_path: Path) -> Iterator[ModuleType]:
    """A module of the user's, imported after the rank has begun to look."""
    (tmp_path / "users_own.py").write_text(OLD)
    imports.use(ImportPath(str(tmp_path), (str(tmp_path),)))
    yield importlib.import_module("users_own")
    del sys.modules["users_own"]


def change(module: ModuleType, text: str) -> None:
    """Write a file as an editor does, perhaps within the second and to the same size."""
    path = Path(module.__file__ or "")
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))


def test_a_changed_module_is_loaded_again(shell: Shell, module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    imported = module.f
    shell.events.before_cell()
    assert capsys.readouterr().err == ""
    change(module, NEW)
    shell.events.before_cell()
    assert (module.f(), imported()) == (2, 2)
    assert "users_own" in capsys.readouterr().err
    shell.events.before_cell()
    assert capsys.readouterr().err == ""


def test_a_module_that_cannot_be_loaded_stays_until_it_changes_again(
    shell: Shell, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    change(module, "def f(:\n")
    shell.events.before_cell()
    assert module.f() == 1
    assert "SyntaxError" in capsys.readouterr().err
    shell.events.before_cell()
    assert capsys.readouterr().err == ""
    change(module, NEW)
    shell.events.before_cell()
    assert module.f() == 2


def test_a_module_that_the_user_has_reloaded_is_current(
    shell: Shell, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    change(module, NEW + "# longer\n")
    importlib.reload(module)
    shell.events.before_cell()
    assert capsys.readouterr().err == ""


def test_a_module_whose_file_is_gone_stays(shell: Shell, module: ModuleType) -> None:
    Path(module.__file__ or "").unlink()
    shell.events.before_cell()
    assert module.f() == 1


def test_looking_for_changes_runs_none_of_a_modules_code(shell: Shell, module: ModuleType) -> None:
    class Hostile(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit

    sys.modules["hostile"] = Hostile("hostile")
    try:
        change(module, NEW)
        shell.events.before_cell()
    finally:
        del sys.modules["hostile"]
    assert module.f() == 2


def test_synced_folders_stay_in_front_of_a_clients_path(imports: Imports, tmp_path: Path) -> None:
    (tmp_path / "synced").mkdir()
    imports.record_synced((str(tmp_path / "synced"),), ())
    imports.use(ImportPath(str(tmp_path), (str(tmp_path),)))
    assert sys.path[:2] == [str(tmp_path / "synced"), str(tmp_path)]


def test_relative_entries_are_found_in_both_directories(
    imports: Imports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "src").mkdir(parents=True)
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    imports.use(ImportPath(str(there), ("", "src"), (), ("absent",)))
    assert sys.path[:3] == ["", str(there), str(there / "src")]
    assert not any(entry.endswith("absent") for entry in sys.path)


def test_the_working_directory_stays_the_empty_entry(
    imports: Imports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    imports.use(ImportPath(str(tmp_path), ("",)))
    assert sys.path[0] == ""
    assert not any(p.startswith(str(tmp_path)) for p in sys.path)


ORIGIN = "/nowhere/project"  # A client's directory, which this node lacks.


@pytest.fixture
def copy(imports: Imports, tmp_path: Path) -> Iterator[Path]:
    """Where the client's directory is copied to; the client has `requested` in it."""
    (tmp_path / "requested.py").write_text(OLD)
    imports.use(ImportPath(ORIGIN, between=("",)), ("requested",))
    yield tmp_path
    sys.modules.pop("requested", None)


def test_a_module_that_only_the_client_has_is_requested_and_the_import_goes_on(
    shell: Shell, imports: Imports, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def request(name: str) -> bool:
        imports.record_synced((), (str(copy / "requested.py"),), {ORIGIN: str(copy)})
        imports.handle_reply(name, "synced")
        return True

    imports.request = request
    assert importlib.import_module("requested").f() == 1
    assert capsys.readouterr().err == "jdist: synced\n"
    library = sys.path.index(os.path.dirname(os.__file__))
    assert library < sys.path.index(str(copy))  # as the notebook's own directory: its random.py is not Python's
    assert importlib.util.find_spec("no_such_module") is None
    assert imports.copy_of(f"{ORIGIN}/requested.py") == str(copy / "requested.py")
    assert imports.copy_of("/elsewhere/requested.py") == ""
    sys.path.remove(str(copy))  # as at the end of a script
    shell.events.before_cell()
    assert capsys.readouterr().err == ""  # what was loaded after it was synced is current
    assert str(copy) in sys.path


def test_a_script_that_is_not_sent_is_requested_once(
    imports: Imports, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def request(name: str) -> bool:
        imports.handle_reply(name, "too large")
        return True

    imports.request = request
    assert imports.copy_of(f"{ORIGIN}/requested.py") == ""
    assert capsys.readouterr().err == "jdist: too large\n"


def test_an_entry_that_a_cell_has_removed_stays_removed_when_the_client_has_more_modules(
    imports: Imports, tmp_path: Path
) -> None:
    wanted = ImportPath(str(tmp_path), (str(tmp_path),))
    imports.use(wanted)
    sys.path.remove(str(tmp_path))
    imports.use(wanted, ("fresh",))
    assert str(tmp_path) not in sys.path


def test_without_a_reply_in_time_an_import_fails_and_is_not_requested_again(
    imports: Imports, copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []
    imports.request = lambda name: not requested.append(name)
    monkeypatch.setattr("jdist.worker.cells.imports._LONGEST_REQUEST", 0.05)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'requested'$"):
            importlib.import_module("requested")
    assert requested == ["requested"]
    assert "`sync`" in capsys.readouterr().err


def test_only_the_main_thread_of_a_cell_requests_modules(imports: Imports, copy: Path) -> None:
    requested: list[str] = []
    imports.request = lambda name: bool(requested.append(name))  # no cell is running
    assert importlib.util.find_spec("requested") is None
    thread = threading.Thread(target=importlib.util.find_spec, args=("requested",))
    thread.start()
    thread.join()
    assert requested == ["requested"]
