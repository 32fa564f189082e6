"""jdist grows only by a line in pyproject.toml that says so, and what a commit has saved stays saved."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SLACK = {"modules": 5, "lines": 300}


def sizes() -> dict[str, int]:
    texts = [path.read_text() for path in (ROOT / "jdist").rglob("*.py")]
    return {"modules": len(texts), "lines": sum(text.count("\n") for text in texts)}


@pytest.mark.parametrize("what", SLACK)
def test_the_budget_fits(what: str) -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["jdist"]["budget"][what]
    found = sizes()[what]
    assert found <= budget, f"raise {what} in [tool.jdist.budget] of pyproject.toml, and say in the commit why"
    assert found >= budget - SLACK[what], f"lower {what} in [tool.jdist.budget] of pyproject.toml"
