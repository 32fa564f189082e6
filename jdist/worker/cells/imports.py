"""Imports: where this rank finds modules, and bringing those up to date whose files have changed.

A rank's ``sys.path`` is that of the kernels that send it cells, as far as the entries exist on its node; folders of
synced code come first. Before a cell, IPython's autoreload loads changed modules again in place, so that objects and
names that were imported from them are updated. A module that fails to load keeps what it had.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from IPython.extensions.autoreload import superreload

import jdist
from jdist.core.import_path import ImportPath, merge, this_interpreter
from jdist.worker.cells.user_code import described

_Stamp = tuple[float, int]  # A file's time of change and size.


_OWN = os.path.dirname(os.path.realpath(jdist.__file__)) + os.sep


def is_users_file(file: str) -> bool:
    """Whether a source file is the user's: it came neither with the interpreter, nor with an installed package."""
    return not (this_interpreter().has_installed(file) or file.startswith((_OWN, "<")))


def users_modules() -> Iterator[ModuleType]:
    """Modules that were loaded from files of the user's."""
    for module in list(sys.modules.values()):
        file = _file_of(module)
        if file is not None and is_users_file(file):
            yield module


class Imports:
    """One rank's import path and modules. Modules are loaded on the main thread only; the rest is for any thread."""

    def __init__(self, shell: Any):
        self._interpreter = this_interpreter()
        self._lock = threading.Lock()
        self._has_path = False  # Whether a client's import path has been adopted.
        self._folders: tuple[str, ...] = ()
        self._changed: set[str] = set()
        self._loaded: dict[str, _Stamp] = {}  # Source files of the user's modules, as they were when they were loaded.
        self._old_objects: dict[Any, Any] = {}
        self._record_loads()
        shell.events.register("pre_run_cell", self._reload)

    def use(self, wanted: ImportPath) -> None:
        """Find modules where a client's process does, too."""

        def resolve(entry: str) -> Sequence[str]:
            there = os.path.join(wanted.directory, entry) if entry else wanted.directory
            found = [there] * os.path.exists(there)
            if os.path.isabs(entry) or _is_working_directory(wanted.directory):
                return [entry] * len(found)
            return [entry] * os.path.exists(entry or os.curdir) + found

        with self._lock:
            path = [entry for entry in sys.path if entry not in self._folders]
            merged = merge(path, wanted, self._interpreter, resolve, first=not self._has_path)
            sys.path[:] = [*self._folders, *merged]
            self._has_path = True

    def record_synced(self, folders: tuple[str, ...], changed: tuple[str, ...]) -> None:
        """Put ``folders`` first on the path; modules of the files ``changed`` are loaded again before the next cell."""
        with self._lock:
            before, self._folders = self._folders, folders
            sys.path[:] = [*folders, *(p for p in sys.path if p not in before and p not in folders)]
            self._changed.update(map(os.path.realpath, changed))
        importlib.invalidate_caches()  # a folder that was listed before its new file came

    def _record_loads(self) -> None:
        """Note each source file as it is loaded: what is found later could be a change made since."""
        loader: Any = importlib.machinery.SourceFileLoader
        look_up = loader.path_stats

        def path_stats(loading: Any, path: str) -> Any:
            found = look_up(loading, path)
            if is_users_file(path):
                self._loaded[os.path.realpath(path)] = (found["mtime"], found["size"])
            return found

        loader.path_stats = path_stats

    def _take_changed(self) -> set[str]:
        """Source files that have changed since their modules were loaded, or since this was last called."""
        with self._lock:
            changed, self._changed = self._changed, set()
        for file, loaded in list(self._loaded.items()):
            now = _stamp(file)
            if now is not None and now != loaded:
                self._loaded[file] = now
                changed.add(file)
                with contextlib.suppress(OSError):  # bytecode passes for that of a source of the same second and size
                    os.unlink(importlib.util.cache_from_source(file))
        return changed

    def _reload(self, *_: object) -> None:
        changed = self._take_changed()
        if not changed:
            return
        for name, module in reversed(list(sys.modules.items())):  # who imports is entered before what it imports
            file = _file_of(module)
            if name == "__main__" or file is None or os.path.realpath(file) not in changed:
                continue
            try:
                superreload(module, old_objects=self._old_objects)  # type: ignore[no-untyped-call]
            except (Exception, SystemExit) as e:
                print(f"jdist: module {name} has changed and cannot be loaded: {described(e)}", file=sys.stderr)
            else:
                print(f"jdist: module {name} has changed and was loaded again", file=sys.stderr)


def _is_working_directory(directory: str) -> bool:
    try:
        return os.path.samefile(directory, os.curdir)
    except OSError:
        return False


def _stamp(file: str) -> _Stamp | None:
    """The file's time of change and size; None while it does not exist."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime, found.st_size


def _file_of(module: object) -> str | None:
    """The path of a module's file. No code of the module's runs, which may have replaced how it is looked up."""
    if not issubclass(type(module), ModuleType):  # isinstance() believes what an object says of its class
        return None
    file = ModuleType.__getattribute__(module, "__dict__").get("__file__")
    return file if isinstance(file, str) else None
