"""Hooks that mkdocs calls while it builds the site: they add generated pages, and insert parts of the README."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from course import COURSE
from course import pages as course_pages
from mkdocs.structure.files import File, Files
from python_page import page as python_page
from readme import fill, relink
from server_page import ASKED, table
from usage import commands_page, verbs_page

ROOT = Path(__file__).parents[2]


def on_config(config: Any, **_: Any) -> Any:
    """Add the numbered notebooks as the last part of the navigation."""
    numbered = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    config.nav.append({"Course": [f"{COURSE}/index.md", *(f"{COURSE}/{path.stem}.md" for path in numbered)]})
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the generated pages."""
    made: dict[str, str | bytes] = {
        "reference/verbs.md": verbs_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(),
        "benchmarks.md": (ROOT / "benchmarks" / "README.md").read_text(),
        **course_pages(ROOT / "notebooks"),
    }
    for path, text in made.items():
        content = relink(text, posixpath.dirname(path)) if isinstance(text, str) else text
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert parts of the README, and the server's routes, where a page asks for them."""
    if ASKED in markdown:
        markdown = markdown.replace(ASKED, table())
    return fill(markdown, (ROOT / "README.md").read_text(), posixpath.dirname(page.file.src_uri))
