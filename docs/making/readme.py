"""Readme: inserts parts of the README into other pages, so that nothing is written twice."""

from __future__ import annotations

import posixpath
import re

_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n+", re.MULTILINE | re.DOTALL)
"""Code hosts draw it. The site would need a program from elsewhere; a drawing in plain text follows it."""
_ASKED = re.compile(r"^<!-- readme: (.+) -->$", re.MULTILINE)
_LINK = re.compile(
    r"(\]\()(?:\.\./)?((?:docs/|notebooks|benchmarks/?|CHANGELOG\.md|CONTRIBUTING\.md|README\.md)[^)#]*)"
)
_PLACES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "benchmarks": "benchmarks.md",
    "benchmarks/": "benchmarks.md",
    "notebooks": "course/index.md",
}


def fill(markdown: str, readme: str, folder: str) -> str:
    """Replace each line ``<!-- readme: HEADING -->`` by the text under that heading; "top" is the text above all."""
    return _ASKED.sub(lambda asked: relink(section(readme, asked[1]), folder), markdown)


def section(readme: str, heading: str) -> str:
    """The text under a heading of the README. Raises ValueError for a heading that does not exist."""
    parts = re.split(r"^## (.+)$", readme, flags=re.MULTILINE)
    found = {"top": parts[0].partition("\n")[2], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    if heading not in found:
        raise ValueError(f"README.md has no heading {heading!r}; there is {', '.join(found)}")
    return _DIAGRAM.sub("", found[heading]).strip("\n")


def relink(markdown: str, folder: str) -> str:
    """Adapt links from the repository's top folder, or from one below it, to a page in ``folder`` of the site."""

    def move(link: re.Match[str]) -> str:
        target = link[2]
        place = _PLACES.get(target) or re.sub(r"^notebooks/(.+)\.ipynb$", r"course/\1.md", target.removeprefix("docs/"))
        return link[1] + posixpath.relpath(place, folder or ".")

    return _LINK.sub(move, markdown)
