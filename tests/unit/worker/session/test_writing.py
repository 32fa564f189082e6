"""A rank that fails to write its part reports that before anything is removed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jdist.core.messages.saving import PartSaved
from jdist.worker.session import folder
from jdist.worker.session.points import SavingRank
from jdist.worker.session.writing import BackgroundSave, PlannedSave
from support.waits import eventually


def test_the_folder_is_removed_when_the_controller_gives_the_save_up(tmp_path: Path) -> None:
    """Otherwise other ranks fail because it is gone, and such a failure may be reported as the cause."""

    def write() -> list[Any]:
        raise OSError(28, "No space left on device")

    full_disk, of_two = SimpleNamespace(write=write, nbytes=0), SimpleNamespace(world_size=2)
    sent: list[tuple[Any, bool]] = []
    writing, final = folder.begin(tmp_path, "s1")
    rank = SavingRank(7, None, lambda _: False, lambda: ({}, None), lambda m: sent.append((m, writing.exists())))
    held = folder.hold(writing)
    BackgroundSave(rank, PlannedSave("s1", 1, writing, final, held, full_disk, {}, of_two, 1, 0.0)).start()
    assert eventually(lambda: len(sent) == 2)
    reported, was_there = sent[1]
    assert isinstance(reported, PartSaved)
    assert "No space left on device" in reported.error
    assert was_there
    rank.give_up("s1")
    assert not list(tmp_path.iterdir())
