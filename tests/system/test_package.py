"""The package as a user installs it: its public names, its version, its wheel."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from jupyter_builder.federated_extensions import develop_labextension_py

import jdist
from support.lacking import lacking

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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


def test_version_is_the_projects() -> None:
    assert jdist.__version__ == PROJECT["version"]


def test_changelog_tells_of_this_version() -> None:
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_entry_points_lead_to_something() -> None:
    for target in [*PROJECT["scripts"].values(), *PROJECT["entry-points"]["jdist.launchers"].values()]:
        module, _, name = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_wheel_holds_the_typed_package_and_nothing_else(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    data = f"jdist-{PROJECT['version']}.data/data"
    extension = {name for name in names if name.startswith(f"{data}/share/jupyter/labextensions/jdist/")}
    if not any(name.endswith("static/style.js") for name in extension):
        lacking("the JupyterLab extension is built by npm")
    assert any(name.endswith("/jdist/install.json") for name in extension)
    assert not any(name.endswith(".map") for name in extension), "a build for development"
    info = f"jdist-{PROJECT['version']}.dist-info/"
    assert "jdist/py.typed" in names
    enabling = f"{data}/etc/jupyter/jupyter_server_config.d/jdist.json"
    assert {name for name in names if not name.startswith(("jdist/", info))} - extension == {enabling}
    assert "jdist/server/events.yaml" in names
    in_tree = {str(path.relative_to(ROOT)) for path in (ROOT / "jdist").rglob("*.py")}
    assert in_tree <= set(names)


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
    version = re.escape(PROJECT["version"])
    line = rf"{re.escape(str(tmp_path))}/labextensions\n\s+jdist v{version} .*enabled.* .*OK"
    assert re.search(line, listed.stdout + listed.stderr)


def test_a_build_for_development_is_not_what_a_wheel_holds(tmp_path: Path) -> None:
    is_built = runpy.run_path(str(ROOT / "hatch_build.py"))["is_built"]
    (tmp_path / "src").mkdir()
    built = tmp_path / "built"
    (built / "static").mkdir(parents=True)
    assert not is_built(tmp_path, built)
    (built / "package.json").touch()
    assert is_built(tmp_path, built)
    (built / "static" / "lib_index_js.js.map").touch()  # as `npm run watch` leaves it
    assert not is_built(tmp_path, built)
