"""The picklers of a save: as that of a handover, but for another process, another day and another number of ranks.

Tensors become entries (see entries.py), groups and meshes numbers in a table, FSDP2 modules their plain modules. What
depends on this process alone is replaced, so that equal values have equal pickles on all ranks:

- The files of cells, and the ids of classes.
- Hooks of modules: torch numbers them by a counter of the process. In a save, the hooks of a unit are numbered in the
  order in which they are met.

Sets need nothing, because all ranks hash strings alike (see PYTHONHASHSEED in jdist/agent/processes/starter.py). One of
elements that are hashed by their address, such as classes, may differ between nodes.

The code of functions is saved as bytecode for the Python that wrote it, and as source for any other: bytecode is
different in each minor version of Python, and running that of another one crashes the process.
"""

import ast
import copyreg
import functools
import io
import linecache
import logging
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import Enum
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from jdist.core.errors import UsageError
from jdist.wire.values import arrays
from jdist.wire.values.objects import make_code, reduce_code
from jdist.worker.compat.sharding import placement_text, without_fsdp
from jdist.worker.compat.torch import storage_id
from jdist.worker.groups import rebind
from jdist.worker.session import rebuild
from jdist.worker.session.entries import Entries
from jdist.worker.session.names_pickler import NamesPickler
from jdist.worker.session.sharding import MeshTable, ShardedRoots

_ATTRIBUTES = frozenset(name for name, value in vars(nn.Module()).items() if type(value) is OrderedDict)


class HookNumbers:
    """The numbers of one unit's hooks."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._hooks: dict[int, OrderedDict[int, Any]] = {}  # Dicts of hooks by their id; held, so that it stays theirs.

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Attributes of a module, among them its dicts of hooks."""
        self._hooks.update((id(value), value) for name, value in attributes.items() if name in _ATTRIBUTES)

    def reduce(self, obj: Any) -> Any:
        """How a dict of hooks, or a handle of one, is pickled; None for anything else."""
        if type(obj) is OrderedDict and id(obj) in self._hooks:
            return OrderedDict, (), None, None, iter([(self._number(key), hook) for key, hook in obj.items()])
        if type(obj) is RemovableHandle:
            hooks, number, flags = obj.__getstate__()
            self._hooks.update((id(each), each) for each in (hooks, *flags) if each is not None)
            state = (hooks, self._number(number), flags)
            return copyreg.__newobj__, (RemovableHandle,), state  # type: ignore[attr-defined]
        return None

    def _number(self, hook: int) -> int:
        return self._numbers.setdefault(hook, len(self._numbers))


_VERSION = sys.version_info[:2]
_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")  # Functions in Python 3.11; later a part of those around them.

_Place = tuple[str, int, tuple[str, ...]]  # A function's qualified name, first line and arguments.


def reduce(code: CodeType, filename: str) -> Any:
    """What the reducer of a pickler returns for a code object, whose file is to be called ``filename``."""
    source = "".join(linecache.getlines(code.co_filename))
    _, args = reduce_code(code.replace(co_filename=filename))
    return make, (_VERSION, sys.intern(source), _place_of(code), args)


def make(version: tuple[int, int], source: str, place: _Place, args: tuple[Any, ...]) -> CodeType | None:
    """The code object; called as it is unpickled. Raises UsageError if it cannot be had in this Python."""
    if version == _VERSION:
        return make_code(*args)
    name, line, _ = place
    try:
        found = [code for code in _compiled(source, args[2]) if _place_of(code) == place]
    except (SyntaxError, ValueError):
        found = []
    if len(found) == 1:
        return found[0]
    if name.endswith(_INLINED):
        return None
    wrote, here = ".".join(map(str, version)), ".".join(map(str, _VERSION))
    why = f"line {line} has {len(found)} such functions" if found else "its source was not saved"
    raise UsageError(f"{name} is code of Python {wrote}, which Python {here} cannot run, and {why}")


def _place_of(code: CodeType) -> _Place:
    return code.co_qualname, code.co_firstlineno, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


