"""The package as a user installs it: its public names, its version, its wheel."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

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
    info = f"jdist-{PROJECT['version']}.dist-info/"
    assert "jdist/py.typed" in names
    enabling = f"{data}/etc/jupyter/jupyter_server_config.d/jdist.json"
    assert {name for name in names if not name.startswith(("jdist/", info))} - extension == {enabling}
    assert "jdist/server/events.yaml" in names
    in_tree = {str(path.relative_to(ROOT)) for path in (ROOT / "jdist").rglob("*.py")}
    assert in_tree <= set(names)
