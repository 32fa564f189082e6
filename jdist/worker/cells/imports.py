"""Imports: where this rank finds modules, and bringing those up to date whose files have changed.

A rank's ``sys.path`` is that of the kernels that send it cells, as far as the entries exist on its node; folders of
synced code come first. Before a cell, IPython's autoreload loads changed modules again in place, so that objects and
names that were imported from them are updated. A module that fails to load keeps what it had.

A module that no other finder has, but the kernel that sent the cell, is requested from it::

    import ──► find_spec ──ModuleRequest──► the client syncs the directory ──CodeSynced──► its copy is on the path
                   └── waits for ◄──ModuleReply── the client, once the ranks' nodes have it
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from IPython.extensions.autoreload import superreload

import jdist
from jdist.core.import_path import ImportPath, merge, origin_of, this_interpreter
from jdist.worker.cells.user_code import described

_Stamp = tuple[float, int]  # A file's time of change and size.


_LONGEST_REQUEST = 60.0  # Seconds for the client to sync a directory.
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
        self._wanted: list[ImportPath] = []
        self._folders: tuple[str, ...] = ()
        self._copies: dict[str, str] = {}  # Folders on this node, by the clients' directories of which they are copies.
        self._requestable: set[str] = set()  # Top-level modules that clients have.
        self._replies: dict[str, queue.SimpleQueue[str]] = {}  # For requests that are being waited for.
        self.request: Callable[[str], bool] = lambda _name: False  # Sends a request; False: no cell is running.
        self._pid = os.getpid()
        self._changed: set[str] = set()
        self._loaded: dict[str, _Stamp] = {}  # Source files of the user's modules, as they were when they were loaded.
        self._old_objects: dict[Any, Any] = {}
        self._record_loads()
        shell.events.register("pre_run_cell", self._reload)
        sys.meta_path.append(self)

    def use(self, wanted: ImportPath, modules: Iterable[str] = ()) -> None:
        """Find modules where a client's process does, too; it has ``modules`` there."""

        def resolve(entry: str) -> Sequence[str]:
            there = origin_of(entry, wanted.directory)
            found = [there] * os.path.exists(there)
            if os.path.isabs(entry) or _is_working_directory(wanted.directory):
                return [entry] * len(found)
            return [entry] * os.path.exists(entry or os.curdir) + found

        self._requestable.update(modules)
        if wanted in self._wanted:
            return  # entries that a cell has removed since stay removed
        with self._lock:
            path = [entry for entry in sys.path if entry not in self._folders]
            merged = merge(path, wanted, self._interpreter, resolve, first=not self._has_path)
            sys.path[:] = [*self._folders, *merged]
            self._has_path = True
            self._wanted.append(wanted)
            self._place_copies()

    def record_synced(
        self, folders: tuple[str, ...], changed: tuple[str, ...], copies: Mapping[str, str] | None = None
    ) -> None:
        """Put ``folders`` first on the path, and each of ``copies`` where its origin is on a client's path.

        Modules of the files ``changed`` are loaded again before the next cell.
        """
        with self._lock:
            before, self._folders, self._copies = self._folders, folders, dict(copies or {})
            sys.path[:] = [*folders, *(p for p in sys.path if p not in before and p not in folders)]
            self._place_copies()
            self._changed.update(file for file in map(os.path.realpath, changed) if file in self._loaded)
        importlib.invalidate_caches()  # a folder that was listed before its new file came

    def _place_copies(self) -> None:
        for wanted in self._wanted:

            def resolve(entry: str, directory: str = wanted.directory) -> Sequence[str]:
                copy = self._copies.get(origin_of(entry, directory))
                return [] if copy is None else [copy]

            path = [entry for entry in sys.path if entry not in self._folders]
            sys.path[:] = [*self._folders, *merge(path, wanted, self._interpreter, resolve, first=False)]

    def find_spec(self, name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        """Request a module from the client whose cell imports it. Called by ``import`` if no other finder has it."""
        if path is None and self._obtain(name):
            return importlib.machinery.PathFinder.find_spec(name)
        return None

    def copy_of(self, file: str) -> str:
        """Where this node has a file of a client's directory, which is requested if need be; "" if it has none."""
        for origin in [origin_of(entry, each.directory) for each in self._wanted for entry in each.entries]:
            inside = os.path.relpath(file, origin)
            if inside.startswith(os.pardir):
                continue
            copy = self._copy(origin, inside)
            if not copy and self._obtain(inside.split(os.sep)[0].partition(".")[0]):
                copy = self._copy(origin, inside)
            if copy:
                return copy
        return ""

    def _copy(self, origin: str, inside: str) -> str:
        copy = os.path.join(self._copies.get(origin, origin), inside)
        return copy if os.path.isfile(copy) else ""

    def _obtain(self, name: str) -> bool:
        """Have a client sync the directory in which it has a module; whether it was asked to."""
        is_cells = threading.current_thread() is threading.main_thread() and os.getpid() == self._pid
        if name not in self._requestable or not is_cells:
            return False
        replies = self._replies[name] = queue.SimpleQueue()
        try:
            text = replies.get(timeout=_LONGEST_REQUEST) if self.request(name) else ""
        except queue.Empty:
            self._requestable.discard(name)
            late = f"the client that has it did not reply within {_LONGEST_REQUEST:.0f} s"
            text = f"{name} is not on this node, and {late}; `sync` copies it"
        finally:
            del self._replies[name]
        if text:
            print(f"jdist: {text}", file=sys.stderr)
        return True

    def handle_reply(self, name: str, text: str) -> None:
        """The client has synced a module's directory, or will not."""
        if (replies := self._replies.get(name)) is not None:
            replies.put(text)

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
        with self._lock:
            self._place_copies()  # a script may have received them, whose path ends with it
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
