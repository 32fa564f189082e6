"""Tree: a local file or folder as entries with digests, without what .gitignore files, users or a fixed list omit."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pathspec import GitIgnoreSpec

from jdist.core.errors import UsageError
from jdist.core.messages.code import SourceTree, TreeEntry, leads_inside

ALWAYS = (".git", "__pycache__", "*.py[co]", ".ipynb_checkpoints", ".jdist-*")  # A user's `!` takes one back.


class SyncSource:
    """A path that the user syncs, and the patterns of files that are left out."""

    def __init__(self, path: str, exclude: Sequence[str] = ()):
        """Raises UsageError when there is nothing to sync."""
        given = Path(path).expanduser()
        if not given.exists():
            raise UsageError(f"sync {path}: there is no such file or folder here")
        self.exclude = tuple(exclude)
        self.path = given.resolve()
        self.is_file = self.path.is_file()
        self.root = self.path.parent if self.is_file else self.path
        self.name = self.path.stem if self.is_file else self.path.name
        if not self.name:
            raise UsageError(f"sync {path}: the whole file system cannot be synced; name a folder")
        self.synced: SourceTree | None = None  # The tree that was synced last.
        self._known: dict[str, tuple[tuple[int, ...], bytes]] = {}  # An unchanged file is not read again.

    def list(self) -> SourceTree:
        """The files as they are now. Raises UsageError naming a file that cannot be read or a link that leads out."""
        paths = [self.path] if self.is_file else sorted(self._walk())
        entries = tuple(filter(None, map(self._entry, paths)))
        is_package = not self.is_file and (self.path / "__init__.py").is_file()
        return SourceTree(self.name, entries, is_package)

    def _walk(self) -> Iterator[Path]:
        ignoring = IgnoreRules(self.root, self.exclude)
        for folder, folders, files in os.walk(self.root):
            here = Path(folder)
            ignoring.enter(here)
            links = [f for f in folders if (here / f).is_symlink()]
            folders[:] = sorted(f for f in folders if f not in links and not ignoring.ignores(here / f, True))
            for name in (*files, *links):
                if not ignoring.ignores(here / name, False):
                    yield here / name

    def _entry(self, path: Path) -> TreeEntry | None:
        """None for anything but files and links, and for a file that vanished meanwhile."""
        relative = path.relative_to(self.root).as_posix()
        try:
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                return TreeEntry(relative, 0, b"", target=self._target(path, relative))
            if not stat.S_ISREG(found.st_mode):
                return None
            return TreeEntry(relative, found.st_size, self._digest(path, found), bool(found.st_mode & stat.S_IXUSR))
        except FileNotFoundError:
            return None
        except OSError as e:
            raise UsageError(f"sync: {path} cannot be read: {e.strerror}; --exclude {relative} leaves it out") from e

    def _target(self, path: Path, relative: str) -> str:
        """The target of a link, relative to the link's folder."""
        target = os.readlink(path)
        if os.path.isabs(target):
            target = os.path.relpath(target, path.parent)
        if not leads_inside(relative, target):
            out = f"the link {relative} leads out of {self.root}, to {os.readlink(path)}"
            raise UsageError(f"sync: {out}; --exclude {relative} leaves it out, or put what it leads to in its place")
        return target

    def _digest(self, path: Path, found: os.stat_result) -> bytes:
        mark = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = self._known.get(str(path))
        if known is None or known[0] != mark:
            with open(path, "rb") as f:
                digest = hashlib.file_digest(f, partial(hashlib.blake2b, digest_size=32)).digest()
            known = self._known[str(path)] = (mark, digest)
        return known[1]


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
    for depth, folder in enumerate((root, *root.parents)):
        if os.path.lexists(folder / ".git"):
            return list(root.parents)[:depth]
    return []
