"""Loading the names that the process before this one has saved, on the main thread of the process in its place."""

import contextlib
import io
import logging
import pickle
import pickletools
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from jdist.core.messages.membership import CarriedNames
from jdist.worker.session import state
from jdist.worker.session.memory import NamesReader
from jdist.worker.session.rebuild import LostValue, loading
from jdist.worker.session.to_memory import SESSION

_log = logging.getLogger("jdist.worker")

_MEMOIZE = "MEMOIZE"
_LOOK = 0.5  # Seconds between two looks at the progress.
_PATIENCE = 40  # Looks without progress until a name is left out: a device's first use may take many seconds.


class _Pickles:
    """Loads one pickle after the other, of which a later one may refer to what an earlier one made."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self.reads = 0  # So far: while it grows, a load makes progress.
        self.is_loading = False
        self._unpickler: Any = pickle.Unpickler(self)  # noqa: S301  # our own agent kept what it reads
        self._loaded: list[bytes] = []  # Until one could not be loaded.
        self._memo: dict[int, Any] | None = None  # From then on: Python's own loader goes on with it.

    def read(self, size: int) -> bytes:
        self.reads += 1
        return self._file.read(size)

    def readline(self) -> bytes:
        return self._file.readline()

    def load(self, data: bytes) -> Any:
        """The value. What any constructor or __setstate__ raises comes through; later pickles can still be loaded."""
        self._file = io.BytesIO(data)
        before = 0
        if self._memo is not None:
            before = len(self._memo)
            self._unpickler = pickle._Unpickler(self)  # noqa: SLF001  # its memo can be set
            self._unpickler.memo = self._memo
        try:
            self.is_loading = True
            value = self._unpickler.load()
            self.is_loading = False
        except BaseException:  # SystemExit, and what ends a load that is too slow, as well
            self.is_loading = False
            self._go_on_behind(data, before)
            raise
        if self._memo is None:
            self._loaded.append(data)
        return value

    def leave_out(self, data: bytes) -> None:
        """Go on behind a pickle that is not to be loaded."""
        self._go_on_behind(data, 0 if self._memo is None else len(self._memo))

    def _go_on_behind(self, data: bytes, before: int) -> None:
        """Later pickles refer by number to what this one was to make. ``before``: how many others had made, if known.

        Counting takes as long as Python's own loader does.
        """
        if self._memo is None:
            before = sum(map(_count_of, self._loaded))
            self._memo = dict(self._unpickler.memo.copy())
            self._loaded.clear()
        for number in range(len(self._memo), before + _count_of(data)):
            self._memo[number] = LostValue("part of another name")


def _count_of(data: bytes) -> int:
    """How many of the objects that a pickle makes can be referred to."""
    return sum(op.name == _MEMOIZE for op, _, _ in pickletools.genops(data))


class _TooSlow(BaseException):
    """Loading a name makes no progress."""


@contextlib.contextmanager
def _ending_slow_loads(pickles: _Pickles, reader: NamesReader) -> Iterator[None]:
    """Raise in the middle of a load that makes no progress, by a timer's signal; on the main thread.

    The time is counted in looks, so that it does not pass while the process is stopped. Importing modules is progress.
    """
    seen, looks = -1, 0

    def look(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen, looks
        now = pickles.reads + reader.has_read + len(sys.modules)
        seen, looks = now, looks + 1 if now == seen and pickles.is_loading else 0
        if looks > _PATIENCE:
            looks = 0
            raise _TooSlow(f"loading it made no progress for {_PATIENCE * _LOOK:g} s")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def load(reader: NamesReader, shell: Any, environment: Mapping[str, str]) -> CarriedNames:
    """Bind the names, and restore the session; returns what was loaded and lost. ``environment`` as in `session`."""
    namespace: dict[str, Any] = shell.user_ns
    losses = dict(reader.index.losses)
    pickles, count = _Pickles(), 0
    with loading(namespace, reader.read_buffer), _ending_slow_loads(pickles, reader), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown when the values were made
        for number, (name, _) in enumerate(reader.index.names):
            if number in reader.deadly:
                pickles.leave_out(reader.pickle_of(number))
                losses[name] = "loading it ended the process"
                continue
            reader.note(number)
            try:
                value = pickles.load(reader.pickle_of(number))
                if name.startswith(SESSION):
                    _restore(shell, name.removeprefix(SESSION), value, environment)
            except BaseException as e:  # __setstate__ and constructors of any class run here, and may exit
                _log.info("%s could not be loaded", name, exc_info=True)  # the user is not told of the session's parts
                losses[name] = str(e) if isinstance(e, _TooSlow) else f"{type(e).__name__}: {e}"
                continue
            if type(value) is LostValue:
                losses.setdefault(name, value.kind)
            elif not name.startswith(SESSION):
                namespace[name] = value
                count += 1
    shown = {name: why for name, why in losses.items() if not name.startswith(SESSION)}
    return CarriedNames(count, tuple(shown.items()))


def _restore(shell: Any, key: str, value: Any, environment: Mapping[str, str]) -> None:
    number = key.removeprefix("out ")
    if number == key:
        state.restore(shell, key, value, environment)
    elif type(value) is not LostValue:
        names = shell.user_ns
        names["Out"][int(number)] = value
        shell.push({f"_{number}": value, "___": names.get("__"), "__": names.get("_"), "_": value}, interactive=False)
