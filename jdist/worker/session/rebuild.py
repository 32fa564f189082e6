"""Rebuilding: the functions to which pickles of a rank's names refer, called while the names are loaded.

Both kinds of pickles refer to functions of cells. What a process hands over has its tensors in buffers beside the
pickles, which numbers in the pickles count. A save has them in a checkpoint, in which labels name its entries. A save
that is loaded by another version calls these functions by their names: who renames one raises the format in
`jdist.core.messages.saving`.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from jdist.wire.values import arrays
from jdist.worker.compat.torch import resolve_group, typed_storage
from jdist.worker.groups import rebind

if TYPE_CHECKING:
    from jdist.worker.session.sharding import ShardingCall


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


def lost(kind: str) -> LostValue:
    """What takes the place of a part of this kind."""
    return LostValue(kind)


class _Loading(threading.local):
    """What functions of cells, and of what was handed over, need while this thread loads names."""

    namespace: dict[str, Any]
    read: Callable[[int, memoryview], None]  # Reads the buffer of this number.
    storages: dict[int, torch.UntypedStorage]


_now = _Loading()


@contextlib.contextmanager
def loading(namespace: dict[str, Any], read: Callable[[int, memoryview], None]) -> Iterator[None]:
    """Within this context names may be loaded on this thread, into ``namespace``; ``read`` fills a buffer."""
    _now.namespace, _now.read, _now.storages = namespace, read, {}
    try:
        yield
    finally:
        del _now.namespace, _now.read, _now.storages


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


# ---------------------------------------------------------------- what a process has handed over: tensors and arrays


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


# ---------------------------------------------------------------- what a process has handed over: the rank's own


def stream(name: str) -> Any:
    """The rank's standard output or error."""
    return getattr(sys, name)


# ---------------------------------------------------------------- what a process has handed over: groups


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


# ---------------------------------------------------------------- what a save has written


class _LoadingSave(threading.local):
    """What the functions below need while this thread loads a save."""

    entries: Mapping[str, torch.Tensor]  # By label, filled.
    meshes: Mapping[int, Any]
    groups: Sequence[Any]


_save = _LoadingSave()


@contextlib.contextmanager
def loading_save(
    entries: Mapping[str, torch.Tensor], meshes: Mapping[int, Any], groups: Sequence[Any]
) -> Iterator[None]:
    """Within this context, and in that of :func:`loading`, the pickles of a save may be loaded on this thread."""
    _save.entries, _save.meshes, _save.groups = entries, meshes, groups
    try:
        yield
    finally:
        del _save.entries, _save.meshes, _save.groups


def nothing() -> None:
    """What a survey pickles in place of what is saved elsewhere."""


def tensor(label: str, kind: type, requires_grad: bool) -> torch.Tensor:
    """An entry, as a tensor or a parameter."""
    found = _save.entries[label]
    return nn.Parameter(found, requires_grad) if kind is nn.Parameter else found.requires_grad_(requires_grad)


def complete(made: torch.Tensor, state: tuple[torch.Tensor | None, dict[str, Any] | None]) -> None:
    """Give a tensor its gradient and its attributes."""
    grad, attributes = state
    made.grad = grad
    made.__dict__.update(attributes or {})


def memory(label: str) -> torch.UntypedStorage:
    """The memory of tensors that share it."""
    return _save.entries[label].untyped_storage()


def mesh(number: int) -> Any:
    """A device mesh of this world."""
    return _save.meshes[number]


def group_of_save(number: int) -> Any:
    """A process group of this world."""
    found = _save.groups[number]
    return LostValue("process group of ranks that this world does not have") if found is None else found


def wrapped_in_ddp_of_save(module: Any, options: dict[str, Any], members: Any, is_training: bool) -> Any:
    """DDP around a module, on every rank of its group."""
    wrapped = rebind.wrap_ddp(module, {**options, "process_group": str(members.group_name)})
    wrapped.training = is_training
    return wrapped


def plain_module(kind: type[nn.Module]) -> nn.Module:
    """A module without attributes; they follow."""
    return kind.__new__(kind)


def fill_module(module: nn.Module, state: dict[str, Any]) -> None:
    """Set a module's attributes."""
    module.__dict__.update(state)


def sharded_module(plain: nn.Module, calls: "list[ShardingCall]", shards: dict[str, str]) -> nn.Module:
    """A module sharded by fully_shard as it was; ``shards`` are the labels of its parameters, by name."""
    from jdist.worker.session import sharding  # only here: it imports torch.distributed.tensor, which takes time

    loaded = {name: _save.entries[label] for name, label in shards.items()}
    return sharding.shard(plain, calls, loaded)


def sharded_parameter(root: nn.Module, name: str) -> nn.Parameter:
    """A parameter of a sharded module, to which something else refers."""
    return root.get_parameter(name)
