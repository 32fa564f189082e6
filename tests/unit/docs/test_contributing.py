"""CONTRIBUTING.md names files, commands and classes that exist, and its recipes are short."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "CONTRIBUTING.md"
MOST_LINES = 15
TOPS = ("jdist", "tests", "docs", "labextension", "notebooks", "benchmarks")


def recipes() -> dict[str, str]:
    """``{heading: text}`` below the heading "Recipes"."""
    _, _, text = PAGE.read_text().partition("\n## Recipes\n")
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def paths() -> list[str]:
    """All that is quoted or linked as a file or folder of the repository."""
    text = PAGE.read_text()
    quoted = [word for quote in re.findall(r"`([^`]+)`", text) for word in quote.split()]
    quoted = [
        word
        for word in quoted
        if ("/" in word and word.split("/")[0] in TOPS) or word.endswith((".md", ".toml", ".yml"))
    ]
    return sorted({*quoted, *re.findall(r"\]\(([^)#:]+)\)", text)})


@pytest.mark.parametrize("path", paths())
def test_a_named_file_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("heading", recipes())
def test_a_recipe_is_short_and_names_files(heading: str) -> None:
    lines = [line for line in recipes()[heading].splitlines() if line.strip()]
    assert 3 <= len(lines) <= MOST_LINES
    assert len([path for path in paths() if path in recipes()[heading]]) >= 5


def test_there_is_a_recipe_for_each_kind_of_extension() -> None:
    assert list(recipes()) == [
        "A launcher",
        "An option of a start",
        "A verb of %dist",
        "A query to ranks",
        "A rule of the verdict",
        "A view in JupyterLab",
    ]
    assert len(paths()) > 40


def test_make_knows_each_command_that_is_named() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word
        for found in re.findall(r"(?:`|^    )make ((?:[a-z-]+ ?)+)", PAGE.read_text(), re.MULTILINE)
        for word in found.split()
    }
    assert len(named) > 6
    assert not named - targets


def test_names_in_recipes_are_in_the_files_that_they_name() -> None:
    sources = "\n".join((ROOT / path).read_text() for path in paths() if path.endswith((".py", ".ts", ".tsx")))
    names = {name for text in recipes().values() for name in re.findall(r"`([A-Z]\w+)(?:\.(?!md)\w+)?`", text)}
    assert len(names) > 10
    assert not {name for name in names if not re.search(rf"\b{name}\b", sources)}
    assert "jdist.launchers" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
