"""The pickler of a handover: all names of a namespace in one graph, so that what they share stays shared.

cloudpickle, with these differences. Functions of cells keep the namespace as their globals. Tensors keep gradients, and
those that share memory share it again; the memory itself, and arrays, are numbered buffers beside the pickle. Process
groups are carried by name, and DDP as what it wraps. A part that cannot be pickled at all is replaced by a placeholder
and reported; a lock is replaced by a new one, because the threads that used it have ended.
"""

import io
import sys
import threading
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from msgspec import Struct
from torch.nn.parallel import DistributedDataParallel

from jdist.wire.values import arrays
from jdist.worker.compat.torch import storage_id, untyped_storage
from jdist.worker.handover import rebuild
from jdist.worker.values import ddp

_RENEWED: dict[type, Callable[..., Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.local: threading.local,
}
_FUNCTION = ("__defaults__", "__kwdefaults__", "__dict__", "__annotations__", "__doc__", "__qualname__", "__module__")


class NotCarried(Exception):
    """Without this part the whole name is of no use."""


class Buffer(Struct, frozen=True):
    """Memory beside the pickle. ``view`` gives its bytes when it is written."""

    nbytes: int
    view: Callable[[], memoryview]
    name: str  # The first name that refers to it.


class Loss(Struct, frozen=True):
    """A part of a name's value that cannot be carried."""

    name: str
    part: Any
    why: str


class NamesPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes one name after the other to ``file``: set ``name``, then call ``dump(value)``."""

    def __init__(self, file: Any, namespace: dict[str, Any]):
        super().__init__(file, protocol=5)
        self.name = ""
        self.buffers: list[Buffer] = []
        self.losses: list[Loss] = []
        self._namespace = namespace
        self._readable: set[torch.device] = set()
        self._storages: dict[int, int] = {}  # Numbers of storages, by their address in C++.

    def reducer_override(self, obj: Any) -> Any:
        try:
            return self._reduce(obj)
        except NotCarried:
            raise
        except Exception as e:  # __reduce_ex__ and __getstate__ of any class
            self.losses.append(Loss(self.name, obj, str(e)))
            return rebuild.lost, (type(obj).__name__,)

    def _reduce(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType and obj.__globals__ is self._namespace:
            return _function(obj)
        if kind is CellType:
            return _cell(obj)
        if kind in _RENEWED:
            return _RENEWED[kind], ()
        if isinstance(obj, torch.UntypedStorage):
            return self._storage(obj)
        if isinstance(obj, torch.storage.TypedStorage):
            return rebuild.typed, (untyped_storage(obj), obj.dtype)
        if isinstance(obj, torch.Tensor):
            self._check_device(obj.device)
            return _tensor(obj)
        if arrays.is_array(obj):
            note, view = arrays.take_apart(obj)
            return rebuild.array, (self._number(view.nbytes, lambda: view), note)
        if isinstance(obj, dist.ProcessGroup):
            return rebuild.group, (str(obj.group_name),)
        if isinstance(obj, DistributedDataParallel):
            if ddp.is_special(obj):
                raise TypeError("it has a communication hook or mixed precision of DDP's own")
            return rebuild.wrapped_in_ddp, (obj.module, ddp.options_of(obj))
        if _is_fsdp(obj):
            raise TypeError("FSDP shards cannot be wrapped again by one rank")
        if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
            raise TypeError("")  # an open file: cloudpickle would carry its content
        if isinstance(obj, type | FunctionType | ModuleType):
            return super().reducer_override(obj)
        reducer = self.dispatch_table.get(kind)
        return obj.__reduce_ex__(5) if reducer is None else reducer(obj)

    def _storage(self, obj: torch.UntypedStorage) -> Any:
        device, nbytes = str(obj.device), obj.nbytes()
        if device == "meta":
            raise TypeError("it has no elements")
        key = storage_id(obj)
        if key not in self._storages:
            self._storages[key] = self._number(nbytes, lambda: rebuild.storage_view(obj.cpu()))
        return rebuild.storage, (self._storages[key], nbytes, device)

    def _check_device(self, device: torch.device) -> None:
        """After a fault on a GPU its memory cannot be read any more. Raises NotCarried."""
        if device.type in ("cpu", "meta") or device in self._readable:
            return
        try:
            torch.zeros(1, device=device).cpu()
        except RuntimeError as e:
            raise NotCarried(f"it is on {device}, which cannot be read: {str(e).splitlines()[0]}") from e
        self._readable.add(device)

    def _number(self, nbytes: int, view: Callable[[], memoryview]) -> int:
        self.buffers.append(Buffer(nbytes, view, self.name))
        return len(self.buffers) - 1


def _function(function: FunctionType) -> Any:
    """A function of a cell. What it refers to follows when it exists, for it may refer to itself."""
    made = function.__code__, function.__name__, function.__closure__
    state = {name: getattr(function, name) for name in _FUNCTION if getattr(function, name)}
    return rebuild.make_function, made, state, None, None, rebuild.fill_function


def _cell(cell: CellType) -> Any:
    """A variable that functions share. Its content follows, for that may be one of these functions."""
    try:
        content = (cell.cell_contents,)
    except ValueError:  # it has none
        return CellType, ()
    return CellType, (), content, None, None, rebuild.fill_cell


def _tensor(tensor: torch.Tensor) -> Any:
    """As torch pickles it, with its gradient. What an operation produced comes without the operation."""
    if not tensor.is_leaf:
        return tensor.detach().__reduce_ex__(5)
    reduced = tensor.__reduce_ex__(5)
    if tensor.grad is None or len(reduced) != 2:
        return reduced
    return rebuild.with_gradient, (*reduced, tensor.grad)


def _is_fsdp(obj: Any) -> bool:
    module = sys.modules.get("torch.distributed.fsdp")
    kinds = (getattr(module, name, None) for name in ("FSDPModule", "FullyShardedDataParallel"))
    return any(isinstance(obj, kind) for kind in kinds if kind is not None)
