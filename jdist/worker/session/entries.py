"""Entries: a session's tensors as its torch checkpoint holds them, by name; the pickles beside it refer to the names.

Equal tensors of all ranks are one entry, a DTensor's shards are one entry, and everything else is an entry for each
rank. A tensor that shares its memory with others, or that torch builds from other tensors, is not an entry itself, but
its memory is.
"""

import concurrent.futures
import os
from collections.abc import Collection, Mapping

import torch
from msgspec import Struct
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from jdist.core.errors import UsageError
from jdist.core.quantities import format_bytes
from jdist.worker.compat.sharding import local_shape, placement_of, placement_text
from jdist.worker.session.memory import free_memory
from jdist.worker.session.sharding import MeshTable
from jdist.worker.variables.digests import digests

_HASHING = 4  # Threads, at most, that compute digests.


class Entry(Struct, frozen=True):
    """How to make room for an entry. ``shape`` and ``stride`` are those of the whole tensor, in elements."""

    label: str  # Its name on this rank; its key in the checkpoint says which ranks share it, too.
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str  # "own": the rank's device.
    is_memory: bool = False  # The memory of tensors: its bytes, as uint8.
    mesh: int = -1  # A DTensor's mesh, by its number in the rank's table.
    placements: tuple[str, ...] = ()  # A DTensor's, such as "Shard(0)".

    @property
    def nbytes(self) -> int:
        """The size of the whole in bytes."""
        count = 1
        for size in self.shape:
            count *= size
        return count * dtype_of(self.dtype).itemsize


class Entries:
    """The entries of one rank as they are collected, with the tensors themselves."""

    def __init__(self, own_device: torch.device, meshes: MeshTable) -> None:
        self._own = own_device
        self._meshes = meshes
        self.tensors: dict[str, torch.Tensor] = {}
        self.notes: dict[str, Entry] = {}

    def add(self, label: str, tensor: torch.Tensor) -> str:
        """Take in a tensor or a DTensor; the label under which it is known, which may get a number."""
        label = self._free(label)
        mesh = -1
        placements: tuple[str, ...] = ()
        if isinstance(tensor, DTensor):
            mesh, placements = self._meshes.number(tensor.device_mesh), tuple(map(placement_text, tensor.placements))
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.notes[label] = Entry(
            label,
            dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            self._device(tensor.device),
            mesh=mesh,
            placements=placements,
        )
        self.tensors[label] = tensor.detach()
        return label

    def add_memory(self, label: str, storage: torch.UntypedStorage) -> str:
        """Take in the memory of tensors."""
        label = self._free(label)
        nbytes = storage.nbytes()
        self.notes[label] = Entry(label, "uint8", (nbytes,), (1,), self._device(storage.device), is_memory=True)
        self.tensors[label] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return label

    def forget(self, label: str) -> None:
        """Leave an entry out."""
        del self.tensors[label], self.notes[label]

    def _free(self, label: str) -> str:
        number, wanted = 1, label
        while label in self.notes:
            number += 1
            label = f"{wanted}#{number}"
        return label

    def _device(self, device: torch.device) -> str:
        is_own = device.type == self._own.type and device.index in (None, self._own.index)
        return "own" if is_own and device.type != "cpu" else str(device)

    def check_memory(self, labels: Collection[str]) -> None:
        """Raise UsageError without the memory for copies of these entries."""
        parts = [_part(self.tensors[label]) for label in labels]
        needed = sum(part.numel() * part.element_size() for part in parts)
        free = free_memory() // _local_world_size()
        if needed > free:
            raise UsageError(
                f"copying the values takes {format_bytes(needed)}, and {format_bytes(max(free, 0))} of memory are "
                "free for this rank; save fewer names"
            )

    def copy(self, label: str) -> torch.Tensor:
        """A copy of an entry on the CPU with the same strides, of a DTensor this rank's part."""
        part = _part(self.tensors[label])
        return torch.empty_strided(part.size(), part.stride(), dtype=part.dtype, device="cpu").copy_(part.detach())

    def digests(self) -> dict[str, str]:
        """A digest of each entry that is no DTensor."""
        plain = [label for label, tensor in self.tensors.items() if not isinstance(tensor, DTensor)]
        threads = max(1, min(_HASHING, (os.cpu_count() or 1) // _local_world_size()))
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            return dict(zip(plain, pool.map(lambda label: digests(self.tensors[label])[0][2], plain), strict=True))


def _local_world_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def allocate(entry: Entry, meshes: Mapping[int, DeviceMesh], own_device: torch.device) -> torch.Tensor:
    """Room for an entry on this rank: a tensor on the CPU to be filled, or a DTensor's part of it."""
    dtype = dtype_of(entry.dtype)
    if entry.mesh < 0:
        return torch.empty_strided(entry.shape, entry.stride, dtype=dtype, device="cpu")
    mesh, placements = meshes[entry.mesh], [placement_of(text) for text in entry.placements]
    device = own_device if mesh.device_type == own_device.type else torch.device("cpu")
    part = torch.empty(local_shape(entry.shape, mesh, placements), dtype=dtype, device=device)
    shape, stride = torch.Size(entry.shape), entry.stride
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def placed(entry: Entry, tensor: torch.Tensor, own_device: torch.device) -> torch.Tensor:
    """The filled tensor, where the saved one was; on the CPU if there is no such device."""
    if entry.mesh >= 0:
        return tensor
    device = own_device if entry.device == "own" else torch.device(entry.device)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        device = own_device
    return tensor.to(device) if device.type != "cpu" else tensor


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name such as "float32"."""
    found: torch.dtype = getattr(torch, name)
    return found
