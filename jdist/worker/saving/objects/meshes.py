"""Device meshes and process groups: a save refers to them by numbers in a table, and a load makes them again.

A mesh of all ranks is made again for another number of ranks: along its first dimension, as data parallelism grows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from jdist.core.errors import UsageError
from jdist.worker.compat.sharding import root_mesh
from jdist.worker.compat.torch import groups


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
