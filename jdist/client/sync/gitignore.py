"""Gitignore: files of a folder that are not synced, by .gitignore files, the user's patterns, and a fixed list."""

import os
from collections.abc import Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

# Patterns in the syntax of .gitignore. The user's are written the same way, and may take one back with `!`.
ALWAYS = (".git", "__pycache__", "*.py[co]", ".ipynb_checkpoints", ".jdist-*")


class IgnoreRules:
    """The rules for one tree; the .gitignore files in it are read as its folders are entered."""

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
        """Whether a path is left out. The user's patterns count before those of the nearest .gitignore."""
        specs = [(self._root, self._own), *((f, self._specs[f]) for f in path.parents if f in self._specs)]
        for folder, spec in specs:  # the nearest .gitignore first
            found = spec.check_file(path.relative_to(folder).as_posix() + "/" * is_folder).include
            if found is not None:
                return found
        return False


def _repository(root: Path) -> list[Path]:
    """The folders above ``root`` in its git repository, whose .gitignore files apply to it, too."""
    above = []
    for folder in (root, *root.parents):
        if folder != root:
            above.append(folder)
        if os.path.lexists(folder / ".git"):
            return above
    return []
