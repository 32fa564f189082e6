"""The rank's own stdout and stderr. The kernel uses only these, and they are restored when a cell leaves something
unusable in ``sys.stdout``: None, a closed or failing stream, or one in memory. A replacement that works, such as one
that also writes to a file, is kept for the next cells.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jdist.worker.cells.fd_capture import FdCapture
from jdist.worker.kernel.guarded import described, guarded


class OwnStreams:
    """One rank's streams, as they are when this is made. All methods are called on the main thread."""

    def __init__(self, captures: Sequence[FdCapture] = ()):
        self._own: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._captures = captures
        # A cell's ``sys.stdout.close()`` would close it for all cells to come.
        self._methods = [(s, {"write": s.write, "flush": s.flush, "close": s.flush}) for s in self._own.values()]

    def restore(self, has_failed: bool = False) -> None:
        """Flush the output, and make sure that the next cell finds streams that work. Never raises."""
        notes = []
        for stream, methods in self._methods:
            vars(stream).update(methods)  # also where a cell has put its own in their place
        for name, own in self._own.items():
            fault, failure = guarded(lambda name=name: self._fault_of(name, has_failed))  # type: ignore[misc]
            if failure is not None:
                fault = f"was left as something that cannot be looked at ({described(failure)})"
            if fault is None:
                continue
            setattr(sys, name, own)
            if fault:
                notes.append(f"sys.{name} {fault}; it was reset")
        for capture in self._captures:
            if capture.restore():
                notes.append(f"file descriptor {capture.fd} was closed; it is open again")
            capture.catch_up()
        for note in notes:
            self._own["stderr"].write(f"jdist: {note}\n")
        for own in self._own.values():
            own.flush()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Use the rank's own streams in a block, in the middle of a cell that may have put others in their place."""
        replaced = {name: getattr(sys, name, None) for name in self._own}
        for stream in replaced.values():
            guarded(lambda stream=stream: stream.flush())  # type: ignore[misc]
        for name, own in self._own.items():
            setattr(sys, name, own)
        self.restore()
        try:
            yield
        finally:
            for name, stream in replaced.items():
                setattr(sys, name, stream)

    def catch_up(self) -> None:
        """Pass on what children have written so far: it belongs to the cell whose number output bears now."""
        for capture in self._captures:
            capture.catch_up()

    def after_fork(self) -> None:
        """In a forked child: write to file descriptors 1 and 2, which the rank reads, instead of sending messages."""
        for capture in self._captures:
            capture.after_fork()

    def _fault_of(self, name: str, has_failed: bool) -> str | None:
        """Why the current stream must be replaced ("" if the user need not know), or None if it may stay."""
        stream: Any = getattr(sys, name, None)
        if stream is self._own[name]:
            return None
        if stream is None:
            return "was left as None"
        if stream is getattr(sys, f"__{name}__"):
            guarded(lambda: _use(stream, has_failed=False))
            return ""  # it leads to the same place by a longer way
        kind = type(stream).__name__
        if isinstance(stream, io.StringIO | io.BytesIO):
            return f"was left as a {kind}, which shows nothing"
        _, failure = guarded(lambda: _use(stream, has_failed))
        return f"was left as a {kind} that cannot be used ({described(failure)})" if failure is not None else None


def _use(stream: Any, has_failed: bool) -> None:
    """What IPython does with a stream, and, as this may have been why the cell failed, a write."""
    if getattr(stream, "closed", False):
        raise ValueError("it is closed")
    stream.write = stream.write  # IPython puts its own in its place while a cell runs
    if has_failed:
        stream.write("")
    if hasattr(stream, "flush"):
        stream.flush()
