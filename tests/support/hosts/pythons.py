"""Interpreters of hosts that lack jdist."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

import pytest

BUT_NOT = ("jdist", "_editable_impl_jdist", "zz.pth")


def make_python(folder: Path, *but: str) -> Path:
    """An interpreter with the packages of this one, but not these."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    own = next(folder.glob("lib/python*/site-packages"))
    for packages in map(Path, [*site.getsitepackages(), str(Path(pytest.__file__).parents[1])]):
        for path in packages.iterdir():
            if not path.name.startswith((*BUT_NOT, *but)) and not (own / path.name).exists():
                (own / path.name).symlink_to(path)
    return folder / "bin" / "python"
