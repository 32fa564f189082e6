"""Loading the names that the process before this one has saved, on the main thread of the process in its place."""

import io
import logging
import pickle
import pickletools
import warnings
from collections.abc import Mapping
from typing import Any

from jdist.core.messages.groups import CarriedNames
from jdist.worker.handover import session
from jdist.worker.handover.memory import NamesReader
from jdist.worker.handover.rebuild import LostValue, loading
from jdist.worker.handover.save import SESSION

_log = logging.getLogger("jdist.worker")

_MEMOIZE = "MEMOIZE"


class _Pickles:
    """Loads one pickle after the other, of which a later one may refer to what an earlier one made."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._unpickler: Any = pickle.Unpickler(self)  # noqa: S301  # our own agent kept what it reads
        self._loaded: list[bytes] = []
        self._memo: dict[int, Any] | None = None  # Once a pickle could not be loaded, and Python's own loader goes on.

    def read(self, size: int) -> bytes:
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
        except Exception:
            self._loaded.append(data)
            self._memo = memo = dict(self._unpickler.memo.copy())
            size = sum(op.name == _MEMOIZE for each in self._loaded for op, _, _ in pickletools.genops(each))
            for number in range(len(memo), size):  # later pickles refer by number to what this one was to make
                memo[number] = LostValue("part of another name")
            raise


def load(reader: NamesReader, shell: Any, environment: Mapping[str, str]) -> CarriedNames:
    """Bind the names, and restore the session; returns what was loaded and lost. ``environment`` as in `session`."""
    namespace: dict[str, Any] = shell.user_ns
    losses = dict(reader.index.losses)
    pickles, count = _Pickles(), 0
    with loading(namespace, reader.read_buffer), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown when the values were made
        for number, (name, _) in enumerate(reader.index.names):
            try:
                value = pickles.load(reader.pickle_of(number))
                if name.startswith(SESSION):
                    _restore(shell, name.removeprefix(SESSION), value, environment)
            except Exception as e:  # __setstate__ and constructors of any class run here
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
