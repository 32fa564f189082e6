"""The build's own step: compiles the JupyterLab extension into the package, where npm is at hand.

A wheel without it serves kernels and every other front end just as well, so a source tree can be installed where there
is no npm. What is published is built where there is one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("src", "style", "schema", "package.json", "package-lock.json", "tsconfig.json")
INSTALLED = "share/jupyter/labextensions/jdist"
WITHIN = 900.0
"""Seconds for npm to fetch its packages, or to build."""


class LabExtension(BuildHookInterface[Any]):
    """Adds ``labextension/built`` to a wheel and to a source distribution, building it if it is out of date."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # links to the built folder, which `make` keeps up to date, stay up to date themselves
        home = Path(self.root, "labextension")
        built = home / "built"
        if not is_built(home, built):
            npm = shutil.which("npm")
            if npm is None:
                self.app.display_warning("there is no npm: the JupyterLab extension is left out")
                return
            try:
                for step in ("ci", "run build"):
                    words = [npm, *step.split(), "--silent", "--no-fund", "--no-audit"]
                    subprocess.run(words, cwd=home, check=True, timeout=WITHIN)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
                self.app.display_warning(f"npm could not build the JupyterLab extension, which is left out: {e}")
                return
        if self.target_name == "wheel":
            build_data["shared_data"][str(built)] = INSTALLED
        else:
            build_data["artifacts"].append("/labextension/built")


def is_built(home: Path, built: Path) -> bool:
    """Whether it is there and nothing that it was made from is newer."""
    made = built / "package.json"
    if not made.exists():
        return False
    files = (file for name in SOURCES for file in (home / name, *(home / name).rglob("*")))
    return max(file.stat().st_mtime for file in files if file.exists()) <= made.stat().st_mtime
