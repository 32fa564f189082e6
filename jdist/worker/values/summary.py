"""A value in a few words. The `__repr__` of user code is never called: it may be slow, or wait for other ranks."""

import reprlib
from typing import Any

from jdist.wire.values import tensors

_LONGEST = 80  # Characters.
_BUILTIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))


def summarize(value: object) -> str:
    """``12``, ``[1, 2]``, ``{'loss': tensor [] float32}``; a value of another type is shown as ``<Net>``."""
    text = _SUMMARY.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class _Summary(reprlib.Repr):
    def repr1(self, x: Any, level: int) -> str:
        if tensors.is_tensor(x):
            return f"tensor {list(x.shape)} {tensors.dtype_name(x)}"
        if type(x) not in _BUILTIN:
            return f"<{type(x).__name__}>"
        return super().repr1(x, level)


_SUMMARY = _Summary()
_SUMMARY.maxlevel = 2
_SUMMARY.maxstring = 60
