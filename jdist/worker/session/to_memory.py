"""Pickle the names of a process that fails into memory, as far as they can be pickled and memory is left.

Pickling runs the user's own ``__reduce__`` and ``__getstate__``, which may fault in C code, or wait forever for a lock
that a stopped thread holds. So each attempt to pickle all names has a thread of its own. A thread that makes no
progress is abandoned, and the next attempt omits the name that it was pickling. Only code that holds the interpreter
lock can still prevent saving altogether.

Each attempt has its own writer. That of an abandoned thread is discarded, so the thread cannot write if it wakes up.
"""

import _thread
import contextlib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jdist.core.quantities import format_bytes
from jdist.wire.values.refusals import parts_of
from jdist.worker.session.memory import NamesWriter, free_memory
from jdist.worker.session.names_pickler import Loss, NamesPickler
from jdist.worker.session.rebuild import LostValue

SESSION = "/"  # Names that begin so are no names of the namespace, but keys of its session.
_SEARCHED = 50_000  # Objects in which the place of a part is searched for.
_HISTORY = re.compile(r"_+|_i+|_i?\d+|_[dio]h|In|Out")
_DEEP = 50_000  # Levels of nested objects that the saving thread's stack has room for.

Losses = dict[str, str]


class Save:
    """One saving of ``namespace``, together with what ``session`` gives for each of its keys."""

    def __init__(
        self,
        namespace: dict[str, Any],
        hidden: Mapping[str, Any],
        session: Mapping[str, Callable[[], Any]],
        is_own_name: Callable[[str], bool],
        report: Callable[[], None],
    ):
        self._namespace = namespace
        self._hidden = hidden
        self._session = session
        self._is_own_name = is_own_name
        self._report = report
        self._losses: Losses = {}
        self._omitted: set[str] = set()

    def write(self) -> tuple[int, int]:
        """Write everything that can be written; the memory's descriptor, and its number of bytes."""
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEP))
        values = dict(self._values())
        while True:
            self._report()
            writer = NamesWriter(self._report)
            attempt = Attempt({n: v for n, v in values.items() if n not in self._omitted}, self._namespace, writer)
            try:
                names = attempt.names()
            except NotSaved as e:
                self._omit(e.name, reason_for(values[e.name], e.why))
                continue
            if self._fits(attempt.pickler, writer.end):
                break
            writer.discard()
        with contextlib.suppress(Exception):  # what is carried must not depend on what can be said of the rest
            self._explain(values, attempt.pickler.losses)
        buffers = [(buffer.nbytes, buffer.view) for buffer in attempt.pickler.buffers]
        return writer.fd, writer.finish(names, buffers, tuple(self._losses.items()))

    def _values(self) -> Iterator[tuple[str, Any]]:
        """The session first: its paths are needed to load the names."""
        for key, ask in self._session.items():
            with contextlib.suppress(Exception):  # the process is failing: what cannot be asked is not restored
                yield f"{SESSION}{key}", ask()
        yield from users_values(self._namespace, self._hidden, self._is_own_name)
        for number, value in list(self._namespace.get("Out", {}).items()):
            yield f"{SESSION}out {number}", value

    def _fits(self, pickler: NamesPickler, pickled: int) -> bool:
        """Whether there is memory for all; if not, the largest name is omitted."""
        free = free_memory()
        if pickled + sum(buffer.nbytes for buffer in pickler.buffers) <= free or not pickler.buffers:
            return True
        sizes: dict[str, int] = {}
        for buffer in pickler.buffers:
            sizes[buffer.name] = sizes.get(buffer.name, 0) + buffer.nbytes
        largest = max(sizes, key=sizes.__getitem__)
        why = f"{format_bytes(sizes[largest])}, and {format_bytes(max(0, free))} of memory were free to save it in"
        self._omit(largest, why)
        return False

    def _omit(self, name: str, why: str) -> None:
        self._omitted.add(name)
        if not name.startswith(SESSION):
            self._losses[name] = why

    def _explain(self, values: dict[str, Any], losses: list[Loss]) -> None:
        for loss in losses:
            if not loss.name.startswith(SESSION) and type(loss.part) is not LostValue:  # isinstance asks a proxy
                path = loss.name + path_to(loss.part, values[loss.name])
                self._losses[path] = reason_for(loss.part, loss.why)


def users_values(
    namespace: Mapping[str, Any], hidden: Mapping[str, Any], is_own_name: Callable[[str], bool]
) -> Iterator[tuple[str, Any]]:
    """The names that cells have bound, without those of IPython (``hidden``, and its history) and of jdist."""
    nothing = object()
    for name, value in list(namespace.items()):
        is_hidden = value is hidden.get(name, nothing) or _HISTORY.fullmatch(name) is not None
        if not is_hidden and not is_own_name(name) and value is not namespace:
            yield name, value


def reason_for(part: Any, why: str) -> str:
    """What the part is; and why it cannot be carried, unless that says no more than that it cannot be pickled."""
    kind = type(part).__name__
    return kind if not why or "pickle" in why.lower() else f"{kind}: {why}"


def path_to(part: Any, value: Any) -> str:
    """The steps from a value to one of its parts: ``".loader[0]"``; "" if it is the value itself, or is not found."""
    seen = {id(value)}
    waiting = deque([("", value)])
    while waiting and len(seen) < _SEARCHED:
        path, holder = waiting.popleft()
        if holder is part:
            return path
        steps: list[tuple[str, Any]] = []
        with contextlib.suppress(Exception):  # an empty cell, a property
            steps = parts_of(holder)
        for step, inner in steps:
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append((path + step, inner))
    return ""


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
