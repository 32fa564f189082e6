"""Loading the names that the process before this one has saved, on the main thread of the process in its place."""

import contextlib
import io
import logging
import pickle
import pickletools
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from jdist.core.messages.groups import CarriedNames
from jdist.worker.handover import session
from jdist.worker.handover.memory import NamesReader
from jdist.worker.handover.rebuild import LostValue, loading
from jdist.worker.handover.save import SESSION

_log = logging.getLogger("jdist.worker")

_MEMOIZE = "MEMOIZE"
_PATIENCE = 5.0  # Seconds without progress until a name is left out.
_LOOK = 0.5  # Seconds between two looks at the progress.


class _Pickles:
    """Loads one pickle after the other, of which a later one may refer to what an earlier one made."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self.reads = 0  # So far: while it grows, a load makes progress.
        self._unpickler: Any = pickle.Unpickler(self)  # noqa: S301  # our own agent kept what it reads
        self._loaded: list[bytes] = []
        self._memo: dict[int, Any] | None = None  # Once a pickle could not be loaded, and Python's own loader goes on.

    def read(self, size: int) -> bytes:
        self.reads += 1
        return self._file.read(size)

    def readline(self) -> bytes:
        return self._file.readline()

    def load(self, data: bytes) -> Any:
        """The value. What any constructor or __setstate__ raises comes through; later pickles can still be loaded."""
        self._file = io.BytesIO(data)
        if self._memo is not None:
            self._unpickler = pickle._Unpickler(self)  # noqa: SLF001  # its memo can be set
            self._unpickler.memo = self._memo
        try:
            value = self._unpickler.load()
            self._loaded.append(data)
            return value
        except BaseException:  # SystemExit, and what ends a load that is too slow, as well
            self.leave_out(data)
            raise

    def leave_out(self, data: bytes) -> None:
        """Go on behind a pickle that is not loaded: later ones refer by number to what it was to make."""
        self._loaded.append(data)
        self._memo = memo = dict(self._unpickler.memo.copy())
        size = sum(op.name == _MEMOIZE for each in self._loaded for op, _, _ in pickletools.genops(each))
        for number in range(len(memo), size):
            memo[number] = LostValue("part of another name")


class _TooSlow(BaseException):
    """Loading a name makes no progress."""


@contextlib.contextmanager
def _ending_slow_loads(progress: Callable[[], int]) -> Iterator[None]:
    """Raise in the middle of a load that makes no progress, by a timer's signal; on the main thread."""
    seen, since = -1, time.monotonic()

    def look(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen, since
        now, at = progress(), time.monotonic()
        if now != seen:
            seen, since = now, at
        elif at - since > _PATIENCE:
            since = at
            raise _TooSlow(f"loading it took longer than {_PATIENCE:g} s")

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
    with (
        loading(namespace, reader.read_buffer),
        _ending_slow_loads(lambda: pickles.reads + reader.has_read),
        warnings.catch_warnings(),
    ):
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
                losses[name] = f"{type(e).__name__}: {e}"
                continue
            if isinstance(value, LostValue):
                losses.setdefault(name, value.kind)
            elif not name.startswith(SESSION):
                namespace[name] = value
                count += 1
    shown = {name: why for name, why in losses.items() if not name.startswith(SESSION)}
    return CarriedNames(count, tuple(shown.items()))


def _restore(shell: Any, key: str, value: Any, environment: Mapping[str, str]) -> None:
    number = key.removeprefix("out ")
    if number == key:
        session.restore(shell, key, value, environment)
    elif not isinstance(value, LostValue):
        names = shell.user_ns
        names["Out"][int(number)] = value
        shell.push({f"_{number}": value, "___": names.get("__"), "__": names.get("_"), "_": value}, interactive=False)
