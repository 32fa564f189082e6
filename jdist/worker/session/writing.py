"""Plan which rank writes which entry of the checkpoint, and write it in the background.

Rank 0 makes the plan. It is made and written by the public parts of torch.distributed.checkpoint, a planner and a file
writer. The ranks meet only while it is made; each then writes by itself, also while the next cell runs. The rank that
is done last completes the save.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan

from jdist.core.errors import UsageError, describe_error, writing_to
from jdist.core.messages.saving import MANIFEST, Manifest, PartSaved, SaveStarted
from jdist.core.ranks import RankSet
from jdist.worker.session import exchange, folder
from jdist.worker.session.entries import Entry
from jdist.worker.session.points import SavingRank

_LONGEST = 600.0  # Seconds for one copy to be made.


class Copies:
    """The copies that are written, by their keys. One thread makes them, while another writes those that are there."""

    def __init__(self) -> None:
        self._made: dict[str, torch.Tensor] = {}
        self._is_over = False
        self._changed = threading.Condition()

    def make(self, copies: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take each as it is made. Whoever waits for one that has not come is told so, also if this is interrupted."""
        try:
            for key, copy in copies:
                with self._changed:
                    self._made[key] = copy
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def get(self, key: str) -> torch.Tensor:
        """Wait for one. Raises UsageError if it is not made."""
        with self._changed:
            while key not in self._made:
                if self._is_over or not self._changed.wait(_LONGEST):
                    raise UsageError("the values have not been copied to the end")
            return self._made[key]


class CopyPlanner(DefaultSavePlanner):
    """Plans with the ranks' own tensors, and writes copies of them."""

    def __init__(self, copies: Copies) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The copy that is written for an entry."""
        return self._copies.get(index.fqn)


class TensorWriter:
    """One rank's part of writing the checkpoint. Tensors are by their keys."""

    def __init__(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Plan together with all other ranks."""
        self._writer = FileSystemWriter(folder, sync_files=True)
        self.copies = Copies()
        self._planner = CopyPlanner(self.copies)
        is_first = dist.get_rank() == 0
        self._planner.set_up_planner(tensors, self._writer.storage_meta(), is_first)
        self._writer.set_up_storage_writer(is_first)
        local = exchange.agreed(lambda: self._writer.prepare_local_plan(self._planner.create_local_plan()))
        plan, self._metadata = exchange.planned(local, self._plan_for_all)
        self._plan = self._planner.finish_plan(plan)
        self.nbytes = sum(size * staged_dtype.itemsize for size, staged_dtype in _sizes(self._metadata))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the tensors that this rank writes, in that order: of one that all ranks have, only one does."""
        return tuple(dict.fromkeys(item.index.fqn for item in self._plan.items))

    def _plan_for_all(self, plans: list[SavePlan]) -> list[tuple[SavePlan, Metadata]]:
        plans, metadata = self._planner.create_global_plan(plans)
        return [(plan, metadata) for plan in self._writer.prepare_global_plan(plans)]

    def write(self) -> Any:
        """Write this rank's part; what :meth:`finish` needs to know of it. Needs no other rank."""
        return self._writer.write_data(self._plan, self._planner).wait()

    def finish(self, results: Sequence[Any]) -> None:
        """Write what refers to all parts, on one rank."""
        self._writer.finish(self._metadata, list(results))


def _sizes(metadata: Metadata) -> list[tuple[int, torch.dtype]]:
    tensors = metadata.state_dict_metadata.values()
    return [(t.size.numel(), t.properties.dtype) for t in tensors]  # type: ignore[union-attr]


def key_of(entry: Entry, rank: int, is_equal: bool, mesh_ranks: tuple[int, ...], world_size: int) -> str:
    """The key of an entry in the checkpoint: its label, unless only some ranks have the same under that label."""
    if entry.mesh >= 0:
        return entry.label if len(mesh_ranks) == world_size else f"ranks {RankSet(mesh_ranks)}/{entry.label}"
    return entry.label if is_equal else f"rank {rank}/{entry.label}"


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
            with writing_to(planned.writing):
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
