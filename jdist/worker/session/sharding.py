"""Device meshes, process groups and sharded modules: what a save keeps of them, and how a load makes them again.

A save refers to meshes and groups by numbers in a table. A mesh of all ranks is made again for another number of ranks:
along its first dimension, as data parallelism grows.

Modules that fully_shard has sharded (FSDP2) are saved as the plain module and the calls of fully_shard. The parameters
are entries of the checkpoint. A load builds the plain module with parameters that have no memory, calls fully_shard on
its parts in the order in which it was called, and puts the loaded shards in place. What else holds a parameter, such as
an optimizer, refers to it by its name in the module.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from jdist.core.errors import UsageError
from jdist.worker.compat.sharding import fsdp_options, local_shape, parameters_of, root_mesh, without_fsdp
from jdist.worker.compat.torch import groups
from jdist.worker.session.names_pickler import NotCarried


class SavedMesh(Struct, frozen=True):
    """A mesh: of these ranks, row-major; or, if ``part_of`` is given, the dimensions ``names`` of that mesh."""

    device_type: str
    shape: tuple[int, ...]
    names: tuple[str, ...]  # Empty: it has none.
    ranks: tuple[int, ...] = ()
    part_of: int = -1

    def __str__(self) -> str:
        sizes = [f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True)] if self.names else []
        return ",".join(sizes) or "x".join(map(str, self.shape))


class MeshTable:
    """The meshes and groups of one rank, numbered in the order in which values refer to them."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._held: list[DeviceMesh] = []
        self.meshes: list[SavedMesh] = []
        self._groups: list[Any] = []
        self.groups: list[tuple[int, ...]] = []
        self.used: set[int] = set()  # Numbers of meshes that were asked for since this was emptied.

    def number(self, mesh: DeviceMesh) -> int:
        """The mesh's number; that of the mesh of which it is a part comes before it."""
        for number, held in enumerate(self._held):
            if held is mesh or held == mesh:
                self.used.add(number)
                return number
        root, names = root_mesh(mesh), tuple(mesh.mesh_dim_names or ())
        shape = tuple(mesh.mesh.shape)
        if root is mesh:
            saved = SavedMesh(mesh.device_type, shape, names, tuple(mesh.mesh.flatten().tolist()))
        else:
            saved = SavedMesh(mesh.device_type, shape, names, part_of=self.number(root))
        self._held.append(mesh)
        self.meshes.append(saved)
        self.used.add(len(self._held) - 1)
        return len(self._held) - 1

    def ranks_of(self, number: int) -> tuple[int, ...]:
        """The ranks of a mesh, as this rank sees it."""
        return tuple(sorted(self._held[number].mesh.flatten().tolist()))

    def group_number(self, group: Any) -> int:
        """A group's number. Raises TypeError for a group that is gone."""
        for number, held in enumerate(self._groups):
            if held is group:
                return number
        ranks = next((members for known, _, members in groups() if known is group), None)
        if ranks is None:
            raise TypeError("the process group is gone")
        self._groups.append(group)
        self.groups.append(() if group is dist.group.WORLD else ranks)
        return len(self._groups) - 1


def resized(mesh: SavedMesh, saved_size: int, world_size: int, own: DeviceMesh | None) -> tuple[int, ...]:
    """The shape of a mesh in a world of another size; ``own`` is the mesh that the session has under that name.

    Raises UsageError if the shape cannot be derived.
    """
    if len(mesh.ranks) < saved_size:
        if max(mesh.ranks) < world_size:
            return mesh.shape
        raise UsageError(f"the mesh {mesh} is of ranks {mesh.ranks}, and the world has {world_size} ranks")
    if own is not None and tuple(own.mesh_dim_names or ()) == mesh.names and own.size() == world_size:
        return tuple(own.mesh.shape)
    rest = math.prod(mesh.shape[1:])
    if world_size % rest:
        sizes = ",".join(f"{name}=…" for name in mesh.names) or "a mesh of the same dimensions"
        raise UsageError(
            f"the mesh {mesh} cannot be made of {world_size} ranks with its other dimensions as they are; "
            f"make one with these names first ({sizes})"
        )
    return (world_size // rest, *mesh.shape[1:])


def make_meshes(
    saved: Sequence[SavedMesh], wanted: Mapping[int, str], saved_size: int, own: DeviceMesh | None
) -> tuple[dict[int, DeviceMesh], list[str]]:
    """The meshes of a save, by number, and what was decided. Call it on every rank, in the same order.

    ``wanted`` are the numbers of those that are needed, with the names that need them. Raises UsageError, on every
    rank, for a mesh that cannot be made of this world's ranks.
    """
    world_size = dist.get_world_size()
    made: dict[int, DeviceMesh] = {}
    decisions = []
    for number in sorted({*wanted, *(saved[number].part_of for number in wanted)} - {-1}):
        mesh = saved[number]
        if mesh.part_of >= 0:
            made[number] = made[mesh.part_of][mesh.names]
            continue
        try:
            shape = resized(mesh, saved_size, world_size, own)
        except UsageError as e:
            parts = [text for n, text in wanted.items() if n == number or saved[n].part_of == number]
            raise UsageError(f"{', '.join(dict.fromkeys(parts))}: {e}") from None
        if shape != mesh.shape:
            decisions.append(f"the mesh {mesh} is {SavedMesh('', shape, mesh.names)} here")
        made[number] = _make(mesh, shape, own)
    return made, decisions


def _make(mesh: SavedMesh, shape: tuple[int, ...], own: DeviceMesh | None) -> DeviceMesh:
    device_type = mesh.device_type if mesh.device_type != "cuda" or torch.cuda.is_available() else "cpu"
    whole = tuple(range(math.prod(shape)))
    ranks = whole if shape != mesh.shape else mesh.ranks
    if own is not None and own.device_type == device_type and tuple(own.mesh_dim_names or ()) == mesh.names:
        has_ranks = tuple(own.mesh.shape) == shape and tuple(own.mesh.flatten().tolist()) == ranks
        if has_ranks:
            return own
    if ranks == whole and len(whole) == dist.get_world_size():
        return init_device_mesh(device_type, shape, mesh_dim_names=mesh.names or None)
    return DeviceMesh(device_type, torch.tensor(ranks, device="cpu").reshape(shape), mesh_dim_names=mesh.names or None)


def make_groups(saved: Sequence[tuple[int, ...]]) -> list[Any]:
    """The groups of a save: the world, those that this world has already, and new ones. Call it on every rank.

    None for a group with ranks that this world does not have.
    """
    known = {ranks: group for group, _, ranks in groups()}
    made = []
    for ranks in saved:
        if not ranks:
            made.append(dist.group.WORLD)
        elif max(ranks) >= dist.get_world_size():
            made.append(None)
        else:
            made.append(known.get(ranks) or dist.new_group(list(ranks)))
    return made


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
