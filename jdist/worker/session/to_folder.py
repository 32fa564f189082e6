"""Saving a session: a cell on all ranks that copies and plans; each rank then writes its part in the background.

::

    every rank   pickle its names in units, compute the tensors' digests        (objects/)
    rank 0       compare them: what is equal everywhere is written once
    every rank   plan the checkpoint, and copy the tensors that it writes        (plan.py)
    ------------ the cell ends
    every rank   write what has been copied, also before the cell ends, and names, then a file that says so (writing.py)
    the last     complete the checkpoint, write the manifest, rename the folder
"""

import datetime as dt
import os
import platform
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from msgspec import Struct

from jdist.core import __version__
from jdist.core.errors import nearest
from jdist.core.messages.saving import FORMAT, Manifest, Omission, SavedName, SaveReport
from jdist.core.ranks import RankSet
from jdist.worker.session import exchange, folder, state
from jdist.worker.session.entries import Entries
from jdist.worker.session.points import SavingRank, this_rank
from jdist.worker.session.saved_pickler import cell_file
from jdist.worker.session.sharding import MeshTable, SavedMesh
from jdist.worker.session.to_memory import SESSION, users_values
from jdist.worker.session.units import Collection, Unit
from jdist.worker.session.writing import BackgroundSave, PlannedSave, TensorWriter, key_of, refuse_second
from jdist.worker.variables.digests import digest_of

_SESSION_KEYS = ("random", "numpy", "torch", "cuda", "dtype", "deterministic", "path", "on_reform", "files", "sources")


class RankNames(Struct, frozen=True):
    """What a save has of one rank besides the units that are equal on all ranks."""

    units: tuple[Unit, ...]
    order: tuple[tuple[str, ...], ...]  # The names of all units, in the order in which they were made.
    keys: dict[str, str]  # Of entries in the checkpoint, by label; of all units.
    differing: tuple[str, ...]  # Labels of entries that differ between ranks, or that some ranks lack.
    meshes: tuple[SavedMesh, ...]
    groups: tuple[tuple[int, ...], ...]
    next_hook: int  # Modules have hooks of lower numbers only.


class _Report(Struct, frozen=True):
    """What a rank tells rank 0."""

    host: str
    units: tuple[tuple[tuple[str, ...], str], ...]  # The names of each, and a digest of it.
    digests: dict[str, str]  # Of entries, by label; of a DTensor, what the whole is.
    names: dict[str, SavedName]
    losses: dict[str, str]


class _Decision(Struct, frozen=True):
    """What rank 0 has found to be equal on all ranks."""

    units: frozenset[tuple[str, ...]]
    labels: frozenset[str]
    left_out: tuple[Omission, ...]
    names: tuple[SavedName, ...]
    hosts: tuple[str, ...]


def save(directory: str, names: tuple[str, ...], save_id: str, keep: int, namespace: dict[str, Any]) -> SaveReport:
    """Copy ``names`` (none: all) and begin to write them. Call it on every rank, in the same collective order.

    Raises UsageError, on every rank and with nothing written, for a name that no rank has, a directory that cannot be
    written to or that ranks do not share, too little memory, and while another save is being written.
    """
    __tracebackhide__ = True
    began = time.monotonic()
    this = this_rank()
    exchange.check(refuse_second())
    entries, meshes, units, losses = exchange.agreed(lambda: _collect(names, save_id, namespace, this))
    decision = _compare(units, entries, meshes, losses, namespace)
    if names:
        exchange.check(_missing(names, decision, _values(namespace, this)))
    writing, final = exchange.decided(None, lambda _: folder.begin(Path(directory), save_id))
    held = -1
    try:
        exchange.check(_not_shared(writing))
        held = exchange.agreed(lambda: folder.hold(writing))
        return _begin_to_write(this, save_id, (writing, final, held), keep, (entries, meshes, units), decision, began)
    except BaseException:  # an interrupt, or a lost rank: it is given up everywhere
        folder.discard(writing)
        raise
    finally:
        if held >= 0:
            os.close(held)


