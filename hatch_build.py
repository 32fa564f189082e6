"""The build's own step: compiles the JupyterLab extension into the package, where npm is at hand.

A wheel without it serves kernels and every other front end just as well, so a source tree can be installed where there
is no npm. What is published is built where there is one.

An editable installation (``pip install -e .``) holds no copy of the extension: ``jupyter-builder develop .`` links
JupyterLab to ``labextension/built``. Where there is no such folder, it is built here, unless ``SKIP_JUPYTER_BUILDER``
is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("src", "style", "schema", "package.json", "package-lock.json", "tsconfig.json")
INSTALLED = "share/jupyter/labextensions/jdist"
INSTALL_INFO = "install.json"
"""Tells JupyterLab's extension manager that pip has installed the extension."""
SKIP = "SKIP_JUPYTER_BUILDER"
"""The environment variable with which builds of Jupyter extensions are told to leave npm alone."""
WITHIN = 900.0
"""Seconds for npm to fetch its packages, or to build."""


class LabExtension(BuildHookInterface[Any]):
    """Adds ``labextension/built`` to a wheel and to a source distribution, building it if it is out of date."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        home = Path(self.root, "labextension")
        built = home / "built"
        if version == "editable":
            if not built.exists() and not os.environ.get(SKIP):
                self._build(home)
            return
        if not is_built(home, built) and not self._build(home):
            return
        if self.target_name == "wheel":
            build_data["shared_data"][str(built)] = INSTALLED
            build_data["shared_data"][str(home / INSTALL_INFO)] = f"{INSTALLED}/{INSTALL_INFO}"
        else:
            build_data["artifacts"].append("/labextension/built")

    def _build(self, home: Path) -> bool:
        """Whether it worked; if not, a warning says why."""
        npm = shutil.which("npm")
        if npm is None:
            self.app.display_warning("there is no npm: the JupyterLab extension is left out")
            return False
        try:
            for step in ("ci", "run build"):
                words = [npm, *step.split(), "--silent", "--no-fund", "--no-audit"]
                subprocess.run(words, cwd=home, check=True, timeout=WITHIN)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
            self.app.display_warning(f"npm could not build the JupyterLab extension, which is left out: {e}")
            return False
        return True


def is_built(home: Path, built: Path) -> bool:
    """Whether it is there, as users get it, and nothing that it was made from is newer."""
    made = built / "package.json"
    if not made.exists() or any(built.glob("static/*.map")):  # which only a build for development has
        return False
    files = (file for name in SOURCES for file in (home / name, *(home / name).rglob("*")))
    return max(file.stat().st_mtime for file in files if file.exists()) <= made.stat().st_mtime
