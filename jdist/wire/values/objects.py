"""Pack any Python value into a small head and large raw buffers, and unpack it.

Tensors and arrays are encoded as a note and raw bytes; everything else by cloudpickle (protocol 5), with the tensors,
arrays and buffers inside it taken out of the pickle in the same way, so the head of a 10 GB state_dict is small.

Tensors arrive on the CPU and without gradients, and tensors that share a storage arrive separately (the *same* tensor
in two places stays one). Buffers are views on the value's own memory, which must not be written to before they are
sent.

Functions that are pickled by value keep the file name of their code, which leads from a line to its cell. cloudpickle
has omitted the name since version 3.1.3, so that equal functions have equal pickles on every machine.
"""

import io
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import cloudpickle
import msgspec
from msgspec import Struct

from jdist.core.errors import NotPicklable, NotRebuilt, ProtocolError, ShardedValue, TooLarge, describe_error
from jdist.core.messages.base import PayloadWire
from jdist.wire.values import arrays, tensors
from jdist.wire.values.refusals import Kinds, Refused, explain, find_culprit, is_stop


def reduce_code(code: CodeType) -> Any:
    """What ``reducer_override`` of a cloudpickle pickler returns for a code object."""
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make_code, (make, args, code.co_filename)


def make_code(make: Callable[..., CodeType], args: tuple[Any, ...], filename: str) -> CodeType:
    """The code object; called as it is unpickled."""
    return make(*args).replace(co_filename=filename)


FORMAT = 1  # First byte of every head; both sides must use the same.
_SMALL = 512  # A buffer of fewer bytes stays inside the pickle stream: a frame and its alignment would cost more.

_TENSORS = tensors.__name__.encode()  # A pickle stream with tensors names it.

Buffer = memoryview | bytes | bytearray


class _TensorHead(Struct, frozen=True, tag="tensor"):
    note: tensors.TensorNote


class _ArrayHead(Struct, frozen=True, tag="array"):
    note: arrays.ArrayNote


class _BytesHead(Struct, frozen=True, tag="bytes"):
    is_mutable: bool


class _PickleHead(Struct, frozen=True, tag="pickle"):
    stream: bytes
    crc: int  # zlib.crc32 of the stream: damage is found before any of it is unpickled.


_Head = _TensorHead | _ArrayHead | _BytesHead | _PickleHead
_decoder: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)


def encode(
    obj: object, limit: int | None = None, report: Callable[[int], None] = lambda _: None
) -> tuple[PayloadWire, list[memoryview]]:
    """The payload of ``obj`` and its buffers: C-contiguous views of format 'B', without copies where possible.

    ``report`` is called often, with the bytes taken so far. Raises NotPicklable when a part of it cannot be pickled,
    ShardedValue (a TypeError too) for a DTensor, and TooLarge as soon as head and buffers are known to exceed ``limit``
    bytes.
    """
    buffers: list[memoryview]
    head: _Head
    _Stream(obj, limit, report).take(_nbytes(obj))  # before anything is copied
    if tensors.is_tensor(obj) and _plain(obj):
        note, buffers = tensors.take_apart(obj)  # type: ignore[arg-type]
        head = _TensorHead(note)
    elif arrays.is_array(obj):
        array_note, view = arrays.take_apart(obj)  # type: ignore[arg-type]
        head, buffers = _ArrayHead(array_note), [view]
    elif type(obj) in (bytes, bytearray):
        head, buffers = _BytesHead(type(obj) is bytearray), [memoryview(obj)]  # type: ignore[arg-type]
    else:
        head, buffers = _pickled(obj, limit, report)
    sizes = tuple(b.nbytes for b in buffers)
    return PayloadWire(bytes([FORMAT]) + msgspec.msgpack.encode(head), sizes, sum(sizes), summarize(obj)), buffers


def inline(payload: PayloadWire, buffers: Sequence[memoryview]) -> PayloadWire:
    """The payload with its buffers inside."""
    return msgspec.structs.replace(payload, buffers=tuple(bytes(b) for b in buffers))


