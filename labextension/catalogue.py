"""Catalogue: all texts of the JupyterLab extension, as translators get them, in ``locale/jdist.pot``.

``make translations`` writes it; ``make lint`` calls this with ``--check``, which fails where it is not current. The
texts are found by jupyterlab-translate, with which language packs for JupyterLab are made. The lines in which a text
stands are left out, so that the file changes only when a text does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polib

HERE = Path(__file__).parent
DOMAIN = "jdist"
CATALOGUE = HERE / "locale" / f"{DOMAIN}.pot"
SOURCES = ("src", "schema", "package.json")  # the extractor takes every file of a folder, also of node_modules
WITHIN = 120.0
"""Seconds for the extractor, which takes two."""
UNWRAPPED = 100_000
"""One line for each text, as language packs have it."""


def extracted() -> str:
    """The catalogue of the sources as they are. Raises RuntimeError with the extractor's output if that fails."""
    with tempfile.TemporaryDirectory(prefix="jdist-catalogue-") as folder:
        project = Path(folder, DOMAIN)
        project.mkdir()
        for name in SOURCES:
            copy = shutil.copytree if (HERE / name).is_dir() else shutil.copyfile
            copy(HERE / name, project / name)
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # pybabel and gettext-extract
        done = subprocess.run(
            ["jupyterlab-translate", "extract", folder, DOMAIN],
            env={**os.environ, "PATH": tools},
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"jupyterlab-translate failed:\n{done.stdout}{done.stderr}")
        return _ordered(polib.pofile(str(project / "locale" / CATALOGUE.name)))


def _ordered(found: polib.POFile) -> str:
    """By file, without the lines of the file."""
    catalogue = polib.POFile(wrapwidth=UNWRAPPED)
    catalogue.header = "The texts of jdist's extension of JupyterLab, written by: make translations"
    catalogue.metadata = found.metadata
    for entry in found:
        files = sorted({_file(place) for place, _ in entry.occurrences})
        entry.occurrences = [(file, "") for file in files]
    catalogue.extend(sorted(found, key=lambda entry: (entry.occurrences[0], entry.msgctxt or "", entry.msgid)))
    return f"{catalogue}\n"


def _file(place: str) -> str:
    """In the repository. A text of the settings has the key behind the file's name."""
    path = place.partition(":")[0].removeprefix("/")
    return f"{HERE.name}/{path.removeprefix(f'{DOMAIN}/')}"


def main() -> None:
    """Write the catalogue, or check it."""
    parser = argparse.ArgumentParser(description="Write the catalogue of the extension's texts.")
    parser.add_argument("--check", action="store_true", help="fail if it is not current, and leave it as it is")
    current = extracted()
    if not parser.parse_args().check:
        CATALOGUE.parent.mkdir(exist_ok=True)
        CATALOGUE.write_text(current)
    elif not CATALOGUE.exists() or CATALOGUE.read_text() != current:
        sys.exit(f"{CATALOGUE.relative_to(HERE.parent)} lacks texts or has old ones: make translations")


if __name__ == "__main__":
    main()
