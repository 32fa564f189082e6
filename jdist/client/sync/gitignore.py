"""Ignoring: which files of a folder are not synced: what its .gitignore files say, what the user says, and rubbish."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

ALWAYS = (".git", "__pycache__", "*.py[co]", ".ipynb_checkpoints", ".jdist-*")
"""In the syntax of .gitignore; what the user excludes is written the same way, and may take one back with ``!``."""


class Ignoring:
    """The rules for one folder; those of its own .gitignore files are read as its folders are entered."""

    def __init__(self, root: Path, exclude: Sequence[str]):
        self._root = root
        self._own = GitIgnoreSpec.from_lines([*ALWAYS, *exclude])
        self._specs: dict[Path, GitIgnoreSpec] = {}
        for folder in _repository(root):
            self.enter(folder)

    def enter(self, folder: Path) -> None:
        """Read the folder's .gitignore, if it has one."""
        try:
            text = (folder / ".gitignore").read_text(errors="replace")
        except OSError:
            return
        self._specs[folder] = GitIgnoreSpec.from_lines(text.splitlines())

    def ignores(self, path: Path, is_folder: bool) -> bool:
        """Of rules that speak of a path, the user's count first, then those of the nearest .gitignore."""
        slash = "/" * is_folder
        said = self._own.check_file(_relative(path, self._root) + slash).include
        if said is not None:
            return said
        for folder in (f for f in path.parents if f in self._specs):  # the nearest first
            said = self._specs[folder].check_file(_relative(path, folder) + slash).include
            if said is not None:
                return said
        return False


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _repository(root: Path) -> list[Path]:
    """The folders above ``root`` in its repository, whose .gitignore files speak of it, too; none outside of one."""
    above = []
    for folder in (root, *root.parents):
        if folder != root:
            above.append(folder)
        if os.path.lexists(folder / ".git"):
            return above
    return []
