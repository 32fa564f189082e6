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
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from ipykernel.iostream import OutStream
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell
from msgspec import Struct
from torch.nn.parallel import DistributedDataParallel

from jdist.wire.values import arrays
from jdist.wire.values.objects import reduce_code
from jdist.worker.compat.torch import storage_id, untyped_storage
from jdist.worker.groups import rebind
from jdist.worker.session import rebuild

_being_read: set[torch.device] = set()  # Devices that a thread is reading now; if one hangs, its thread never returns.
_FUNCTION = ("__defaults__", "__kwdefaults__", "__dict__", "__annotations__", "__doc__", "__qualname__", "__module__")


class NotCarried(Exception):
    """A name cannot be handed over, because it is useless without this part."""


class Buffer(Struct, frozen=True):
    """Memory beside the pickle. ``view`` gives its bytes when it is written."""

    nbytes: int
    view: Callable[[], memoryview]
    name: str  # The first name that refers to it.


class Loss(Struct, frozen=True):
    """A part of a name's value that is lost."""

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
        except (Exception, SystemExit) as e:  # __reduce_ex__ and __getstate__ of any class
            why = "saving it raised SystemExit" if isinstance(e, SystemExit) else str(e)
            self.losses.append(Loss(self.name, obj, why))
            return rebuild.lost, (type(obj).__name__,)

    def _reduce(self, obj: Any) -> Any:
        kind = type(obj)
        if isinstance(obj, torch.Tensor | torch.UntypedStorage | torch.storage.TypedStorage):
            return self._memory(obj)
        if kind is FunctionType and obj.__globals__ is self._namespace:
            return _function(obj)
        if arrays.is_array(obj):
            note, view = arrays.take_apart(obj)
            return rebuild.array, (self._number(view.nbytes, lambda: view), note)
        if isinstance(obj, type | FunctionType | ModuleType):
            return super().reducer_override(obj)
        reducer = _special(obj) or self.dispatch_table.get(kind)
        return obj.__reduce_ex__(5) if reducer is None else reducer(obj)

    def _memory(self, obj: Any) -> Any:
        if isinstance(obj, torch.UntypedStorage):
            return self._storage(obj)
        if isinstance(obj, torch.storage.TypedStorage):
            return rebuild.typed, (untyped_storage(obj), obj.dtype)
        self._check_device(obj.device)
        return _tensor(obj)

    def _storage(self, obj: torch.UntypedStorage) -> Any:
        device, nbytes = str(obj.device), obj.nbytes()
        if device == "meta":
            raise TypeError("it has no elements")
        key = storage_id(obj)
        if key not in self._storages:
            self._storages[key] = self._number(nbytes, lambda: rebuild.storage_view(obj.cpu()))
        return rebuild.storage, (self._storages[key], nbytes, device)

    def _check_device(self, device: torch.device) -> None:
        """After a fault on a GPU its memory cannot be read any more, and a hang keeps it busy. Raises NotCarried."""
        if device.type in ("cpu", "meta") or device in self._readable:
            return
        if device in _being_read:
            raise NotCarried(f"it is on {device}, which does not answer")
        _being_read.add(device)
        try:
            torch.zeros(1, device=device).cpu()
        except RuntimeError as e:
            raise NotCarried(f"it is on {device}, which cannot be read: {str(e).splitlines()[0]}") from e
        finally:
            _being_read.discard(device)
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


def _special(obj: Any) -> Callable[[Any], Any] | None:
    """How an object is handed over that cannot be pickled, or whose pickle is of no use."""
    kind = type(obj)
    if kind in _REDUCERS:
        return _REDUCERS[kind]
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(obj, fsdp.FSDPModule | fsdp.FullyShardedDataParallel):
        raise TypeError("one rank alone cannot shard it again")
    return next((reducer for base, reducer in _REDUCERS_OF_ANY.items() if isinstance(obj, base)), None)


def _ddp(wrapped: Any) -> Any:
    if rebind.is_special_ddp(wrapped):
        raise TypeError("it has a communication hook or mixed precision of DDP's own")
    return rebuild.wrapped_in_ddp, (wrapped.module, rebind.ddp_options(wrapped), wrapped.training)


def _file(file: io.IOBase) -> Any:
    if isinstance(file, io.BytesIO | io.StringIO):
        return file.__reduce_ex__(5)
    raise TypeError("")  # cloudpickle would carry the content of an open file


def _refuse(_: Any) -> Any:
    raise TypeError("")


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    CellType: _cell,
    CodeType: reduce_code,
    OutStream: lambda stream: (rebuild.stream, (stream.name,)),
    type(threading.Lock()): lambda _: (threading.Lock, ()),
    type(threading.RLock()): lambda _: (threading.RLock, ()),
    threading.local: lambda _: (threading.local, ()),
}
_REDUCERS_OF_ANY: dict[type, Callable[[Any], Any]] = {
    dist.ProcessGroup: lambda group: (rebuild.group, (str(group.group_name),)),
    DistributedDataParallel: _ddp,
    InteractiveShell: lambda _: (get_ipython, ()),
    threading.Thread: _refuse,
    io.IOBase: _file,
}
