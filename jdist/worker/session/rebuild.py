"""Rebuilding what a process handed over: the functions to which its pickles refer, called while names are loaded.

Numbers in them count the buffers that came beside the pickles.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from jdist.wire.values import arrays
from jdist.worker.compat.torch import resolve_group, typed_storage
from jdist.worker.groups import rebind


class LostValue:
    """Takes the place of a part that could not be carried over, such as a generator inside of an object."""

    def __init__(self, kind: str):
        self.__dict__["_kind"] = kind

    @property
    def kind(self) -> str:
        """What it was."""
        return str(self.__dict__.get("_kind", "value"))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self!r} has no {name!r}")

    def __repr__(self) -> str:
        return f"<a {self.kind} that was lost when this rank was started again>"


class _Loading(threading.local):
    """What the functions below need while this thread loads names."""

    namespace: dict[str, Any]
    read: Callable[[int, memoryview], None]  # Reads the buffer of this number.
    storages: dict[int, torch.UntypedStorage]


_now = _Loading()


@contextlib.contextmanager
def loading(namespace: dict[str, Any], read: Callable[[int, memoryview], None]) -> Iterator[None]:
    """Within this context names may be loaded on this thread, into ``namespace``."""
    _now.namespace, _now.read, _now.storages = namespace, read, {}
    try:
        yield
    finally:
        del _now.namespace, _now.read, _now.storages


def lost(kind: str) -> LostValue:
    """What takes the place of a part of this kind."""
    return LostValue(kind)


# ---------------------------------------------------------------- functions of cells


def make_function(code: CodeType, name: str, closure: tuple[CellType, ...] | None) -> FunctionType:
    """A function of the namespace; its defaults and attributes follow, as they may refer to it."""
    return FunctionType(code, _now.namespace, name, None, closure)


def fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    """Set what follows of a function."""
    for name, value in state.items():
        setattr(function, name, value)


def fill_cell(cell: CellType, content: tuple[Any]) -> None:
    """Set the content of a variable that functions share."""
    cell.cell_contents = content[0]


# ---------------------------------------------------------------- tensors and arrays


def storage(number: int, nbytes: int, device: str) -> torch.UntypedStorage:
    """A tensor's memory: the same for all tensors that shared it."""
    if number not in _now.storages:
        made = torch.UntypedStorage(nbytes)
        if nbytes:
            _now.read(number, storage_view(made))
        _now.storages[number] = made if device == "cpu" else torch.UntypedStorage(nbytes, device=device).copy_(made)
    return _now.storages[number]


def storage_view(of: torch.UntypedStorage) -> memoryview:
    """The bytes of a storage on the CPU."""
    import ctypes

    memory = (ctypes.c_ubyte * of.nbytes()).from_address(of.data_ptr())
    memory.storage = of  # type: ignore[attr-defined]  # keeps the memory as long as the view
    return memoryview(memory).cast("B")


def typed(of: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """The storage as pickles of tensors refer to it."""
    return typed_storage(of, dtype)


def with_gradient(make: Callable[..., torch.Tensor], args: tuple[Any, ...], grad: torch.Tensor) -> torch.Tensor:
    """The tensor that ``make`` makes, with its gradient."""
    tensor = make(*args)
    tensor.grad = grad
    return tensor


def array(number: int, note: arrays.ArrayNote) -> Any:
    """A numpy array."""
    memory = bytearray(arrays.nbytes(note))
    if memory:
        _now.read(number, memoryview(memory))
    return arrays.put_together(note, memory)


# ---------------------------------------------------------------- the rank's own


def stream(name: str) -> Any:
    """The rank's standard output or error."""
    return getattr(sys, name)


# ---------------------------------------------------------------- groups


def group(name: str) -> Any:
    """The handle of the group of this name in the present world."""
    try:
        return resolve_group(name)
    except (RuntimeError, ValueError, KeyError):
        return LostValue("process group that is gone")


def wrapped_in_ddp(module: Any, options: dict[str, Any], is_training: bool) -> Any:
    """A module that was wrapped in DistributedDataParallel; every rank begins anew with its buckets now."""
    wrapped = rebind.wrap_ddp(module, options)
    wrapped.training = is_training
    return wrapped
