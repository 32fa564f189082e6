"""Import path: where a process finds modules, in three parts around the directories of its interpreter. Pure.

A notebook's own entries of ``sys.path`` are merged into those of its ranks, whose interpreters may lie elsewhere.
"""

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct


class Interpreter(NamedTuple):
    """Directories that belong to an interpreter and not to its user."""

    library: frozenset[str]  # The standard library.
    packages: tuple[str, ...]  # Installed packages.
    scripts: str  # Programs such as ``jdist``, whose directory Python puts first on the path.

    def is_package_directory(self, entry: str) -> bool:
        """Whether an entry holds installed packages, or lies within a directory that does."""
        return any(_is_within(entry, each) for each in self.packages)

    def has_installed(self, file: str) -> bool:
        """Whether a module's file came with the interpreter or was installed into it."""
        return self.is_package_directory(file) or any(_is_within(file, each) for each in self.library)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)


@functools.cache
def this_interpreter() -> Interpreter:
    """Describe the running interpreter."""
    library = os.path.dirname(os.__file__)
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    around = (library, sysconfig.get_path("platstdlib"), os.path.join(library, "lib-dynload"))
    parts = frozenset((*around, os.path.join(os.path.dirname(library), archive)))
    packages = (*site.getsitepackages(), site.getusersitepackages())
    return Interpreter(parts, packages, sysconfig.get_path("scripts"))


class ImportPath(Struct, frozen=True):
    """A user's own entries of ``sys.path``, by their place. An empty or relative one starts at ``directory``."""

    directory: str  # The working directory.
    before: tuple[str, ...] = ()  # In front of the standard library, such as those of PYTHONPATH.
    between: tuple[str, ...] = ()  # Behind it and in front of installed packages: "" in an ipykernel.
    after: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        return (*self.before, *self.between, *self.after)


def origin_of(entry: str, directory: str) -> str:
    """The directory that an entry stands for, where the working directory is ``directory``."""
    return os.path.join(directory, entry) if entry else directory


def split(path: Sequence[object], directory: str, interpreter: Interpreter) -> ImportPath:
    """Find the user's own entries of a ``sys.path``. Like Python, ignore what is not a string."""
    before: list[str] = []
    between: list[str] = []
    after: list[str] = []
    part = before
    for entry in path:
        if not isinstance(entry, str) or entry == interpreter.scripts:
            continue
        if entry in interpreter.library:
            part = between if part is before else part
        elif interpreter.is_package_directory(entry):
            part = after
        else:
            part.append(entry)
    return ImportPath(directory, tuple(before), tuple(between), tuple(after))


def merge(
    path: Sequence[str],
    wanted: ImportPath,
    interpreter: Interpreter,
    resolve: Callable[[str], Sequence[str]],
    *,
    first: bool,
) -> list[str]:
    """Return ``path`` with the entries of ``wanted`` that it lacks, each in its part.

    ``resolve`` maps an entry to the entries to use here, of which there are none if it does not exist. With ``first``,
    the entries in front of the standard library take the order of ``wanted``; otherwise, existing ones stay in front.
    """
    starts = [n for n, entry in enumerate(path) if entry in interpreter.library]
    packages = [n for n, entry in enumerate(path) if interpreter.is_package_directory(entry)]
    library = starts[0] if starts else 0
    installed = next((n for n in packages if n > library), len(path))
    before, middle, rest = list(path[:library]), list(path[library:installed]), list(path[installed:])

    def found(entries: Sequence[str], beside: Sequence[str]) -> list[str]:
        known = dict.fromkeys(here for entry in entries for here in resolve(entry))
        return [entry for entry in known if entry not in beside]

    if first:
        leading = found(wanted.before, ())
        before = [*leading, *(entry for entry in before if entry not in leading)]
    else:
        before += found(wanted.before, path)
    middle += found(wanted.between, (*before, *middle, *rest))
    rest += found(wanted.after, (*before, *middle, *rest))
    return [*before, *middle, *rest]