def _begin_to_write(
    this: SavingRank,
    save_id: str,
    paths: tuple[Path, Path, int],
    keep: int,
    collected: tuple[Entries, MeshTable, list[Unit]],
    decision: _Decision,
    began: float,
) -> SaveReport:
    """Plan the checkpoint together with all other ranks, copy this rank's part of it, and begin to write that."""
    writing, final, held = paths
    entries, meshes, units = collected
    rank, size = dist.get_rank(), dist.get_world_size()
    scope = {label: meshes.ranks_of(e.mesh) if e.mesh >= 0 else () for label, e in entries.notes.items()}
    keys = {
        label: key_of(entry, rank, label in decision.labels, scope[label], size)
        for label, entry in entries.notes.items()
    }
    writer = TensorWriter(writing / folder.TENSORS, {keys[label]: tensor for label, tensor in entries.tensors.items()})
    labels = {key: label for label, key in keys.items()}
    mine = {key: labels[key] for key in writer.keys}
    exchange.agreed(lambda: entries.check_memory(mine.values()))
    shared = tuple(unit for unit in units if unit.names in decision.units)
    own = RankNames(
        tuple(unit for unit in units if unit.names not in decision.units),
        tuple(unit.names for unit in units),
        keys,
        tuple(label for label, e in entries.notes.items() if e.mesh < 0 and label not in decision.labels),
        tuple(meshes.meshes),
        tuple(meshes.groups),
        state.next_hook(),
    )
    files = {folder.rank_file(rank): msgspec.msgpack.encode(own)}
    if rank == 0:
        files[folder.ALL] = msgspec.msgpack.encode(shared)
    groups, mesh = this.named_groups()
    manifest = Manifest(
        FORMAT,
        dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        size,
        {"jdist": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        decision.hosts,
        decision.names,
        decision.left_out,
        groups,
        mesh,
        tuple(this.setup),
    )
    planned = PlannedSave(save_id, rank, writing, final, os.dup(held), writer, files, manifest, keep, began)
    BackgroundSave(this, planned).start()
    exchange.agreed(lambda: writer.copies.make((key, entries.copy(label)) for key, label in mine.items()))
    saved_names = tuple(name.name for name in decision.names)
    return SaveReport(str(final), saved_names, decision.left_out, writer.nbytes, time.monotonic() - began)


def _collect(
    names: tuple[str, ...], save_id: str, namespace: dict[str, Any], this: SavingRank
) -> tuple[Entries, MeshTable, list[Unit], dict[str, str]]:
    own_device = namespace.get("device", torch.device("cpu"))
    values = _values(namespace, this)
    if names:
        values = {name: value for name, value in values.items() if name in names}
    else:
        asked = state.take(this.shell, namespace, {})
        values |= {f"{SESSION}{key}": asked[key]() for key in _SESSION_KEYS}
        for key in ("files", "sources"):
            values[f"{SESSION}{key}"] = {cell_file(name): what for name, what in values[f"{SESSION}{key}"].items()}
    meshes = MeshTable(dist.get_world_size())
    entries = Entries(own_device, meshes)
    collection = Collection(values, namespace, entries, meshes)
    units = collection.collect(save_id)
    return entries, meshes, units, collection.losses


def _values(namespace: dict[str, Any], this: SavingRank) -> dict[str, Any]:
    return dict(users_values(namespace, this.shell.user_ns_hidden, this.is_own_name))


def _missing(names: tuple[str, ...], decision: _Decision, here: Iterable[str]) -> str:
    """The error for a name that no rank has, with the nearest of those that are bound ``here``; "" if there is none."""
    found = {each.name for each in decision.names} | {each.name for each in decision.left_out}
    return next((f"no rank has a name {name!r}{nearest(name, here)}" for name in names if name not in found), "")


def _not_shared(writing: Path) -> str:
    if writing.is_dir():
        return ""
    host = socket.gethostname()
    return f"{host} does not see what rank 0 writes into {writing.parent}; name a folder that all nodes share"


def _compare(
    units: list[Unit], entries: Entries, meshes: MeshTable, losses: dict[str, str], namespace: dict[str, Any]
) -> _Decision:
    """Find out what is equal on all ranks."""
    report = exchange.agreed(lambda: _report(units, entries, meshes, losses, namespace))
    return exchange.decided(report, _decide)


def _report(
    units: list[Unit], entries: Entries, meshes: MeshTable, losses: dict[str, str], namespace: dict[str, Any]
) -> _Report:
    digests = entries.digests()
    for label, entry in entries.notes.items():
        if entry.mesh >= 0:
            digests[label] = repr((entry, meshes.meshes[entry.mesh]))
    names = {
        name: _describe(name, namespace.get(name), unit, meshes)
        for unit in units
        for name in unit.names
        if not name.startswith(SESSION)
    }
    made = tuple((unit.names, digest_of(unit.pickle, repr(unit.entries).encode())) for unit in units)
    shown = {name: why for name, why in losses.items() if not name.startswith(SESSION)}
    return _Report(socket.gethostname(), made, digests, names, shown)


def _decide(reports: list[_Report]) -> _Decision:
    first = reports[0]
    equal_units = set(first.units).intersection(*(report.units for report in reports))
    equal = {label for label, digest in first.digests.items() if all(r.digests.get(label) == digest for r in reports)}
    whole = {names for names, _ in equal_units}
    names: dict[str, list[int]] = {}
    lost: dict[tuple[str, str], list[int]] = {}
    for rank, report in enumerate(reports):
        for name in report.names:
            names.setdefault(name, []).append(rank)
        for name, why in report.losses.items():
            lost.setdefault((name, why), []).append(rank)
    described = []
    for name, ranks in names.items():
        note = reports[ranks[0]].names[name]
        unit = next(unit for unit, _ in reports[ranks[0]].units if name in unit)
        is_equal = unit in whole and all(
            label in equal for label in first.digests if label == name or label.startswith((f"{name}.", f"{name}#"))
        )
        held = note.held if note.held == "sharded" or not is_equal else "equal on all ranks"
        described.append(msgspec.structs.replace(note, ranks=str(RankSet(ranks)), held=held))
    return _Decision(
        frozenset(whole),
        frozenset(equal),
        tuple(Omission(name, str(RankSet(ranks)), why) for (name, why), ranks in lost.items()),
        tuple(described),
        tuple(report.host for report in reports),
    )


def _describe(name: str, value: Any, unit: Unit, meshes: MeshTable) -> SavedName:
    own = [e for e in unit.entries if e.label == name or e.label.startswith((f"{name}.", f"{name}#"))]
    sharded = [e for e in own if e.mesh >= 0]
    nbytes = sum(e.nbytes for e in own)
    kind = type(value).__name__
    held: Any = "sharded" if sharded else "by rank"
    placement = ""
    if sharded:
        placement = f"{', '.join(sharded[0].placements)} on mesh {meshes.meshes[sharded[0].mesh]}"
    if isinstance(value, torch.Tensor):
        return SavedName(name, "", kind, held, tuple(value.shape), str(value.dtype)[6:], placement, nbytes)
    return SavedName(name, "", kind, held, placement=placement, nbytes=nbytes)
