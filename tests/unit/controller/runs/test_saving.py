"""Saves that are being written: each ends once, and clients learn how."""

from __future__ import annotations

import pytest

from jdist.controller.model.model import FromAgent
from jdist.core.messages.base import Message
from jdist.core.messages.saving import PartSaved, SaveEnded, SaveStarted
from support.driver import Driver


def say(d: Driver, message: Message) -> None:
    d.step(FromAgent(d.agent_of(message.worker).name, message))  # type: ignore[attr-defined]


def begun(workers: range = range(4), **options: object) -> Driver:
    """A world of four ranks, of which some have begun to write a save."""
    d = Driver(**options).ready()  # type: ignore[arg-type]
    for worker in workers:
        say(d, SaveStarted(worker, "s", 4))
    return d


def ends(d: Driver) -> list[SaveEnded]:
    return d.told(SaveEnded)


def test_a_save_is_complete_when_every_part_is_written() -> None:
    d = begun()
    for worker in (0, 2, 3):
        say(d, PartSaved(worker, "s", seconds=worker))
        assert not ends(d)
    say(d, PartSaved(1, "s", nbytes=10, seconds=1.0, folder="/d/save-000001"))
    assert ends(d) == [SaveEnded("s", "/d/save-000001", nbytes=10, seconds=3.0)]


def test_the_rank_that_completes_need_not_be_the_last_to_report() -> None:
    d = begun()
    say(d, PartSaved(3, "s", nbytes=10, seconds=2.0, folder="/d/save-000001"))
    for worker in range(3):
        assert not ends(d)
        say(d, PartSaved(worker, "s"))
    assert [end.folder for end in ends(d)] == ["/d/save-000001"]


def test_a_part_that_cannot_be_written_ends_the_save_once() -> None:
    d = begun()
    say(d, PartSaved(2, "s", error="OSError: [Errno 28] No space left on device"))
    say(d, PartSaved(3, "s", error="OSError: [Errno 28] No space left on device"))
    assert [end.error for end in ends(d)] == ["rank 2 (node 1, a-1): OSError: [Errno 28] No space left on device"]


@pytest.mark.parametrize("written", [False, True])
def test_a_lost_rank_ends_only_a_save_that_it_had_not_written(written: bool) -> None:
    d = begun()
    if written:
        say(d, PartSaved(1, "s"))
    d.agents["a-0"].kill(1)
    d.settle()
    if not written:
        assert "rank 1" in ends(d)[0].error
        assert "before its part was written" in ends(d)[0].error
        return
    assert not ends(d)
    for worker in (0, 2):
        say(d, PartSaved(worker, "s"))
    say(d, PartSaved(3, "s", folder="/d/save-000001"))
    assert [end.folder for end in ends(d)] == ["/d/save-000001"]


def test_a_rank_that_does_not_begin_ends_the_save_in_time() -> None:
    d = begun(range(3))
    for worker in range(3):
        say(d, PartSaved(worker, "s"))
    d.sleep(30.0)
    assert not ends(d)
    d.sleep(40.0)
    assert [end.error for end in ends(d)] == ["1 of 4 ranks have not begun to write it"]


def test_a_folder_that_is_not_shared_completes_nothing() -> None:
    d = begun()
    for worker in range(4):
        say(d, PartSaved(worker, "s"))
    assert "is the folder shared by all nodes?" in ends(d)[0].error


def test_saves_are_told_apart() -> None:
    d = begun()
    for worker in range(4):
        say(d, SaveStarted(worker, "t", 4))
    for save in ("t", "s"):
        for worker in range(4):
            say(d, PartSaved(worker, save, folder=f"/d/{save}" if worker == 3 else ""))
    assert [(end.save, end.folder) for end in ends(d)] == [("t", "/d/t"), ("s", "/d/s")]
