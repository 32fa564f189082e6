"""Devices: the GPUs of a node as nvidia-smi prints them, and what a rank has of which. Pure.

Whatever the driver does not know it prints in brackets ("[N/A]", "[Not Supported]", "[Insufficient Permissions]"), and
what it cannot say at all as a line of words; both are no facts here, and no reason to doubt the other lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from jdist.core.messages.nodes import GpuUse

DEVICES = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu", "mig.mode.current")
"""What is asked of each GPU, for :func:`read_devices`."""
PROCESSES = ("gpu_uuid", "pid", "used_gpu_memory")
"""What is asked of each process that uses one, for :func:`read_processes`."""

GpuMemory = dict[int, dict[str, int]]
"""``{pid: {UUID of a GPU: bytes}}``."""


class GpuDevice(Struct, frozen=True):
    """A GPU. Sizes in bytes, 0 where the driver does not tell."""

    index: int
    uuid: str
    name: str
    total: int
    used: int
    """By anybody."""
    busy: float | None
    """Share of the last second or less in which it worked, 0 to 1."""
    is_sliced: bool
    """In MIG's slices, of which each is a device to CUDA; the sizes are the whole GPU's."""


class CudaVisibility(Struct, frozen=True):
    """How CUDA shows GPUs to this node's ranks: the variables of their environment."""

    visible: str | None
    """CUDA_VISIBLE_DEVICES; None: unset."""
    order: str = ""
    """CUDA_DEVICE_ORDER."""

    @property
    def is_blind(self) -> bool:
        """They are to see none: to CUDA the first word that names no device ends the list."""
        return self.visible is not None and not _names_device(self._tokens[0])

    @property
    def _tokens(self) -> list[str]:
        return [] if self.visible is None else [token.strip() for token in self.visible.split(",")]

    def find(self, number: int, devices: Sequence[GpuDevice]) -> GpuDevice | None:
        """What CUDA calls device ``number``; None where that cannot be told for certain.

        CUDA's guide, "CUDA Environment Variables": each is an index in CUDA's own order, the beginning of a UUID, or a
        slice: ``MIG-`` with a UUID of its own, before driver 470 with its GPU's and two numbers.
        """
        tokens = self._tokens
        if self.visible is None:
            tokens = [str(device.index) for device in devices]
        token = tokens[number] if 0 <= number < len(tokens) else ""
        if token.isdecimal():
            return next((d for d in devices if d.index == int(token)), None) if self._is_in_order(devices) else None
        if token.startswith("MIG-GPU-"):
            token = token.removeprefix("MIG-").partition("/")[0]
        found = [d for d in devices if token and d.uuid.startswith(token)]
        return found[0] if len(found) == 1 else None

    def _is_in_order(self, devices: Sequence[GpuDevice]) -> bool:
        """Whether CUDA's index is the driver's: by default the fastest come first; of a GPU in slices CUDA sees one."""
        is_one_kind = len({d.name for d in devices}) == 1
        return (is_one_kind or self.order == "PCI_BUS_ID") and not any(d.is_sliced for d in devices)


def _names_device(token: str) -> bool:
    return token.isdecimal() or token.startswith(("GPU-", "MIG-"))


def read_devices(text: str) -> tuple[GpuDevice, ...]:
    """A GPU a line, memory in MiB, utilization in percent; lines that are none are left out."""
    found = []
    for words in _lines(text, len(DEVICES)):
        index, uuid, name, total, used, busy, mig = words
        if index.isdecimal() and uuid.startswith("GPU-"):
            share = min(int(busy), 100) / 100 if busy.isdecimal() else None
            found.append(GpuDevice(int(index), uuid, name, mebibytes(total), mebibytes(used), share, mig == "Enabled"))
    return tuple(found)


def read_processes(text: str) -> GpuMemory:
    """Who has how much of which GPU, a line each; without those of which the driver does not tell how much."""
    found: GpuMemory = {}
    for uuid, pid, used in _lines(text, len(PROCESSES)):
        if pid.isdecimal() and used.isdecimal():
            own = found.setdefault(int(pid), {})
            own[uuid] = own.get(uuid, 0) + mebibytes(used)  # in several of its slices
    return found


def mebibytes(text: str) -> int:
    """Bytes; 0 where the driver says in words that it does not know."""
    return int(text) << 20 if text.isdecimal() else 0


def _lines(text: str, length: int) -> list[list[str]]:
    split = ([word.strip() for word in line.split(",")] for line in text.splitlines())
    return [words for words in split if len(words) == length]


def use_of(
    pid: int, bound: GpuDevice | None, devices: Sequence[GpuDevice], taken: Mapping[int, Mapping[str, int]]
) -> GpuUse | None:
    """What the process has of its GPU; None where nothing is known of any.

    ``bound`` is the device that is the rank's; of one that has none, or of which that is not known, the process's own
    memory tells which it uses. In a container the driver may tell of no process, or number them as its host does.
    """
    own = dict(taken.get(pid, {}))
    if bound is None:
        bound = max((d for d in devices if d.uuid in own), key=lambda d: own[d.uuid], default=None)
    if bound is None:
        return GpuUse("a slice of a GPU", own=sum(own.values())) if own else None
    mine = own.get(bound.uuid)
    name = f"GPU {bound.index} ({bound.name})"
    if bound.is_sliced:
        return None if mine is None else GpuUse(f"a slice of {name}", own=mine)
    if not bound.total and mine is None and bound.busy is None:
        return None
    return GpuUse(name, bound.total, bound.used, mine, bound.busy)
