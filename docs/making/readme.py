"""Readme: parts of the README in other pages, so that nothing is written twice."""

from __future__ import annotations

import posixpath
import re

_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n+", re.MULTILINE | re.DOTALL)
"""Is drawn by code hosts; here it would take a program from elsewhere, and a drawing in plain text stands below it."""
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
    """Each line ``<!-- readme: HEADING -->`` replaced by what stands under that heading; "top" is what is above all."""
    return _ASKED.sub(lambda asked: relink(section(readme, asked[1]), folder), markdown)


def section(readme: str, heading: str) -> str:
    """Raises ValueError for a heading that is not there."""
    parts = re.split(r"^## (.+)$", readme, flags=re.MULTILINE)
    found = {"top": parts[0].partition("\n")[2], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    if heading not in found:
        raise ValueError(f"README.md has no heading {heading!r}; there is {', '.join(found)}")
    return _DIAGRAM.sub("", found[heading]).strip("\n")


def relink(markdown: str, folder: str) -> str:
    """Links that are right in the repository's top folder, or one below, for a page in ``folder`` of the site."""

    def move(link: re.Match[str]) -> str:
        target = link[2]
        place = _PLACES.get(target) or re.sub(r"^notebooks/(.+)\.ipynb$", r"course/\1.md", target.removeprefix("docs/"))
        return link[1] + posixpath.relpath(place, folder or ".")

    return _LINK.sub(move, markdown)
