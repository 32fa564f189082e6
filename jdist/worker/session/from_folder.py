"""Loading a saved session: a cell on all ranks, in a world of the same size or of another.

On the same number of ranks each gets its own names back. On another, names that were equal on all ranks are on all of
them, DTensors are sharded anew, and what differed by rank stays with the ranks that had it, except that models and
optimizers are on every rank: a rank that is new takes those of another. ``sources`` overrides that. Nothing is bound
before every rank has loaded everything.
"""

import contextlib
import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import load as load_checkpoint
from torch.distributed.checkpoint.api import CheckpointException

from jdist.core.errors import UsageError, describe_error, nearest
from jdist.core.messages.saving import MANIFEST, LoadReport, Manifest, Omission, read_manifest
from jdist.core.ranks import describe_ranks
from jdist.worker.session import exchange, folder, rebuild, state
from jdist.worker.session.entries import allocate, placed
from jdist.worker.session.points import SavingRank, this_rank
from jdist.worker.session.rebuild import LostValue
from jdist.worker.session.sharding import make_groups, make_meshes
from jdist.worker.session.to_folder import RankNames
from jdist.worker.session.to_memory import SESSION
from jdist.worker.session.units import Unit

_OF_CELLS = {f"{SESSION}files", f"{SESSION}sources"}  # With them, errors in functions show the lines of their cells.


class _Source(Struct, frozen=True):
    """What one rank loads: the units, and where their entries are."""

    units: tuple[Unit, ...]
    names: RankNames


class _OpenSave:
    """A save that is being loaded, whose folder is open. ``path`` is its name, for messages."""

    def __init__(self, path: Path, inside: Path):
        self.path = path
        self.tensors = inside / folder.TENSORS
        self._inside = inside
        self.manifest = read_manifest(self._read(MANIFEST), str(path / MANIFEST))

    def _read(self, name: str) -> bytes:
        try:
            return (self._inside / name).read_bytes()
        except OSError as e:
            raise UsageError(f"{self.path} is damaged: {name} cannot be read: {e.strerror}") from e

    def _decode(self, name: str, kind: Any) -> Any:
        try:
            return msgspec.msgpack.decode(self._read(name), type=kind)
        except msgspec.MsgspecError as e:
            raise UsageError(f"{self.path} is damaged: {name} has been cut off or changed: {e}") from e

    def names_of(self, rank: int) -> RankNames:
        """The names of one saved rank."""
        found: RankNames = self._decode(folder.rank_file(rank), RankNames)
        return found

    def shared(self) -> tuple[Unit, ...]:
        """The units that all saved ranks had alike."""
        found: tuple[Unit, ...] = self._decode(folder.ALL, tuple[Unit, ...])
        return found


def read_manifest_of(directory: str) -> Manifest:
    """The manifest of the newest save in a directory. Raises UsageError."""
    path = folder.newest(Path(directory))
    with folder.opened(path) as inside:
        return _OpenSave(path, inside).manifest


def load(directory: str, names: tuple[str, ...], sources: dict[int, int], namespace: dict[str, Any]) -> LoadReport:
    """Load ``names`` (none: all) of the newest save in a directory. Call it on every rank.

    ``sources`` is ``{rank: saved rank}`` where a rank is to take another's values than the one of its own number.
    Raises UsageError, on every rank and with nothing bound, for a directory without a save, one that others could have
    changed or that ranks do not share, a name that was not saved, and a mesh that this world has no ranks for.
    """
    __tracebackhide__ = True
    path = Path(exchange.decided(None, lambda _: str(folder.newest(Path(directory)))))
    with contextlib.ExitStack() as open_folders:
        saved = exchange.agreed(lambda: _OpenSave(path, open_folders.enter_context(folder.opened(path))))
        return _load(saved, names, sources, namespace)


def _load(saved: _OpenSave, names: tuple[str, ...], sources: dict[int, int], namespace: dict[str, Any]) -> LoadReport:
    this, manifest = this_rank(), saved.manifest
    source, decisions = exchange.agreed(lambda: _choose(saved, names, sources))
    tables = source.names
    state.reserve_hooks(tables.next_hook)
    own_mesh = namespace.get("mesh") if this.is_own_name("mesh") else None
    wanted = {number: ", ".join(unit.names) for unit in source.units for number in unit.meshes}
    meshes, made = exchange.agreed(lambda: make_meshes(tables.meshes, wanted, manifest.world_size, own_mesh))
    groups = exchange.agreed(lambda: make_groups(tables.groups))
    own_device = namespace.get("device", torch.device("cpu"))
    entries = exchange.agreed(lambda: _read_entries(saved, source, meshes, own_device))
    values, failed = exchange.agreed(lambda: _unpickle(source, entries, (meshes, groups), namespace))
    bound = {name: value for name, value in values.items() if not names or name in names}
    _bind(bound, this, namespace)
    kept = tuple(name for name in bound if not name.startswith(SESSION))
    rank = str(dist.get_rank())
    lost = tuple(Omission(name, rank, why) for name, why in failed.items() if not name.startswith(SESSION))
    return LoadReport(str(saved.path), kept, (*made, *decisions), lost)


