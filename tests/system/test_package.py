"""The package as a user installs it: its public names, its version, its source distribution and its wheel."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from jupyter_builder.federated_extensions import develop_labextension_py

import jdist
from support import forked_nodes
from support.hosts.pythons import make_python
from support.lacking import lacking
from support.leaks import Traces
from support.notebook import Notebook

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
is_built = runpy.run_path(str(ROOT / "hatch_build.py"))["is_built"]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What a release publishes: the source distribution, and the wheel made from it, which needs no npm."""
    if not is_built(ROOT / "labextension", ROOT / "labextension" / "built"):
        lacking("jdist's JupyterLab extension has not been built: make labextension")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(
        command, env={**os.environ, "PATH": ""}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which the wheel was installed, with all its extras, from what the running one has."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    command = [str(make_python(folder)), "-m", "pip", "install", "--no-index", f"{distributions[1]}[test]"]
    done = subprocess.run(
        command, env={**os.environ, "PATH": ""}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def notebook(installed: Path, run_traces: Traces) -> Iterator[Notebook]:
    """A kernel of that environment, as a Jupyter server starts it; nothing but the environment is on the PATH."""
    spec = installed / "share" / "jupyter" / "kernels" / "installed" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [str(installed / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "installed", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(installed / "bin"))
        patch.setenv("JUPYTER_PATH", str(installed / "share" / "jupyter"))
        patch.setenv("JPY_SESSION_NAME", "a.ipynb")
        patch.delenv(forked_nodes.ADDRESS, raising=False)  # nodes are started as those of users are
        notebook = Notebook(installed.parent, kernel="installed")
    yield notebook
    notebook.close()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree in which the JupyterLab extension has not been built, where there is no npm."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SKIP_JUPYTER_BUILDER", raising=False)
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "jdist", folder / "jdist", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "labextension" / "src", folder / "labextension" / "src")
    shutil.copytree(ROOT / "etc", folder / "etc")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder)
    return folder


