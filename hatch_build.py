"""The build's own step: compiles the JupyterLab extension into the package, where npm is at hand.

A source distribution always holds the built extension, so nothing that is installed from one needs npm. In a clone, an
npm that fails fails the installation, which makes pip show its output. Without npm, or with ``SKIP_JUPYTER_BUILDER``
set, everything else is installed, since nodes and kernels need no extension; ``%load_ext jdist`` says what is missing
where JupyterLab is installed beside.

An editable installation (``pip install -e .``) holds no copy of the extension: ``jupyter-builder develop .`` links
JupyterLab to ``labextension/built``. Where there is no such folder, it is built here.

This is not hatch-jupyter-builder, because its npm_builder fails the whole installation where there is no npm, and its
skip-if-exists, by which a source distribution does without npm, takes an outdated build or one for development in a
clone.
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
        # The files of an unpacked source distribution may have any times.
        is_as_it_is = version == "editable" or Path(self.root, "PKG-INFO").exists()
        if not (built.exists() if is_as_it_is else is_built(home, built)) and not self._build(home):
            return
        if self.target_name == "sdist":
            build_data["artifacts"].append("/labextension/built")
        elif version != "editable":
            build_data["shared_data"][str(built)] = INSTALLED
            build_data["shared_data"][str(home / INSTALL_INFO)] = f"{INSTALLED}/{INSTALL_INFO}"

    def _build(self, home: Path) -> bool:
        """Whether it was built. An npm that fails ends the installation."""
        npm = shutil.which("npm")
        if npm is None or os.environ.get(SKIP):
            why = f"{SKIP} is set" if npm else "there is no npm"
            if self.target_name == "sdist":
                self.app.abort(f"{why}: a source distribution needs the built JupyterLab extension")
            self.app.display_warning(f"{why}: the JupyterLab extension is left out")
            return False
        for step in ("ci", "run build"):
            words = [npm, *step.split(), "--loglevel=error", "--no-fund", "--no-audit"]
            try:
                subprocess.run(words, cwd=home, check=True, timeout=WITHIN)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
                self.app.abort(
                    f"npm could not build the JupyterLab extension ({e}).\n{SKIP}=1 pip install … leaves it out."
                )
        return True


def is_built(home: Path, built: Path) -> bool:
    """Whether it is there, as users get it, and nothing that it was made from is newer."""
    made = built / "package.json"
    if not made.exists() or any(built.glob("static/*.map")):  # which only a build for development has
        return False
    files = (file for name in SOURCES for file in (home / name, *(home / name).rglob("*")))
    return max(file.stat().st_mtime for file in files if file.exists()) <= made.stat().st_mtime
