"""Tensors: a torch tensor as a note (dtype, shape, flags) and raw buffers, without pickle.

torch is imported only where a tensor is rebuilt; a process that has not imported it holds no tensor. Buffers are views
on the tensors' own memory: writes to a tensor before they are sent are sent, too.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from jdist.core.errors import ProtocolError

if TYPE_CHECKING:
    import torch

Buffer = memoryview | bytes | bytearray

_COMPRESSED = {
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}
_SMALL = 512  # Bytes that are copied rather than viewed, which takes longer.
_PARTS = {"strided": 0, "meta": 0, "sparse_coo": 2} | dict.fromkeys(_COMPRESSED, 3)


class TensorNote(Struct, frozen=True, array_like=True):
    """A tensor without its elements."""

    dtype: str  # torch's name without `torch.`.
    shape: tuple[int, ...]
    layout: str = "strided"  # `strided`, `meta` (no elements), or a sparse layout, whose tensors are the `parts`.
    device: str = "cpu"  # The sender's device; the tensor arrives on the CPU.
    requires_grad: bool = False
    is_parameter: bool = False
    is_coalesced: bool = False
    parts: tuple[TensorNote, ...] = ()


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a torch.Tensor of any class, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


def is_dtensor(obj: object) -> bool:
    """Whether ``obj`` is one rank's shard of a distributed tensor."""
    # Another thread may be importing the module, which has no DTensor yet then.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(obj, kind)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a note and raw bytes describe the tensor fully: no subclass, not quantized or nested."""
    torch = sys.modules["torch"]
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not tensor.is_quantized
        and not tensor.is_nested
        and _layout(tensor) in _PARTS
    )


def take_apart(
    tensor: torch.Tensor, known: dict[object, TensorNote] | None = None
) -> tuple[TensorNote, list[memoryview]]:
    """The note of a plain tensor, and views on its elements in row-major order (of a copy, if on a device or strided).

    ``requires_grad`` is kept of leaves; what an operation produced is detached. A note that is in ``known`` is used
    again, and a new one added.
    """
    is_leaf = tensor.requires_grad and tensor.is_leaf
    key = (type(tensor), tensor.dtype, tensor.shape, tensor.device, is_leaf, tensor.layout)
    if known is not None and key in known:
        return known[key], [_small_copy(tensor) if tensor.nbytes <= _SMALL else raw_bytes(tensor)]
    layout = _layout(tensor)
    plain = tensor.detach()
    parts = [take_apart(part) for part in _components(plain, layout)]
    buffers = [buffer for _, views in parts for buffer in views]
    if layout == "strided":
        buffers = [raw_bytes(plain)]
    note = TensorNote(
        dtype=dtype_name(tensor),
        shape=tuple(tensor.shape),
        layout=layout,
        device=str(tensor.device),
        requires_grad=is_leaf,
        is_parameter=type(tensor) is not sys.modules["torch"].Tensor,
        is_coalesced=layout == "sparse_coo" and tensor.is_coalesced(),
        parts=tuple(part for part, _ in parts),
    )
    if known is not None and layout == "strided":
        known[key] = note
    return note, buffers


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """A strided tensor's elements in row-major order as bytes: its own memory, if that is contiguous and on the CPU."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    nbytes = flat.numel() * flat.element_size()
    if not nbytes:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * nbytes).from_address(flat.data_ptr())
    memory.tensor = flat  # type: ignore[attr-defined]  # keeps the memory as long as the view
    return memoryview(memory).cast("B")


def _small_copy(tensor: torch.Tensor) -> memoryview:
    """As raw_bytes, of a copy: for few bytes that is faster than a view."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return memoryview(bytearray(ctypes.string_at(flat.data_ptr(), flat.nbytes)))


def _buffer_count(note: TensorNote) -> int:
    """How many buffers :func:`take_apart` gives for such a note. Raises ProtocolError for a layout that is none."""
    if len(note.parts) != _PARTS.get(note.layout, -1):
        raise ProtocolError(f"a tensor of layout {note.layout!r} arrived with {len(note.parts)} parts")
    return int(note.layout == "strided") + sum(_buffer_count(part) for part in note.parts)


def _check(note: TensorNote, sizes: Iterator[int]) -> None:
    """Raises ProtocolError unless the next buffers, of these byte lengths, are what the note describes."""
    dtype = _dtype(note)
    if min(note.shape, default=0) < 0:
        raise ProtocolError(f"a tensor of shape {list(note.shape)} arrived")
    if note.layout == "strided":
        size = next(sizes)
        if math.prod(note.shape) * dtype.itemsize != size:
            raise ProtocolError(f"{size} bytes arrived for a {summary(note)}")
    for part in note.parts:
        _check(part, sizes)


