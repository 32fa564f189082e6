"""One attempt to pickle all names, on a thread of its own.

Pickling runs the user's own ``__reduce__`` and ``__getstate__``, which may fault in C code, or wait forever for a lock
that a stopped thread holds. A thread that makes no progress is abandoned, and the next attempt omits the name that it
was pickling. Only code that holds the interpreter lock can still prevent saving altogether.

Each attempt has its own writer. That of an abandoned thread is discarded, so the thread cannot write if it wakes up.
"""

import _thread
from collections.abc import Mapping
from typing import Any

from jdist.worker.handover.memory import NamesWriter
from jdist.worker.handover.pickler import NamesPickler

_PATIENCE = 5.0  # Seconds without progress until a name is omitted; the agent ends the process after ten.
_LONGEST = 120.0  # Seconds for one name, whatever its progress: a pickle need have no end.
_LOOK = 0.5  # Seconds between two checks of the progress. Both times are counted in checks, in which the process ran.


class NotSaved(Exception):
    """A name cannot be pickled."""

    def __init__(self, name: str, why: str):
        super().__init__(name, why)
        self.name = name
        self.why = why


class Attempt:
    """Pickles ``values`` one after the other."""

    def __init__(self, values: Mapping[str, Any], namespace: dict[str, Any], writer: NamesWriter):
        self._values = values
        self._writer = writer
        self.pickler = NamesPickler(writer, namespace)
        self._names: list[tuple[str, int]] = []
        self._failure: NotSaved | None = None
        self._running = _thread.allocate_lock()  # threading.Thread needs locks that a stopped thread may hold.

    def names(self) -> list[tuple[str, int]]:
        """Pickle; each name, and where its pickle begins. Raises NotSaved for the first that cannot be."""
        self._running.acquire()
        _thread.start_new_thread(self._run, ())
        name, written, quiet, looks = "", 0, 0, 0
        while not self._running.acquire(timeout=_LOOK):
            is_same = name == self.pickler.name
            looks = looks + 1 if is_same else 0
            quiet = quiet + 1 if is_same and written == self._writer.written else 0
            name, written = self.pickler.name, self._writer.written
            for count, limit in ((quiet, _PATIENCE), (looks, _LONGEST)):
                if name and count * _LOOK > limit:
                    self._writer.discard()
                    raise NotSaved(name, f"saving it took longer than {limit:g} s")
        if self._failure is not None:
            self._writer.discard()
            raise self._failure
        return self._names

    def _run(self) -> None:
        try:
            for name, value in self._values.items():
                self.pickler.name = name
                begin = self._writer.end
                self.pickler.dump(value)
                self._names.append((name, begin))
        except BaseException as e:  # any class's own code, which may also exit
            self._failure = NotSaved(self.pickler.name, str(e))
        finally:
            self._running.release()
