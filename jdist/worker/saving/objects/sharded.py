"""Modules that fully_shard has sharded (FSDP2): saved as the plain module and the calls of fully_shard, made again.

The parameters are entries of the checkpoint. A load builds the plain module with parameters that have no memory, calls
fully_shard on its parts in the order in which it was called, and puts the loaded shards in place. What else holds a
parameter, such as an optimizer, refers to it by its name in the module.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from jdist.worker.compat.sharding import fsdp_options, local_shape, parameters_of, without_fsdp
from jdist.worker.handover.pickler import NotCarried


class Parameter(Struct, frozen=True):
    """A parameter of a sharded module, instead of the tensor. ``name`` is its first in the root module."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


class ShardingCall(Struct, frozen=True):
    """One call of fully_shard: the module's name in the root, and the options."""

    name: str
    options: dict[str, Any]
    placements: dict[str, int]  # The dimension along which each parameter is sharded, by its name in the root.
    # Mesh and placements that parameters had before, if they were DTensors (tensor parallelism), by the same names.
    tensor_parallel: dict[str, tuple[Any, tuple[Any, ...]]]


class ShardedRoots:
    """The sharded modules that values refer to, each with the modules and parameters in it."""

    def __init__(self, found: Iterable[Any]) -> None:
        modules = list(found)
        inner = {id(sub) for module in modules for sub in module.modules() if sub is not module}
        self._roots = {id(module): module for module in modules if id(module) not in inner}
        self._calls: dict[int, list[ShardingCall] | str] = {}
        self._parameters: dict[int, tuple[Any, str]] = {}
        self._parts: set[int] = set()
        for root in self._roots.values():
            for part in root.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()
                self._parts.add(id(part))
            self._calls[id(root)] = _calls(root)
            for name, parameter in root.named_parameters():
                self._parameters[id(parameter)] = root, name

    def is_root(self, obj: Any) -> bool:
        return id(obj) in self._roots

    def is_part(self, obj: Any) -> bool:
        return id(obj) in self._parts

    def place(self, parameter: Any) -> tuple[Any, str] | None:
        """The root module of a parameter, and its name there. Raises NotCarried if the root cannot be made again."""
        found = self._parameters.get(id(parameter))
        if found is not None:
            self.calls(found[0])
        return found

    def parameters(self, root: Any) -> dict[str, torch.Tensor]:
        return dict(root.named_parameters())

    def plain(self, module: Any) -> tuple[type, dict[str, Any]]:
        """The class and the attributes of a part as it was before fully_shard, without its parameters' tensors."""
        kind = type(module)
        if isinstance(module, FSDPModule):
            kind = next(c for c in kind.__mro__[1:] if c is not FSDPModule)
        state = without_fsdp(module.__dict__)
        state["_parameters"] = {
            name: None if p is None else Parameter(self._name(p), tuple(p.shape), p.dtype, p.requires_grad)
            for name, p in parameters_of(module).items()
        }
        return kind, state

    def _name(self, parameter: Any) -> str:
        return self._parameters[id(parameter)][1]

    def calls(self, root: Any) -> list[ShardingCall]:
        """The calls of fully_shard, inner modules first. Raises NotCarried."""
        calls = self._calls[id(root)]
        if isinstance(calls, str):
            raise NotCarried(calls)
        return calls


def _calls(root: Any) -> list[ShardingCall] | str:
    """The calls of fully_shard, or why they cannot be repeated."""
    names = {id(module): name for name, module in root.named_modules()}
    calls = []
    for name, module in reversed(list(root.named_modules())):
        try:
            options = fsdp_options(module) if isinstance(module, FSDPModule) else None
        except TypeError as e:
            return str(e)
        if options is None:
            continue
        placements, before = (
            {".".join(filter(None, (names[id(owner)], own))): what for (owner, own), what in options.pop(key).items()}
            for key in ("placements", "tensor_parallel")
        )
        calls.append(ShardingCall(name, options, placements, before))
    mesh = next((call.options["mesh"] for call in calls if call.options["mesh"] is not None), None)
    for call in calls:
        call.options["mesh"] = call.options["mesh"] or mesh
    return calls


def shard(root: nn.Module, calls: list[ShardingCall], loaded: dict[str, torch.Tensor]) -> nn.Module:
    """Shard a plain module as it was; ``loaded`` are its shards, by name."""
    _make_parameters(root, {name: what for call in calls for name, what in call.tensor_parallel.items()})
    for call in calls:
        module = root.get_submodule(call.name)
        dims = {id(root.get_parameter(name)): dim for name, dim in call.placements.items()}
        fully_shard(module, **call.options, shard_placement_fn=_placing(dims))
    root.load_state_dict(loaded, strict=False, assign=True)
    return root


def _placing(dims: dict[int, int]) -> Callable[[nn.Parameter], Shard]:
    return lambda parameter: Shard(dims.get(id(parameter), 0))


def _make_parameters(root: nn.Module, before: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Parameters without memory, as they were ``before`` fully_shard; one that two modules share is one again."""
    made: dict[str, nn.Parameter] = {}
    for module in root.modules():
        for own, note in list(parameters_of(module).items()):
            if isinstance(note, Parameter):
                if note.name not in made:
                    made[note.name] = nn.Parameter(_without_memory(note, before.get(note.name)), note.requires_grad)
                parameters_of(module)[own] = made[note.name]


def _without_memory(note: Parameter, before: tuple[Any, tuple[Any, ...]] | None) -> torch.Tensor:
    if before is None:
        return torch.empty(note.shape, dtype=note.dtype, device="meta")
    mesh, placements = before
    part = torch.empty(local_shape(note.shape, mesh, placements), dtype=note.dtype, device="meta")
    whole = torch.empty(note.shape, device="meta")
    shape, stride = whole.size(), whole.stride()
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
