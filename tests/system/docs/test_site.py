"""The documentation's site: it builds without a warning, and what the code has is in it."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import jdist
from jdist.core.quantities import HelpWanted
from jdist.notebook import verbs
from jdist.notebook.cli import COMMANDS
from jdist.notebook.options import cell_parser
from jdist.server import routes  # noqa: F401 - it registers its routes
from jdist.server.handler import all_routes
from support.lacking import lacking

ROOT = Path(__file__).parents[3]
LONG = 110.0


@pytest.fixture(scope="session")
def site() -> Iterator[Path]:
    if find_spec("material") is None:
        lacking("there is no mkdocs-material here: pip install mkdocs-material")
    with tempfile.TemporaryDirectory() as place:
        built = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", place],
            cwd=ROOT,
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG,
        )
        assert built.returncode == 0, built.stderr[-3000:]
        yield Path(place)


def text_of(page: Path) -> str:
    """What a reader sees."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def sections(page: Path) -> dict[str, str]:
    """``{heading: text under it}`` of second-level headings."""
    parts = re.split(r"<h2 [^>]*>(.*?)</h2>", page.read_text(), flags=re.DOTALL)
    titles = [html.unescape(re.sub(r"<[^>]+>|¶|&para;", "", title)).strip() for title in parts[1::2]]
    bodies = [html.unescape(re.sub(r"<[^>]+>", "", body)) for body in parts[2::2]]
    return dict(zip(titles, bodies, strict=True))


def options_of(verb: str) -> set[str]:
    """As the verb itself understands them."""
    with pytest.raises(HelpWanted) as asked:
        verbs.VERBS[verb](None, ["--help"])  # type: ignore[arg-type]
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", str(asked.value).partition("options:")[2]))


def test_every_verb_and_option_is_in_the_reference(site: Path) -> None:
    found = sections(site / "reference" / "verbs" / "index.html")
    for verb in verbs.VERBS:
        missing = {option for option in options_of(verb) if option not in found[f"%dist {verb}"]}
        assert not missing, f"%dist {verb}: {missing}"
    cell = {option for action in cell_parser()._actions for option in action.option_strings}
    assert len(cell) >= 14
    assert all(option in found["%%dist"] for option in cell)


def test_every_command_is_in_the_reference(site: Path) -> None:
    text = text_of(site / "reference" / "commands" / "index.html")
    assert not [name for name in (*COMMANDS, "join") if f"jdist {name}" not in text]


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "python" / "index.html").read_text()
    names = {n for n in jdist.__all__ if not n.startswith("__") and not n.endswith("_ipython_extension")}
    assert not {name for name in names if f'id="{name}"' not in text}
    seen = text_of(site / "reference" / "python" / "index.html")
    methods = {n for n in dir(jdist.Cluster) if not n.startswith("_") and callable(getattr(jdist.Cluster, n))}
    assert len(methods) > 30
    assert not {name for name in methods if f"Cluster.{name}(" not in seen}


def test_every_route_of_the_server_is_on_its_page(site: Path) -> None:
    text = text_of(site / "server" / "index.html")
    for pattern, _ in all_routes():
        path = re.sub(r"runs/\(\[0-9\][^)]*\)", "runs/N", pattern.removeprefix("jdist/"))
        path = re.sub(r"\(\[0-9\][^)]*\)", "R", path)
        path = re.sub(r"\([^)]*\)", "HOST" if path.startswith("hosts/") else "NAME", path)
        assert path in text, path


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"""(?:src|href)=["']?(https?:)?//[^"'>]*\.(?:js|css|woff2?)""")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page


def test_notebooks_are_pages(site: Path) -> None:
    names = [path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")]
    assert len(names) >= 7
    for name in names:
        assert "%%dist" in text_of(site / "course" / name / "index.html")
