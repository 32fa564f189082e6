"""Arrays: a numpy array as a note (dtype, shape, order) and one raw buffer, without pickle."""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from jdist.core.errors import ProtocolError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RAW_KINDS = "biufcmMSUV"  # Kinds whose elements are their bytes. Objects and variable-length strings are pointers.
_RAW_DTYPE = re.compile(rf"[<>|=][{_RAW_KINDS}][0-9]+(\[[0-9A-Za-z]+\])?")


class ArrayNote(Struct, frozen=True, array_like=True):
    """An array without its elements."""

    dtype: str  # numpy's `dtype.str`, byte order included.
    shape: tuple[int, ...]
    order: Literal["C", "F"] = "C"


def is_array(obj: object) -> bool:
    """Whether ``obj`` is an array (or memory map) whose bytes say everything about its elements."""
    np = sys.modules.get("numpy")
    if np is None or type(obj) not in (np.ndarray, np.memmap):
        return False
    return _is_raw(obj.dtype)  # type: ignore[attr-defined]


@functools.lru_cache(256)
def _is_raw(dtype: Any) -> bool:
    np = sys.modules["numpy"]
    # Fields, metadata and dtypes from other packages (ml_dtypes) are lost in dtype.str: those arrays are pickled.
    return bool(
        dtype.kind in _RAW_KINDS and dtype.names is None and not dtype.metadata and np.dtype(dtype.str) == dtype
    )


def take_apart(array: NDArray[Any], known: dict[object, ArrayNote] | None = None) -> tuple[ArrayNote, memoryview]:
    """The note and a view on the elements; an array in neither C nor Fortran order is copied into C order.

    A note that is in ``known`` is used again, and a new one added.
    """
    import numpy as np

    flags = array.flags
    order: Literal["C", "F"] = "C" if flags.c_contiguous or not flags.f_contiguous else "F"
    octets: Any = (
        np.asarray(array).ravel(order=order).view(np.uint8) if array.nbytes else b""
    )  # datetimes have no buffer
    key = (array.dtype, array.shape, order)
    note = known.get(key) if known is not None else None
    if note is None:
        note = ArrayNote(array.dtype.str, array.shape, order)
        if known is not None:
            known[key] = note
    return note, memoryview(octets).cast("B")


def nbytes(note: ArrayNote) -> int:
    """Bytes of the elements."""
    import numpy as np

    return math.prod(note.shape) * np.dtype(note.dtype).itemsize


def put_together(note: ArrayNote, buffer: memoryview | bytes | bytearray) -> NDArray[Any]:
    """The array on ``buffer``. Raises ProtocolError when note and buffer disagree, ImportError without numpy."""
    import numpy as np  # only here: a process that has not imported it holds no array

    view = memoryview(buffer)
    dtype = _dtype(note.dtype)
    if dtype is None or min(note.shape, default=0) < 0:
        raise ProtocolError(f"an array of dtype {note.dtype!r} and shape {list(note.shape)} cannot come as raw bytes")
    if math.prod(note.shape) * dtype.itemsize != view.nbytes:
        raise ProtocolError(f"{view.nbytes} bytes arrived for an array {note.dtype} {list(note.shape)}")
    if not view.nbytes:
        try:
            return np.empty(note.shape, dtype, order=note.order)
        except (ValueError, OverflowError) as e:
            raise ProtocolError(f"an array of shape {list(note.shape)} arrived: {e}") from e
    flat = np.frombuffer(view, dtype)
    if view.readonly or not flat.flags.aligned:
        flat = flat.copy()  # else the array shares the buffer's memory
    return flat.reshape(note.shape, order=note.order)


@functools.lru_cache(256)
def _dtype(text: str) -> Any:
    """The dtype; None for one whose elements are not their bytes, and for what is none."""
    try:
        return sys.modules["numpy"].dtype(text) if _RAW_DTYPE.fullmatch(text) else None
    except (TypeError, ValueError):
        return None