def decode(payload: PayloadWire, buffers: Sequence[Buffer]) -> Any:
    """The value. Tensors and arrays are built on ``buffers`` where these are writable, and copied where not.

    Raises ProtocolError when payload and buffers are malformed or disagree, before anything is unpickled; NotRebuilt
    when a valid value cannot be rebuilt in this process.
    """
    head = _checked_head(payload, buffers)
    not_made = f"{payload.summary} arrived but cannot be made here"
    try:
        if isinstance(head, _TensorHead):
            return tensors.put_together(head.note, *buffers)
        if isinstance(head, _ArrayHead):
            return arrays.put_together(head.note, _only(buffers))
        if isinstance(head, _BytesHead):
            return bytearray(_only(buffers)) if head.is_mutable else bytes(_only(buffers))
    except ImportError as e:
        raise NotRebuilt(f"{not_made}: {e}; install it here too") from e
    if zlib.crc32(head.stream) != head.crc:
        raise ProtocolError(f"{payload.summary} was damaged on its way; ask for it again")
    try:
        return pickle.loads(head.stream, buffers=buffers)
    except ProtocolError:
        raise
    except ImportError as e:
        raise NotRebuilt(f"{not_made}: {e}; install it here too, or sync it here") from e
    except BaseException as e:  # __setstate__ and constructors of any class run here, and may exit
        if is_stop(e):
            raise
        raise NotRebuilt(f"{not_made}: {describe_error(e)}") from e


def needs_torch(payload: PayloadWire) -> bool:
    """Whether decoding will import torch, as far as can be seen without it."""
    return b"torch" in payload.head or payload.summary.startswith(("Tensor ", "Parameter ")) or _TENSORS in payload.head


def summarize(obj: object) -> str:
    """A description of ``obj`` in one line: ``"Tensor float32 [3, 4]"``, ``"dict of 2"``, ``"Linear"``."""
    try:
        return _summary(obj)
    except BaseException as e:  # the user's own attributes and __len__ run here
        if is_stop(e):
            raise
        return type(obj).__name__


def _summary(obj: object) -> str:
    shape, dtype = getattr(obj, "shape", None), getattr(obj, "dtype", None)
    name = type(obj).__name__
    if tensors.is_tensor(obj):
        device = "" if str(obj.device) == "cpu" else f" on {obj.device}"  # type: ignore[attr-defined]
        return f"{name} {str(dtype).removeprefix('torch.')} {list(obj.shape)}{device}"  # type: ignore[attr-defined]
    if isinstance(shape, tuple):
        return f"{name} {dtype} {list(shape)}" if dtype is not None else f"{name} {list(shape)}"
    if isinstance(obj, (list, tuple, set, frozenset, dict)):
        return f"{name} of {len(obj)}"
    if isinstance(obj, (str, bytes, bytearray)):
        return f"{name} of length {len(obj)}"
    return name


def _plain(obj: Any) -> bool:
    if tensors.is_dtensor(obj):
        raise ShardedValue("x is a DTensor: pull it with full=True, or pull x.to_local()")
    return tensors.is_plain(obj)


class _Stream(io.BytesIO):
    """A pickle stream of ``obj``, which may have ``limit`` bytes with the buffers that are taken out of it."""

    def __init__(self, obj: object, limit: int | None, report: Callable[[int], None] = lambda _: None):
        super().__init__()
        self._obj = obj
        self._limit = limit
        self._report = report
        self._taken = 0

    def take(self, nbytes: int) -> None:
        self._taken += nbytes
        if self._limit is not None and self._taken > self._limit:
            raise TooLarge(f"{summarize(self._obj)} has more than {self._limit:,} bytes")
        self._report(self._taken)

    def write(self, data: Any) -> int:
        self.take(memoryview(data).nbytes)
        return super().write(data)


