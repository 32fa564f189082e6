"""Digests of a value, by which ranks find out whether it is the same everywhere, and which element differs first.

Each entry (a parameter of a Module, a key of a dict) has a digest of its bytes; digests of blocks narrow a difference
down. Equal means equal bits: NaN equals NaN with the same bits, 0.0 differs from -0.0.
"""

import math
import pickle
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import xxhash

from jdist.core.errors import UsageError, nearest
from jdist.wire.values import arrays, tensors
from jdist.wire.values.partition import bounds

CHUNK = 1 << 17  # Elements in a piece: few enough to stay in a core's cache, enough to hide what a call costs.
_DEPTH = 32
_TEXT = 100  # Characters of a repr.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def digests(obj: Any) -> list[tuple[str, str, str]]:
    """(key, meta, digest in hex) of every entry, in the value's own order.

    A tensor or array is one entry with key ``""`` and a meta such as ``"float32 [3, 4]"``; of a DTensor it is this
    rank's part. Parts of other values go by name or key path (``layer1.weight``, ``state[0].exp_avg``).
    """
    found = [(key, _meta(leaf), _digest(leaf)) for key, leaf in _leaves(obj)]
    return found or [("", f"{type(obj).__name__} of 0", _hex(()))]


def digest_of(*pieces: bytes) -> str:
    """The digest of bytes, in hex."""
    return _hex(pieces)


def block_digests(obj: Any, key: str, start: int, stop: int, nblocks: int) -> list[str]:
    """Digests of the flat elements ``start`` to ``stop`` of the tensor or array at ``key``, cut into ``nblocks``
    blocks as torch.tensor_split cuts. Raises UsageError when there is no such entry or range.
    """
    leaf = _leaf(obj, key)
    if not _is_block(leaf):
        raise UsageError(f"{key or 'the value'} is a {type(leaf).__name__} on this rank, which has no elements")
    size = math.prod(leaf.shape)
    if not 0 <= start <= stop <= size or nblocks < 1:
        raise UsageError(f"{key or 'the value'} has {size} elements on this rank; {start} to {stop} is outside it")
    spans = [bounds(stop - start, i, nblocks) for i in range(nblocks)]
    return [_digest_block(leaf, start + low, start + high) for low, high in spans]


