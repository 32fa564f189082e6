"""Saving: the ranks write a session into a folder in the background, each its part, and report when that is over.

The folder's manifest says what it holds, in JSON that a person can read.

An automatic save begins between two cells or, in a cell that calls ``jdist.save_if_due()``, at a call of the same
number on all ranks. For the latter, the controller sends PrepareSave, each rank answers with the number of its calls
(and makes none until it hears more), and SaveAt says at which call all ranks save.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.core.messages.base import Message

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


# ---------------------------------------------------------------- messages


class SaveOptions(Struct, frozen=True):
    """What is saved, and where; as :func:`jdist.core.rank_code.save` takes it."""

    directory: str
    names: tuple[str, ...] = ()  # None: everything.
    keep: int = 2


class Autosave(Message, frozen=True):
    """Save by itself ``every`` so many seconds, and when the job's end is announced. Without options: no more."""

    request: str
    options: SaveOptions | None
    every: float = 0.0


class KeepAutosave(Message, frozen=True):
    """A node keeps this for a controller that is started again, and stays for a save before it ends.

    Its workers then take no notice of the signals by which schedulers announce the end of a job.
    """

    options: SaveOptions | None
    every: float = 0.0
    grace: float = 0.0  # Seconds for which the node stays at most, from SIGTERM on.


class EndAnnounced(Message, frozen=True):
    """A node's job is about to end, by that signal; the node has no more than its grace left if it is SIGTERM."""

    signal: str


class MayLeave(Message, frozen=True):
    """The session was saved, or could not be: the node need not stay any longer."""


class PrepareSave(Message, frozen=True):
    """Answer with the number of calls of save_if_due in this run; make no further one before SaveAt."""

    save: str
    run: int
    workers: tuple[int, ...]


class SavePoint(Message, frozen=True):
    """The answer: how many calls the worker has made in the run; 0 also if it is not in that run."""

    worker: int
    save: str
    calls: int


class SaveAt(Message, frozen=True):
    """Save at this call in the run; 0: do not."""

    save: str
    run: int
    workers: tuple[int, ...]
    call: int = 0
    options: SaveOptions | None = None


class GiveUpSave(Message, frozen=True):
    """A save cannot be completed: remove what these workers have written of it."""

    save: str
    workers: tuple[int, ...]


class SaveStarted(Message, frozen=True):
    """A worker has copied its part of a save and begins to write it."""

    worker: int
    save: str  # Identifies the save; whoever asked for it chose it.
    world_size: int  # Number of parts.


class PartSaved(Message, frozen=True):
    """A worker has written its part of a save, or failed to."""

    worker: int
    save: str
    error: str = ""
    nbytes: int = 0  # Of the whole save; only the worker that completed it can say that.
    seconds: float = 0.0  # Since the worker began to copy its values.
    folder: str = ""  # The complete save, from the worker that completed it.


class SaveEnded(Message, frozen=True):
    """A save is complete, or was given up with ``error``; the saves before it are as they were."""

    save: str
    folder: str = ""
    error: str = ""
    nbytes: int = 0
    seconds: float = 0.0


class SaveStatus(Struct, frozen=True):
    """For a status report: the last save, and the automatic ones."""

    last: SaveEnded | None = None
    age: float = 0.0  # Seconds since the last save ended.
    options: SaveOptions | None = None  # Of automatic saves; None: there are none.
    every: float = 0.0
    due_in: float = 0.0  # Seconds; 0: now, but it has to wait.
    waits_for: str = ""  # What it waits for.


ClientMessage = Autosave
WorkerMessage = SavePoint | SaveStarted | PartSaved
AgentMessage = WorkerMessage | EndAnnounced
ToAgent = KeepAutosave | PrepareSave | SaveAt | GiveUpSave | MayLeave
ToWorker = KeepAutosave | PrepareSave | SaveAt | GiveUpSave
ToClient = SaveEnded