def _nbytes(obj: Any) -> int:
    """Bytes of a tensor's or array's elements, before anything is copied; 0 for everything else."""
    if tensors.is_tensor(obj):
        return 0 if tensors.is_dtensor(obj) or not tensors.is_plain(obj) else tensors.nbytes(obj)
    return int(obj.nbytes) if arrays.is_array(obj) else len(obj) if type(obj) in (bytes, bytearray) else 0


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with tensors and arrays taken out of the stream.

    Tensors of the same shape and dtype share one description, which pickle then writes once.
    """

    def __init__(self, file: _Stream, out_of_band: Callable[[pickle.PickleBuffer], bool]):
        super().__init__(file, protocol=5, buffer_callback=out_of_band)
        self._take = file.take
        self._tensor_notes: dict[object, tensors.TensorNote] = {}
        self._array_notes: dict[object, arrays.ArrayNote] = {}
        self._kinds = Kinds()

    def reducer_override(self, obj: Any) -> Any:
        if tensors.is_tensor(obj):
            if not _plain(obj):
                return NotImplemented  # torch's own way
            self._take(tensors.nbytes(obj))
            note, views = tensors.take_apart(obj, self._tensor_notes)
            return tensors.put_together, (note, *map(pickle.PickleBuffer, views))
        if arrays.is_array(obj):
            self._take(obj.nbytes)
            array_note, view = arrays.take_apart(obj, self._array_notes)
            return arrays.put_together, (array_note, pickle.PickleBuffer(view))
        for name in ("stdout", "stderr"):
            if obj is getattr(sys, name, None):
                return getattr, (sys, name)
        if type(obj) is CodeType:
            return reduce_code(obj)
        self._take(len(obj) if type(obj) is bytearray else 0)
        self._kinds.check(obj)
        return super().reducer_override(obj)


def _pickled(obj: object, limit: int | None, report: Callable[[int], None]) -> tuple[_PickleHead, list[memoryview]]:
    buffers: list[memoryview] = []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        """True keeps the buffer in the stream, by pickle's convention."""
        view = buffer.raw()
        if view.nbytes < _SMALL:
            return True
        buffers.append(view)
        return False

    file = _Stream(obj, limit, report)
    try:
        _Pickler(file, out_of_band).dump(obj)
    except (ShardedValue, TooLarge):
        raise
    except BaseException as e:  # __reduce__ and __getstate__ of any class may raise anything, and exit
        if is_stop(e):
            raise
        raise _refusal(obj, e) from e
    stream = file.getvalue()
    return _PickleHead(stream, zlib.crc32(stream)), buffers


def _refusal(obj: object, error: BaseException) -> NotPicklable:
    path, part, why = find_culprit(obj, error, _failure)
    if isinstance(why, Refused):
        where = f"{summarize(obj)} cannot leave its process ({path} is {why.what})"
        return NotPicklable(f"{where if path else f'{why.what} cannot leave its process'}; take {why.instead}")
    where = f" ({path} is a {type(part).__name__})" if path else ""
    return NotPicklable(
        f"{summarize(obj)} cannot leave its process{where}: {explain(why)}; "
        "pull the parts you need by name, such as a tensor, a list or a state_dict"
    )


def _failure(part: object) -> BaseException | None:
    try:
        _Pickler(_Stream(part, None), lambda _: False).dump(part)
    except BaseException as e:  # as in _pickled
        if is_stop(e):
            raise
        return e
    return None


def _checked_head(payload: PayloadWire, buffers: Sequence[Buffer]) -> _Head:
    """The head, after all checks that need no unpickling."""
    if not payload.head:
        raise ProtocolError("a value arrived without a head")
    if payload.head[0] != FORMAT:
        raise ProtocolError(
            f"a value arrived in format {payload.head[0]}, this side reads {FORMAT}: "
            "install the same version of jdist on both sides"
        )
    try:
        head = _decoder.decode(memoryview(payload.head)[1:])
    except (ValueError, RecursionError) as e:  # msgspec.DecodeError, or UnicodeDecodeError
        raise ProtocolError(f"the head of a value is malformed: {e}") from e
    sizes = tuple(memoryview(b).nbytes for b in buffers)
    if sizes != payload.sizes or sum(sizes) != payload.nbytes:
        raise ProtocolError(
            f"{payload.summary}: {len(sizes)} buffers of {sum(sizes):,} bytes arrived where "
            f"{len(payload.sizes)} of {payload.nbytes:,} were announced; ask for it again"
        )
    return head


def _only(buffers: Sequence[Buffer]) -> Buffer:
    if len(buffers) != 1:
        raise ProtocolError(f"{len(buffers)} buffers arrived for a value that has one")
    return buffers[0]