def _choose(saved: _OpenSave, names: tuple[str, ...], sources: dict[int, int]) -> tuple[_Source, list[str]]:
    """The units that this rank loads, and what was decided for all ranks."""
    manifest = saved.manifest
    known = {each.name for each in manifest.names}
    for name in names:
        if name not in known:
            raise UsageError(f"{saved.path} has no name {name!r}{nearest(name, known)}")
    for rank, of in sources.items():
        if not 0 <= of < manifest.world_size:
            raise UsageError(f"rank {rank} cannot take the values of rank {of}: {manifest.world_size} ranks were saved")
    rank, size = dist.get_rank(), dist.get_world_size()
    of = sources.get(rank, rank)
    own = saved.names_of(of % manifest.world_size)
    shared = saved.shared()
    by_names = {unit.names: unit for unit in (*shared, *own.units)}
    equal = {unit.names for unit in shared if not {e.label for e in unit.entries} & set(own.differing)}
    units, dropped, moved = [], [], []
    for key in own.order:
        unit = by_names[key]
        shown = [name for name in key if not name.startswith(SESSION)]
        if names and not set(key) & set(names):
            continue
        if key in equal or of < manifest.world_size or _OF_CELLS.issuperset(key):
            units.append(unit)
        elif unit.has_training_state:
            units.append(unit)
            moved += shown
        else:
            dropped += shown
    return _Source(tuple(units), own), _decisions(saved, names, size, sources)


def _decisions(saved: _OpenSave, names: tuple[str, ...], size: int, sources: Mapping[int, int]) -> list[str]:
    """What the other number of ranks means for names that differ by rank; the same text on all ranks."""
    manifest = saved.manifest
    if size == manifest.world_size and not sources:
        return []
    first, shared = saved.names_of(0), saved.shared()
    equal = {unit.names for unit in shared if not {e.label for e in unit.entries} & set(first.differing)}
    units = {unit.names: unit for unit in (*shared, *first.units)}
    differing = [units[key] for key in first.order if key not in equal]
    new = [rank for rank in range(size) if sources.get(rank, rank) >= manifest.world_size]
    gone = sorted(set(range(manifest.world_size)) - {sources.get(rank, rank) for rank in range(size)})
    found = []
    training = _shown((u for u in differing if u.has_training_state), names)
    plain = _shown((u for u in differing if not u.has_training_state), names)
    if new and training:
        taken = {rank % manifest.world_size for rank in new}
        found.append(f"{training} differ by rank: {describe_ranks(new, 'takes')} those of {describe_ranks(taken)}")
    if new and plain:
        found.append(f"{plain} differ by rank: {describe_ranks(new, 'has')} none")
    if gone and (both := _shown(differing, names)):
        found.append(f"{both} differ by rank: what {describe_ranks(gone)} held is not loaded")
    if new and not names:
        found.append(
            f"{describe_ranks(new, 'keeps')} the random numbers with which {'it' if len(new) == 1 else 'they'} began"
        )
    return found


def _shown(units: Any, names: tuple[str, ...]) -> str:
    found = [n for unit in units for n in unit.names if not n.startswith(SESSION) and (not names or n in names)]
    return ", ".join(found)


def _read_entries(
    saved: _OpenSave, source: _Source, meshes: Mapping[int, Any], own: torch.device
) -> dict[str, torch.Tensor]:
    """The tensors of the units, by label; each rank reads its own parts."""
    notes = {entry.label: entry for unit in source.units for entry in unit.entries}
    made = {label: allocate(entry, meshes, own) for label, entry in notes.items()}
    wanted: dict[str, Any] = {}
    for label, tensor in made.items():
        wanted[source.names.keys[label]] = tensor
    if wanted:
        try:
            load_checkpoint(wanted, storage_reader=FileSystemReader(saved.tensors), no_dist=True)
        except CheckpointException as e:  # which is a BaseException
            why = "; ".join(describe_error(error) for error, _ in e.failures.values())
            why = why.replace(str(saved.tensors), folder.TENSORS)
            raise UsageError(f"{saved.path} is damaged: {folder.TENSORS} cannot be read: {why}") from e
    return {label: placed(notes[label], tensor, own) for label, tensor in made.items()}


def _unpickle(
    source: _Source,
    entries: Mapping[str, torch.Tensor],
    tables: tuple[Mapping[int, Any], list[Any]],
    namespace: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values by name, and why others could not be loaded."""
    values: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with rebuild.loading(namespace, _no_buffers), rebuild.loading_save(entries, *tables), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were shown when the values were made
        for unit in source.units:
            unpickler = pickle.Unpickler(io.BytesIO(unit.pickle))  # noqa: S301 — a folder of the user's own
            for number, name in enumerate(unit.names):
                try:
                    value = unpickler.load()
                except Exception as e:  # constructors and __setstate__ of any class
                    failed |= dict.fromkeys(unit.names[number:], f"{type(e).__name__}: {e}")
                    break
                if type(value) is LostValue:
                    failed[name] = value.kind
                else:
                    values[name] = value
    return values, failed


def _no_buffers(number: int, _target: memoryview) -> None:
    raise UsageError(f"a save has no buffer {number}")


def _bind(values: Mapping[str, Any], this: SavingRank, namespace: dict[str, Any]) -> None:
    """Bind the names, and put the session's other state in place."""
    for name, value in values.items():
        if name.startswith(SESSION):
            state.restore(this.shell, name.removeprefix(SESSION), value, {})
        else:
            namespace[name] = value