def put_together(note: TensorNote, *buffers: Buffer) -> torch.Tensor:
    """The tensor on ``buffers``, without a copy of those that are writable and aligned.

    Raises ProtocolError when note and buffers disagree, ImportError where there is no torch.
    """
    import torch

    if len(buffers) != _buffer_count(note):
        raise ProtocolError(f"{len(buffers)} buffers arrived for a {summary(note)}")
    _check(note, (memoryview(b).nbytes for b in buffers))
    try:
        tensor = _build(note, iter(buffers))
        if note.is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=note.requires_grad)
        return tensor.requires_grad_() if note.requires_grad else tensor
    except (RuntimeError, ValueError, TypeError, OverflowError) as e:
        raise ProtocolError(f"what arrived is no {summary(note)}: {e}") from e


def summary(note: TensorNote) -> str:
    """``"Tensor float32 [3, 4]"``, with layout and device where they are not the usual ones."""
    kind = "Parameter" if note.is_parameter else "Tensor"
    layout = f" {note.layout}" if note.layout not in ("strided", "meta") else ""
    device = f" on {note.device}" if note.device != "cpu" else ""
    return f"{kind} {note.dtype} {list(note.shape)}{layout}{device}"


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a plain tensor's elements; of a sparse one's indices and values."""
    layout = _layout(tensor)
    if layout == "meta":
        return 0
    parts = _components(tensor.detach(), layout)
    return sum(map(nbytes, parts)) if parts else tensor.numel() * tensor.element_size()


def dtype_name(tensor: torch.Tensor) -> str:
    """``"float32"``."""
    return str(tensor.dtype).removeprefix("torch.")


def _layout(tensor: torch.Tensor) -> str:
    if tensor.layout is sys.modules["torch"].strided:
        return "meta" if tensor.is_meta else "strided"
    return str(tensor.layout).removeprefix("torch.")


def _components(tensor: torch.Tensor, layout: str) -> tuple[torch.Tensor, ...]:
    if layout == "sparse_coo":
        return tensor._indices(), tensor._values()
    if layout in _COMPRESSED:
        compressed, plain = _COMPRESSED[layout]
        return getattr(tensor, compressed)(), getattr(tensor, plain)(), tensor.values()
    return ()


def _dtype(note: TensorNote) -> torch.dtype:
    dtype = _dtype_of(note.dtype)
    if dtype is None:
        torch = sys.modules["torch"]
        raise ProtocolError(f"a tensor of unknown dtype {note.dtype!r} arrived; torch here is {torch.__version__}")
    return dtype


@functools.lru_cache(256)
def _dtype_of(name: str) -> torch.dtype | None:
    import torch

    dtype: Any = getattr(torch, name, None) if name.isidentifier() else None
    return dtype if isinstance(dtype, torch.dtype) else None


def _build(note: TensorNote, buffers: Iterator[Buffer]) -> torch.Tensor:
    import torch

    if note.layout == "meta":
        return torch.empty(note.shape, dtype=_dtype(note), device="meta")
    if note.layout == "strided":
        return _strided(note, next(buffers))
    parts = [_build(part, buffers) for part in note.parts]
    if note.layout == "sparse_coo":
        coalesced = note.is_coalesced or None
        return torch.sparse_coo_tensor(parts[0], parts[1], note.shape, check_invariants=True, is_coalesced=coalesced)
    make: Callable[..., torch.Tensor] = torch.sparse_compressed_tensor
    return make(*parts, note.shape, layout=getattr(torch, note.layout), check_invariants=True)


def _strided(note: TensorNote, buffer: Buffer) -> torch.Tensor:
    import torch

    dtype = _dtype(note)
    if not memoryview(buffer).nbytes:
        return torch.empty(note.shape, dtype=dtype, device="cpu")
    # A view of the tensor's own: torch keeps a reference to the object it was given but no export of its buffer, so a
    # release() of a shared memoryview elsewhere would free the memory under the tensor.
    view = memoryview(bytearray(buffer) if memoryview(buffer).readonly else buffer)
    raw = torch.frombuffer(view, dtype=torch.uint8)
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    # set_ on the storage, as frombuffer does not take every dtype and view() would leave a tensor that has a base.
    return torch.empty(0, dtype=dtype, device="cpu").set_(raw.untyped_storage(), 0, note.shape)  # type: ignore[call-overload,no-any-return]
