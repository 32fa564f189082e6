"""The manifest of a saved session: what it holds, in JSON that a person can read."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError

FORMAT = 3  # Raised when one of two versions of jdist could not load what the other writes.
MANIFEST = "manifest.json"

Held = Literal["equal on all ranks", "sharded", "by rank"]


class SavedName(Struct, frozen=True, omit_defaults=True):
    """A name of the session."""

    name: str
    ranks: str  # That have it: "0-3".
    type: str
    held: Held
    shape: tuple[int, ...] | None = None  # Of a tensor; of a DTensor, that of the whole.
    dtype: str = ""
    placement: str = ""  # Of a DTensor: "Shard(0) on mesh dp=4".
    nbytes: int = 0  # Of its tensors, in the checkpoint. Tensors of two names are counted for the first.


class Omission(Struct, frozen=True):
    """What could not be saved: a name, or a part of one such as ``loader._iterator``."""

    name: str
    ranks: str
    why: str


class Manifest(Struct, frozen=True):
    """A saved session."""

    format: int
    saved_at: str  # ISO 8601, UTC.
    world_size: int
    versions: dict[str, str]  # Of jdist, torch and python.
    hosts: tuple[str, ...]  # By rank.
    names: tuple[SavedName, ...]
    left_out: tuple[Omission, ...]
    groups: dict[str, tuple[int, ...]]  # Named groups.
    mesh: tuple[tuple[str, ...], tuple[int, ...]] | None  # The named mesh: names and sizes.
    setup: tuple[str, ...]  # Setup cells, oldest first.

    def write(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read_manifest(data: bytes, where: str) -> Manifest:
    """Raises UsageError for a manifest that this version cannot read."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as e:
        raise UsageError(f"{where} is not a manifest of a saved session: {e}") from e
    if manifest.format != FORMAT:
        age = "newer" if manifest.format > FORMAT else "older"
        writer = f"jdist {manifest.versions.get('jdist', '?')} with format {manifest.format}"
        raise UsageError(f"{where} was written by {writer}, which is {age} than format {FORMAT} of this one")
    if not 1 <= manifest.world_size == len(manifest.hosts):
        hosts = f"{manifest.world_size} ranks on {len(manifest.hosts)} hosts"
        raise UsageError(f"{where} has been changed: it names {hosts}, one for each rank")
    return manifest


class SaveReport(Struct, frozen=True):
    """What a save copied, as its cell returns it on each rank."""

    folder: str  # Where it will be complete.
    names: tuple[str, ...]
    left_out: tuple[Omission, ...]
    nbytes: int  # Of all ranks, in the checkpoint.
    seconds: float  # For which the ranks were busy.


class LoadReport(Struct, frozen=True):
    """What a load did on one rank."""

    folder: str
    names: tuple[str, ...]
    decisions: tuple[str, ...]  # What had to be decided because the world has another size; the same on all ranks.
    failed: tuple[Omission, ...] = ()  # Names that were saved and could not be loaded.


def by_reason(left_out: Sequence[Omission]) -> list[str]:
    """A line for each thing that was left out."""
    return [f"{each.name} (ranks {each.ranks}): {each.why}" for each in left_out]
