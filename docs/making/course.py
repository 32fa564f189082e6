"""Course: the notebooks as pages, with their saved outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from traitlets.config import Config

COURSE = "course"
"""The notebooks' folder in the site."""
HIDDEN = "hide-cell"
"""The tag of cells that only check results. JupyterLab folds them, and the site leaves them out."""


def pages(folder: Path) -> dict[str, str | bytes]:
    """``{path: Markdown or picture}``: an index, a page for each notebook, and their pictures and scripts."""
    exporter = MarkdownExporter(config=Config(TagRemovePreprocessor={"enabled": True, "remove_cell_tags": [HIDDEN]}))
    found: dict[str, str | bytes] = {}
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        text, resources = exporter.from_notebook_node(notebook, {"unique_key": path.stem})
        found |= {f"{COURSE}/{name}": data for name, data in resources["outputs"].items()}
        found[f"{COURSE}/{path.stem}.md"] = _relink(text)
    found[f"{COURSE}/index.md"] = _relink((folder / "README.md").read_text())
    found |= {f"{COURSE}/scripts/{path.name}": path.read_text() for path in (folder / "scripts").glob("*.py")}
    return found


def _relink(text: str) -> str:
    """Links from the notebooks' folder to other notebooks and to the documentation, as links between pages."""
    return re.sub(r"\]\(([\w-]+)\.ipynb", r"](\1.md", text).replace("](../docs/", "](../")