@functools.lru_cache(maxsize=64)
def _compiled(source: str, filename: str) -> tuple[CodeType, ...]:
    """The functions in a source."""
    code = compile(source, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return tuple(_within(code))


def _within(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _within(const)


# Objects of these kinds may be shared by names that have nothing to do with each other.
_WITHOUT_IDENTITY = (
    type(None), bool, int, float, complex, str, bytes, tuple, type, types.ModuleType, types.CodeType,
    types.BuiltinFunctionType, types.FunctionType, Enum, logging.Logger, torch.dtype, torch.device, torch.layout,
    torch.memory_format, dist.ProcessGroup, DeviceMesh,
)  # fmt: skip
_CLASS_ID = re.compile(r"[0-9a-f]{32}")  # By which cloudpickle knows a class again, random in each process.
_CELL_FILE = re.compile(r"ipykernel_\d+")  # The folder in the name of a cell's file.


class _SessionPickler(NamesPickler):
    """What both picklers below have in common."""

    def __init__(self, file: Any, namespace: dict[str, Any], meshes: MeshTable):
        super().__init__(file, namespace)
        self._meshes = meshes

    def _reduce(self, obj: Any) -> Any:
        if arrays.is_array(obj):
            return obj.__reduce_ex__(5)
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj)
        if isinstance(obj, torch.device):
            return super()._reduce(obj)
        if isinstance(obj, DeviceMesh):
            return rebuild.mesh, (self._meshes.number(obj),)
        if isinstance(obj, dist.ProcessGroup):
            return rebuild.group_of_save, (self._meshes.group_number(obj),)
        if isinstance(obj, DistributedDataParallel):
            return _ddp(obj)
        if isinstance(obj, types.CodeType):
            return reduce(obj, cell_file(obj.co_filename))
        if isinstance(obj, torch.nn.Module) and (reduced := self._module(obj)) is not None:
            return reduced
        return super()._reduce(obj)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        """A tensor: as an entry, or :meth:`_by_memory`."""
        raise NotImplementedError

    def _by_memory(self, tensor: torch.Tensor) -> Any:
        """A tensor as torch builds it from its memory, or from other tensors."""
        return super()._reduce(tensor)

    def _module(self, module: torch.nn.Module) -> Any:
        """A module that fully_shard has changed; None for others."""
        raise NotImplementedError


class Survey(_SessionPickler):
    """Pickles one name to nowhere, to find out what it shares with other names, and whether it can be saved."""

    def __init__(self, name: str, namespace: dict[str, Any], meshes: MeshTable):
        super().__init__(_Nowhere(), namespace, meshes)
        self.name = name
        self.parts: set[Any] = set()  # Of objects and memory that other names may refer to as well.
        self.views: dict[int, set[int]] = {}  # Tensors by the memory that they use.
        self.sharded: list[Any] = []  # Modules that fully_shard has changed.
        self.has_training_state = False  # Whether there are modules, optimizers or DTensors in it.

    def persistent_id(self, obj: Any) -> None:
        """Called for every object; none is pickled by an id."""
        if isinstance(obj, _WITHOUT_IDENTITY):
            return
        self.parts.add(id(obj))

    def _reduce(self, obj: Any) -> Any:
        if isinstance(obj, torch.nn.Module | torch.optim.Optimizer | DTensor):
            self.has_training_state = True
        return super()._reduce(obj)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, DTensor):
            self._meshes.number(tensor.device_mesh)
            for placement in tensor.placements:
                placement_text(placement)
        elif not _is_plain(tensor):
            return self._by_memory(tensor)
        else:
            self._note_memory(tensor.untyped_storage(), tensor)
        grad = tensor.grad if tensor.is_leaf else None
        return rebuild.nothing, (), (grad, _attributes(tensor))

    def _storage(self, obj: torch.UntypedStorage) -> Any:
        self._note_memory(obj, obj)
        return rebuild.nothing, ()

    def _note_memory(self, storage: torch.UntypedStorage, user: object) -> None:
        key = storage_id(storage)
        self.views.setdefault(key, set()).add(id(user))
        self.parts.add(("memory", key))

    def _module(self, module: torch.nn.Module) -> Any:
        if not isinstance(module, FSDPModule):
            return None
        self.sharded.append(module)
        return rebuild.nothing, (), without_fsdp(module.__dict__)