def names_in(wheel: str | Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def extension_in(names: set[str]) -> set[str]:
    return {name for name in names if ".data/data/share/jupyter/labextensions/jdist/" in name}


def test_public_names_exist() -> None:
    assert jdist.__all__
    assert len(set(jdist.__all__)) == len(jdist.__all__)
    absent = [name for name in jdist.__all__ if not hasattr(jdist, name)]
    assert absent == []


@pytest.mark.parametrize(
    "name", ["start", "attach", "list_clusters", "Cluster", "AsyncCluster", "JdistError", "UsageError", "CellError"]
)
def test_the_names_the_documentation_uses_are_public(name: str) -> None:
    assert name in jdist.__all__


def test_the_jupyterlab_extension_the_citation_and_the_changelog_have_the_version_of_jdist() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == jdist.__version__
    assert json.loads((ROOT / "labextension" / "package.json").read_text())["version"] == jdist.__version__
    assert f"## [{jdist.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_entry_points_lead_to_something() -> None:
    for target in [*PROJECT["scripts"].values(), *PROJECT["entry-points"]["jdist.launchers"].values()]:
        module, _, name = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_the_distributions_are_what_pypi_takes(distributions: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_holds_the_typed_package_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    names = names_in(distributions[1])
    extension = extension_in(names)
    assert any(name.endswith("static/style.js") for name in extension)
    assert any(name.endswith("/jdist/install.json") for name in extension)
    assert not any(name.endswith(".map") for name in extension), "a build for development"
    info = f"jdist-{jdist.__version__}.dist-info/"
    assert "jdist/py.typed" in names
    enabling = f"jdist-{jdist.__version__}.data/data/etc/jupyter/jupyter_server_config.d/jdist.json"
    assert {name for name in names if not name.startswith(("jdist/", info))} - extension == {enabling}
    assert "jdist/server/events.yaml" in names
    in_tree = {str(path.relative_to(ROOT)) for path in (ROOT / "jdist").rglob("*.py")}
    assert in_tree <= names


def test_the_installed_wheel_starts_names_a_hang_is_interrupted_and_stops(
    installed: Path, notebook: Notebook, traces: Traces
) -> None:
    assert notebook.value("__import__('jdist').__file__.startswith(__import__('sys').prefix)") == "True"
    notebook.run("%dist start -n 2 --backend gloo")
    where = notebook.run("%%dist\nimport jdist\nprint(jdist.__file__)\nkept = torch.ones(1) * rank").text
    assert str(installed) in where
    hang = "%%dist\nif rank == 0: dist.barrier()"
    cell = notebook.execute(hang, notebook.interrupt_when(lambda cell: "cannot finish" in cell.text))
    assert (cell.status, cell.ename) == ("error", "CellInterrupted")
    assert "rank 1" in cell.text
    assert "tensor([1.])" in notebook.run("%%dist\ndist.all_reduce(kept)\nkept").text
    notebook.run("%dist stop")


def test_the_installed_command_has_a_version(installed: Path) -> None:
    command = [str(installed / "bin" / "jdist"), "--version"]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"jdist {jdist.__version__}\n"


def test_the_jupyterlab_beside_has_the_extension_of_the_wheel_and_the_kernel_says_when_it_has_not(
    installed: Path, notebook: Notebook
) -> None:
    python = str(installed / "bin" / "python")
    listed = subprocess.run(
        [python, "-m", "jupyterlab.labextensions", "list"],
        env={**os.environ, "JUPYTER_NO_CONFIG": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shown = re.sub(r"\x1b\[[0-9;]*m", "", listed.stdout + listed.stderr)
    assert re.search(rf"jdist v{re.escape(jdist.__version__)} enabled OK \(python, jdist\)", shown), shown
    assert notebook.run("%reload_ext jdist").text == ""
    extension = installed / "share" / "jupyter" / "labextensions" / "jdist"
    extension.rename(installed / "extension")
    try:
        assert f"JupyterLab in {installed} lacks jdist's extension" in notebook.run("%reload_ext jdist").text
    finally:
        (installed / "extension").rename(extension)


def test_a_source_distribution_needs_no_npm_whatever_times_its_files_have(
    distributions: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older pips unpack it with the time of the moment, one file after the other."""
    monkeypatch.setenv("PATH", "")
    with tarfile.open(distributions[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    (source / "labextension" / "src" / "index.ts").touch()
    (wheel,) = WheelBuilder(str(source)).build(directory=str(tmp_path / "dist"))
    assert any(name.endswith("static/style.js") for name in extension_in(names_in(wheel)))


def test_without_npm_a_clone_is_installed_without_the_extension_but_not_published(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wheel,) = WheelBuilder(str(clone)).build(directory=str(tmp_path))
    assert "jdist/py.typed" in names_in(wheel)
    assert not extension_in(names_in(wheel))
    with pytest.raises(SystemExit):
        next(SdistBuilder(str(clone)).build(directory=str(tmp_path)))
    assert "there is no npm: a source distribution needs the built JupyterLab extension" in capsys.readouterr().err


def test_an_npm_that_fails_fails_the_installation_unless_it_is_to_be_left_alone(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho the registry cannot be reached >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    with pytest.raises(SystemExit):
        next(WheelBuilder(str(clone)).build(directory=str(tmp_path)))
    shown = capfd.readouterr().err
    assert "the registry cannot be reached" in shown
    assert "SKIP_JUPYTER_BUILDER=1 pip install" in shown
    monkeypatch.setenv("SKIP_JUPYTER_BUILDER", "1")
    (wheel,) = WheelBuilder(str(clone)).build(directory=str(tmp_path))
    assert not extension_in(names_in(wheel))


def test_the_extension_of_a_source_tree_is_linked_as_other_extensions_are(tmp_path: Path) -> None:
    """By what ``jupyter-builder develop . --overwrite`` calls."""
    built = ROOT / "labextension" / "built"
    if not built.exists():
        lacking("the JupyterLab extension is built by npm")
    (linked,) = develop_labextension_py(str(ROOT), labextensions_dir=str(tmp_path / "labextensions"), overwrite=True)
    assert Path(linked).readlink() == built
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter", "labextension", "list"],
        env={**os.environ, "JUPYTER_PATH": str(tmp_path), "JUPYTER_NO_CONFIG": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    version = re.escape(jdist.__version__)
    line = rf"{re.escape(str(tmp_path))}/labextensions\n\s+jdist v{version} .*enabled.* .*OK"
    assert re.search(line, listed.stdout + listed.stderr)


def test_a_build_for_development_is_not_what_a_wheel_holds(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    built = tmp_path / "built"
    (built / "static").mkdir(parents=True)
    assert not is_built(tmp_path, built)
    (built / "package.json").touch()
    assert is_built(tmp_path, built)
    (built / "static" / "lib_index_js.js.map").touch()  # as `npm run watch` leaves it
    assert not is_built(tmp_path, built)
