"""Saving the names of a process that fails, as far as they can be pickled and memory is left."""

import contextlib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jdist.core.quantities import format_bytes
from jdist.wire.values.refusals import parts_of
from jdist.worker.handover.attempt import Attempt, NotSaved
from jdist.worker.handover.memory import NamesWriter, free_memory
from jdist.worker.handover.pickler import Loss, NamesPickler
from jdist.worker.handover.rebuild import LostValue

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
