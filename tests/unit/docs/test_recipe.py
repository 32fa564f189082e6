"""The recipe for conda asks for what pyproject.toml does, under conda-forge's names."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

import jdist

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
OTHER_NAMES = {
    "torch": "pytorch",
    "xxhash": "python-xxhash",
    **{f"jupyter-{part}": f"jupyter_{part}" for part in ("client", "console", "core", "server")},
}


def in_conda(requirements: list[str]) -> set[str]:
    found = map(Requirement, requirements)
    return {f"{OTHER_NAMES.get(each.name, each.name)} {each.specifier}" for each in found}


def test_it_has_the_version_of_jdist_and_its_oldest_python() -> None:
    assert RECIPE["context"] == {
        "version": jdist.__version__,
        "python_min": PROJECT["requires-python"].removeprefix(">="),
    }


def test_it_has_the_dependencies_of_the_project() -> None:
    python, *others = RECIPE["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert set(others) == in_conda(PROJECT["dependencies"])
    assert set(RECIPE["requirements"]["host"][2:]) == in_conda(PYPROJECT["build-system"]["requires"])


def test_it_has_the_commands_and_the_summary_of_the_project() -> None:
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == commands
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    assert RECIPE["about"]["license"] == PROJECT["license"]
