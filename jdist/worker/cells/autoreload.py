"""Autoreload: before a cell, IPython brings modules whose synced files have changed up to date in place.

A module that fails to load keeps what it had, and the failure is printed with the next cell.
"""

import importlib
import os
import sys
import threading
from typing import Any

from IPython.extensions.autoreload import superreload


class Autoreload:
    """One rank's synced code. ``record`` may be called from any thread; modules are loaded on the main thread only."""

    def __init__(self, shell: Any):
        self._lock = threading.Lock()
        self._folders: tuple[str, ...] = ()
        self._changed: set[str] = set()
        self._old_objects: dict[Any, Any] = {}
        shell.events.register("pre_run_cell", self._reload)

    def record(self, folders: tuple[str, ...], changed: tuple[str, ...]) -> None:
        """Put ``folders`` first on the path; modules of the files ``changed`` are loaded again before the next cell."""
        with self._lock:
            before, self._folders = self._folders, folders
            sys.path[:] = [*folders, *(p for p in sys.path if p not in before and p not in folders)]
            self._changed.update(map(os.path.realpath, changed))
        importlib.invalidate_caches()  # a folder that was listed before its new file came

    def _reload(self, *_: object) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        if not changed:
            return
        for name, module in reversed(list(sys.modules.items())):  # who imports is entered before what it imports
            if name == "__main__" or os.path.realpath(getattr(module, "__file__", None) or "") not in changed:
                continue
            try:
                superreload(module, old_objects=self._old_objects)  # type: ignore[no-untyped-call]
            except (Exception, SystemExit) as e:
                why = f"{type(e).__name__}: {e}"
                print(f"jdist: module {name} was synced and cannot be loaded: {why}; it is as before", file=sys.stderr)