def element(obj: Any, key: str, flat_index: int) -> tuple[tuple[int, ...], str]:
    """Index and text of one element of the tensor or array at ``key``, in row-major order.

    The text tells any two different values of the dtype apart; of an entry that has no elements, it is a short repr.
    Raises UsageError when there is no such element.
    """
    leaf = _leaf(obj, key)
    if not _is_block(leaf):
        text = repr(leaf)
        return (), text if len(text) <= _TEXT else text[:_TEXT] + "…"
    shape = tuple(leaf.shape)
    if not 0 <= flat_index < math.prod(shape):
        raise UsageError(f"{key or 'the value'} has {math.prod(shape)} elements on this rank, none at {flat_index}")
    index = tuple(flat_index // math.prod(shape[d + 1 :]) % size for d, size in enumerate(shape))
    value = leaf[index]
    item = value.item() if hasattr(value, "item") else value
    narrow = isinstance(item, float) and leaf.dtype.itemsize <= 4
    return index, f"{item:.9g}" if narrow else repr(item)  # 9 digits tell any two float32 apart


def _leaves(obj: Any, path: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The entries of a value; a container that holds itself is not entered a second time."""
    if tensors.is_dtensor(obj):
        obj = obj.to_local()
    inner = None if id(obj) in above or len(above) > _DEPTH else _entries(obj)
    if inner is None:
        yield path, obj
        return
    for step, part in inner:
        yield from _leaves(part, f"{path}{step}" if path else step.removeprefix("."), (*above, id(obj)))


def _entries(obj: Any) -> list[tuple[str, Any]] | None:
    """The parts of ``obj`` with the steps that lead to them; None if it is an entry itself."""
    if isinstance(obj, torch.nn.Module):
        # Not state_dict(): its hooks may gather from other ranks, which would hang when one rank alone is asked.
        named = [*obj.named_parameters(remove_duplicate=False), *obj.named_buffers(remove_duplicate=False)]
        return [(f".{name}", tensor) for name, tensor in named]
    if isinstance(obj, dict):
        return [(f".{k}" if isinstance(k, str) else f"[{k!r}]", v) for k, v in obj.items()]
    if isinstance(obj, (list, tuple)):
        # Many plain numbers or strings are one entry, not thousands.
        is_entry = len(obj) > 64 and all(type(item) in (int, float, bool, str, type(None)) for item in obj)
        return None if is_entry else [(f"[{i}]", part) for i, part in enumerate(obj)]
    if type(obj).__module__.partition(".")[0] == "pandas" and hasattr(obj, "index"):
        columns = [(f".{c}", obj[c].to_numpy()) for c in obj.columns] if hasattr(obj, "columns") else None
        return [(".index", obj.index.to_numpy()), *(columns or [(".values", obj.to_numpy())])]
    if tensors.is_tensor(obj) or _is_array(obj) or isinstance(obj, type) or callable(obj):
        return None
    own = getattr(obj, "__dict__", None)
    return [(f".{name}", part) for name, part in own.items()] if own else None


def _is_array(obj: Any) -> bool:
    np = sys.modules.get("numpy")
    return np is not None and isinstance(obj, np.ndarray)


def _is_block(leaf: Any) -> bool:
    """Whether the leaf's elements can be read as bytes, piece by piece."""
    if tensors.is_tensor(leaf):
        return bool(leaf.layout == torch.strided and not (leaf.is_meta or leaf.is_nested or leaf.is_quantized))
    return arrays.is_array(leaf)


def _leaf(obj: Any, key: str) -> Any:
    keys = []
    for found, leaf in _leaves(obj):
        if found == key:
            return leaf
        keys.append(found)
    raise UsageError(f"there is no entry {key!r} on this rank{nearest(key, keys[:1000])}")


def _meta(leaf: Any) -> str:
    if tensors.is_tensor(leaf):
        layout = "" if leaf.layout == torch.strided else " " + str(leaf.layout).removeprefix("torch.")
        return f"{tensors.dtype_name(leaf)} {list(leaf.shape)}{layout}"
    if _is_array(leaf):
        return f"{leaf.dtype} {list(leaf.shape)}"
    return type(leaf).__name__


def _digest(leaf: Any) -> str:
    if _is_block(leaf):
        return _digest_block(leaf, 0, math.prod(leaf.shape))
    if tensors.is_tensor(leaf) and tensors.is_plain(leaf):
        return _hex(tensors.take_apart(leaf)[1])  # sparse: indices and values
    if isinstance(leaf, (bytes, bytearray)):
        return _hex([leaf])
    if isinstance(leaf, (set, frozenset)):
        return _hex(sorted(_digest(item).encode() for item in leaf))  # each process has another order
    return _hex([_portrait(leaf)])


def _digest_block(leaf: Any, start: int, stop: int) -> str:
    pieces = chunks(leaf.detach() if tensors.is_tensor(leaf) else leaf, start, stop)
    return _hex(tensors.raw_bytes(p) if tensors.is_tensor(p) else arrays.take_apart(p)[1] for p in pieces)


def _portrait(leaf: Any) -> bytes:
    """Bytes that are the same on two ranks for the same value: no addresses, nothing random."""
    if hasattr(leaf, "__code__"):
        code = leaf.__code__
        return repr((leaf.__qualname__, code.co_code, code.co_names, _ADDRESS.sub("", repr(code.co_consts)))).encode()
    if isinstance(leaf, type) or callable(leaf):
        return f"{type(leaf).__qualname__} {getattr(leaf, '__qualname__', '')}".encode()
    if isinstance(leaf, (int, float, complex, str, list, tuple, type(None))):
        return repr(leaf).encode()
    if _is_array(leaf):  # of objects: their pickle would depend on which of them are one and the same
        return _ADDRESS.sub("", repr(leaf.tolist())).encode()
    try:
        return pickle.dumps(leaf, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return _ADDRESS.sub("", repr(leaf)).encode()


def _hex(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    digest = xxhash.xxh3_128()  # twenty times as fast as BLAKE2, and as good where no collision is made by design
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def chunks(block: Any, start: int, stop: int, limit: int = CHUNK) -> Iterator[Any]:
    """The flat elements ``start`` to ``stop`` in 1-D pieces of at most ``limit``: views if contiguous, else copies."""
    shape = tuple(block.shape)
    if start >= stop:
        return
    is_contiguous = block.is_contiguous() if tensors.is_tensor(block) else block.flags.c_contiguous
    if len(shape) <= 1 or is_contiguous:
        flat = block.reshape(-1)
        for at in range(start, stop, limit):
            yield flat[at : min(at + limit, stop)]
        return
    row = math.prod(shape[1:])
    index = start // row
    while index * row < stop:
        low, high = max(start - index * row, 0), min(stop - index * row, row)
        rows = 1
        if low or high < row or row > limit:
            yield from chunks(block[index], low, high, limit)
        else:
            rows = min(limit // row, stop // row - index)
            yield block[index : index + rows].reshape(-1)
        index += rows
