"""Modules, files and folders that the README, the docs and the notebooks name exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "jdist"
TOPS = ("jdist", "tests", "docs", "labextension", "notebooks", "benchmarks")
FLOORS = ("core", "wire", "worker", "agent", "controller", "launch", "client", "notebook", "server")
CODE_MAP = ROOT / "docs" / "design" / "code.md"
READMES = [ROOT / "README.md", ROOT / "notebooks" / "README.md"]
PAGES = [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def text_of(path: Path) -> str:
    """The prose of a page or of a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def named(text: str) -> set[str]:
    """Quoted words that are paths of the repository: with one of its folders in front, or one of ``jdist/``."""
    words = {word for quote in re.findall(r"`([^`\n]+)`", text) for word in quote.split()}
    heads = "|".join((*TOPS, *FLOORS))
    return {word for word in words if re.fullmatch(rf"(?:{heads})/[\w/.-]+", word)}


def exists(path: str) -> bool:
    places = [root / each for root in (ROOT, PACKAGE) for each in (path, f"{path}.py")]
    return any(place.exists() for place in places)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_named_paths_exist(page: Path) -> None:
    assert not {path for path in named(text_of(page)) if not exists(path)}


def test_paths_are_found_in_pages() -> None:
    assert len(named(text_of(CODE_MAP))) > 25
    assert named("`jdist/core`, `client/run.py`, `no path/at all`, `GET /x`") == {"jdist/core", "client/run.py"}
    assert not exists("client/nowhere.py")


def test_the_map_of_the_code_has_every_floor_and_every_folder_of_the_repository() -> None:
    text = text_of(CODE_MAP)
    assert not [floor for floor in FLOORS if f"`jdist/{floor}/`" not in text]
    assert sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()) == sorted(FLOORS)
    assert not [top for top in TOPS if f"`{top}/" not in text]


def journeys() -> dict[str, list[list[str]]]:
    """Rows of the tables of the map, each with its two cells, by heading."""
    found: dict[str, list[list[str]]] = {}
    for section in text_of(CODE_MAP).split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        lines = [line for line in body.partition("\n## ")[0].splitlines() if line.startswith("| `")]
        found[heading] = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return found


@pytest.mark.parametrize("heading", journeys())
def test_a_journey_is_short_and_what_it_names_is_in_its_modules(heading: str) -> None:
    rows = journeys()[heading]
    modules = {path for where, _ in rows for path in named(where)}
    assert 12 < len(modules) <= 30
    for where, what in rows:
        sources = "\n".join((PACKAGE / path).read_text() for path in named(where))
        names = {
            name for quote in re.findall(r"`([^`]+)`", what) for name in re.findall(r"^\w+$|^(?:\w+\.)+\w+$", quote)
        }
        assert not {name for name in names if name.rpartition(".")[2] not in sources}, where


def test_there_are_six_journeys() -> None:
    assert len(journeys()) == 6
