"""Saving: the ranks write a session into a folder in the background, each its part, and report when that is over.

An automatic save begins between two cells or, in a cell that calls ``jdist.save_if_due()``, at a call of the same
number on all ranks. For the latter, the controller sends PrepareSave, each rank answers with the number of its calls
(and makes none until it hears more), and SaveAt says at which call all ranks save.
"""

from msgspec import Struct

from jdist.core.messages.base import Message


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
