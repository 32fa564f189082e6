"""Writing a save in the background: this rank's part; and, on the rank that is done last, what completes the save.

States of a save on a rank: *writing* → *written* (its part's file is there) → on one rank *completing* → over. Only
the thread of the save changes them. The controller gives a save up when the first rank reports that it has failed, or
when one has died; each rank then removes the folder, which has no name yet, so that the others fail as well. No rank
does so by itself, since failures that only follow from that could be heard of first. Older saves are untouched.
"""

import logging
import os
import pickle
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from jdist.core.errors import describe_error
from jdist.core.manifest import MANIFEST, Manifest
from jdist.core.messages.saving import PartSaved, SaveStarted
from jdist.worker.saving import folder
from jdist.worker.saving.plan import TensorWriter
from jdist.worker.saving.process import SavingRank

_log = logging.getLogger("jdist.worker")

_present: list["BackgroundSave"] = []


def refuse_second() -> str:
    """Why no save can begin now; "" if one can."""
    return f"{_present[0].final} is still being written" if _present else ""


@dataclass(frozen=True)
class PlannedSave:
    """One rank's part of a save, copied and planned."""

    save: str  # Its id.
    rank: int
    writing: Path  # The folder that is written, and what it is probably called in the end.
    final: Path
    held: int  # The descriptor by which this rank holds the folder.
    tensors: TensorWriter
    files: dict[str, bytes]
    manifest: Manifest
    keep: int
    began: float


class BackgroundSave:
    """The writing of one save by one rank."""

    def __init__(self, rank: SavingRank, planned: PlannedSave) -> None:
        self._rank = rank
        self._planned = planned
        self.final = planned.final

    def start(self) -> None:
        planned = self._planned
        _present.append(self)
        self._rank.give_up = self._give_up
        self._rank.send(SaveStarted(self._rank.worker, planned.save, planned.manifest.world_size))
        threading.Thread(target=self._run, name="jdist-save", daemon=True).start()

    def _run(self) -> None:
        planned, error, is_complete = self._planned, "", False
        try:
            is_complete = self._write()
        except BaseException as e:  # a full disk, a folder that was removed
            _log.info("save %s failed", planned.save, exc_info=True)
            error = describe_error(e)
        finally:
            _present.remove(self)
            os.close(planned.held)
        nbytes = planned.tensors.nbytes if is_complete else 0
        named = str(self.final) if is_complete else ""
        seconds = time.monotonic() - planned.began
        self._rank.send(PartSaved(self._rank.worker, planned.save, error, nbytes, seconds, named))

    def _write(self) -> bool:
        """Write this rank's part; whether that has completed the save."""
        planned = self._planned
        results = planned.tensors.write()
        for name, data in planned.files.items():
            folder.write(planned.writing / name, data)
        own = planned.writing / folder.part_file(planned.rank)
        folder.write(own.with_suffix(".new"), pickle.dumps(results))
        own.with_suffix(".new").rename(own)
        parts = [planned.writing / folder.part_file(rank) for rank in range(planned.manifest.world_size)]
        if not all(part.exists() for part in parts) or not folder.is_first_to_complete(planned.writing):
            return False
        # Ranks of this cluster have written them, into a folder of the user's own.
        planned.tensors.finish([pickle.loads(part.read_bytes()) for part in parts])  # noqa: S301
        folder.write(planned.writing / MANIFEST, planned.manifest.write())
        self.final = folder.commit(planned.writing, planned.keep)
        return True

    def _give_up(self, save: str) -> None:
        if save == self._planned.save:
            folder.discard(self._planned.writing)
