"""Course: the notebooks as pages, with their saved outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

COURSE = "course"
"""The notebooks' folder in the site."""


def pages(folder: Path) -> dict[str, str | bytes]:
    """``{path: Markdown or picture}``: an index, a page for each notebook, and their pictures and scripts."""
    exporter = MarkdownExporter()
    found: dict[str, str | bytes] = {}
    listed = []
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        text, resources = exporter.from_notebook_node(notebook, {"unique_key": path.stem})
        found |= {f"{COURSE}/{name}": data for name, data in resources["outputs"].items()}
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        listed.append(f"- [{title[1] if title else path.stem}]({path.stem}.md)")
        text = re.sub(r"\]\(([\w-]+)\.ipynb", r"](\1.md", text)
        found[f"{COURSE}/{path.stem}.md"] = text.replace("](../docs/", "](../")
    found[f"{COURSE}/index.md"] = "\n".join(
        ["# Course", "", "The notebooks of the repository's folder `notebooks/`, as they were run.", "", *listed]
    )
    found |= {f"{COURSE}/scripts/{path.name}": path.read_text() for path in (folder / "scripts").glob("*.py")}
    return found
