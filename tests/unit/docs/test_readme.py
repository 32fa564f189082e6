"""The README is short, begins with what a newcomer needs, and its links and pictures exist and are small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "README.md").read_text()
MOST_LINES = 150
FIRST_SCREEN = 40
MOST_BYTES = 1_000_000


def test_it_is_short_and_its_first_screen_has_what_a_newcomer_needs() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES
    first = "\n".join(TEXT.splitlines()[:FIRST_SCREEN])
    for wanted in ("](docs/figures/", "pip install", "%load_ext jdist", "all_reduce", "make demo", "make test"):
        assert wanted in first, wanted


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_a_link_leads_somewhere(target: str) -> None:
    assert "://" in target or (ROOT / target).exists()


def test_its_pictures_are_small() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert pictures
    assert all((ROOT / picture).stat().st_size < MOST_BYTES for picture in pictures)


def test_every_screenshot_of_the_docs_is_taken_by_make_pictures() -> None:
    made = (ROOT / "docs" / "making" / "pictures.py").read_text()
    screenshots = [path for path in (ROOT / "docs" / "figures").iterdir() if path.suffix in {".png", ".gif"}]
    assert len(screenshots) > 5
    assert not [path.name for path in screenshots if f'"{path.stem}"' not in made]
