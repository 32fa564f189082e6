"""The oldest and the newest torch with which jdist is tested are the same wherever they are named."""

import re
import tomllib
from pathlib import Path

import pytest

from jdist.core.settings import NEWEST_TORCH, OLDEST_TORCH

ROOT = Path(__file__).parents[3]


def test_the_package_requires_the_oldest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(each.startswith(f"torch>={OLDEST_TORCH};") for each in project["dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_pages_name_the_oldest(page: str) -> None:
    assert re.findall(r"torch ([\d.]+) or later", (ROOT / page).read_text()) == [OLDEST_TORCH]


def test_the_table_of_versions_begins_with_the_oldest_and_ends_with_the_newest() -> None:
    section = (ROOT / "docs/libraries.md").read_text().partition("\n## torch and Python\n")[2]
    tried = re.findall(r"^\| ([\d.]+)", section, re.MULTILINE)
    assert (tried[0], tried[-1]) == (OLDEST_TORCH, NEWEST_TORCH)