class UnitPickler(_SessionPickler):
    """Pickles the names of a unit, one after the other (set ``name``, call ``dump(value)``), and collects entries.

    ``shared`` is the memory of which several tensors are views. ``labels`` are the entries' names, by the tensor's id.
    """

    def __init__(
        self,
        file: Any,
        namespace: dict[str, Any],
        meshes: MeshTable,
        entries: Entries,
        roots: ShardedRoots,
        shared: set[int],
        labels: dict[int, str],
        class_ids: "ClassIds",
    ):
        super().__init__(file, namespace, meshes)
        self.labels_used: list[str] = []
        self._entries = entries
        self._roots = roots
        self._shared = shared
        self._labels = labels
        self._memories: dict[int, str] = {}
        self._hooks = HookNumbers()
        self._class_ids = class_ids

    def _reduce(self, obj: Any) -> Any:
        if isinstance(obj, torch.nn.Module):
            self._hooks.note(obj.__dict__)
        if (hooks := self._hooks.reduce(obj)) is not None:
            return hooks
        reduced = super()._reduce(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple):
            args = tuple(self._class_ids.of(obj) if _is_class_id(arg) else arg for arg in reduced[1])
            return (reduced[0], args, *reduced[2:])
        return reduced

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, torch.nn.Parameter) and (place := self._roots.place(tensor)) is not None:
            return rebuild.sharded_parameter, place
        if not isinstance(tensor, DTensor):
            if not _is_plain(tensor) or storage_id(tensor.untyped_storage()) in self._shared:
                return self._by_memory(tensor)
            self._check_device(tensor.device)
        wanted = self._labels.get(id(tensor)) or f"{self.name}.tensor"
        kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else torch.Tensor
        made = rebuild.tensor, (self._take(wanted, tensor), kind, tensor.requires_grad and tensor.is_leaf)
        grad = tensor.grad if tensor.is_leaf else None
        attributes = _attributes(tensor)
        return (*made, (grad, attributes), None, None, rebuild.complete) if grad is not None or attributes else made

    def _take(self, wanted: str, tensor: torch.Tensor) -> str:
        label = self._entries.add(wanted, tensor)
        self.labels_used.append(label)
        return label

    def _storage(self, obj: torch.UntypedStorage) -> Any:
        if str(obj.device) == "meta":
            raise TypeError("it has no elements")
        self._check_device(obj.device)
        key = storage_id(obj)
        if key not in self._memories:
            self._memories[key] = self._entries.add_memory(f"{self.name}.memory", obj)
            self.labels_used.append(self._memories[key])
        return rebuild.memory, (self._memories[key],)

    def _module(self, module: torch.nn.Module) -> Any:
        if not self._roots.is_part(module):
            return None
        if not self._roots.is_root(module):
            return self._plain(module)
        shards = {}
        for name, parameter in self._roots.parameters(module).items():
            shards[name] = self._take(f"{self._labels.get(id(module), self.name)}.{name}", parameter)
        calls = self._roots.calls(module)
        return rebuild.sharded_module, (_Plain(module), calls, shards)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _Plain:
            return self._plain(obj.module)
        return super().reducer_override(obj)

    def _plain(self, module: torch.nn.Module) -> Any:
        kind, state = self._roots.plain(module)
        self._hooks.note(state)
        return rebuild.plain_module, (kind,), state, None, None, rebuild.fill_module


class _Plain:
    """Stands for a root module as it was before fully_shard."""

    def __init__(self, module: torch.nn.Module):
        self.module = module


class ClassIds:
    """Ids for the classes of a save that cells defined: the same on all ranks, and in no other save."""

    def __init__(self, save: str):
        self._save = save
        self._ids: dict[type, str] = {}

    def of(self, kind: type) -> str:
        return self._ids.setdefault(kind, f"jdist {self._save} {kind.__qualname__} {len(self._ids)}")


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


def cell_file(name: str) -> str:
    """The name of a cell's file, the same on all ranks."""
    return _CELL_FILE.sub("ipykernel_saved", name)


def _is_class_id(arg: object) -> bool:
    return isinstance(arg, str) and _CLASS_ID.fullmatch(arg) is not None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be an entry: an ordinary one that has its memory for itself."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    )


def _attributes(tensor: torch.Tensor) -> dict[str, Any] | None:
    return dict(tensor.__dict__) or None


def _ddp(wrapped: Any) -> Any:
    if rebind.is_special_ddp(wrapped):
        raise TypeError("it has a communication hook or mixed precision of DDP's own")
    options = {k: v for k, v in rebind.ddp_options(wrapped).items() if k != "process_group"}
    return rebuild.wrapped_in_ddp_of_save, (wrapped.module, options, wrapped.process_group, wrapped.training)
