"""Automatic saves: between two cells, at a call of save_if_due, and before a job ends; whatever comes between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jdist.controller.model.model import EndRequested, FromAgent
from jdist.core.messages.base import Ack, Message
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import AbortRun, ExecuteCell, Interrupt, RunStarted
from jdist.core.messages.saving import (
    Autosave,
    EndAnnounced,
    KeepAutosave,
    MayLeave,
    PartSaved,
    PrepareSave,
    SaveAt,
    SaveEnded,
    SaveOptions,
    SavePoint,
    SaveStarted,
)
from jdist.core.messages.status import Notice, RequestRefused, StatusReport, StatusRequest
from support.driver import Driver

OPTIONS = SaveOptions("/d", (), 2)
EVERY = 60.0


def world(every: float = EVERY) -> Driver:
    """Four ranks on two nodes, which save by themselves."""
    d = Driver().ready()
    d.say(Autosave("auto", OPTIONS, every))
    return d


def agent_says(d: Driver, message: Message) -> None:
    d.step(FromAgent(d.agent_of(message.worker).name, message))  # type: ignore[attr-defined]


def heard(d: Driver, kind: type[Message]) -> list[Message]:
    """What the first node's agent has been sent."""
    return [message for message in d.agents["a-0"].heard if isinstance(message, kind)]


def saves_run(d: Driver) -> list[ExecuteCell]:
    return [cell for cell in heard(d, ExecuteCell) if ".save('/d'" in cell.spec.code]  # type: ignore[attr-defined]


def written(d: Driver, save: str, error: str = "") -> None:
    """All ranks write that save."""
    for worker in range(4):
        agent_says(d, SaveStarted(worker, save, 4))
    finish(d, lambda cell: f"'{save}'" in cell.spec.code)
    for worker in range(4):
        agent_says(d, PartSaved(worker, save, error, folder="/d/save-000001" if worker == 3 else ""))


def finish(d: Driver, wanted: Callable[[ExecuteCell], bool] = lambda _: True, kind: str = "value") -> None:
    """The ranks end the cells that they are in."""
    for worker in range(4):
        cell = d.agent_of(worker).cells.get(worker)
        if cell is not None and wanted(cell):
            d.agent_of(worker).finish(worker, kind)
    d.settle()


def id_of(cell: ExecuteCell) -> str:
    return cell.spec.code.split("'")[7]


def points(d: Driver, *calls: int) -> None:
    """The ranks answer the last PrepareSave with so many calls each."""
    asked = heard(d, PrepareSave)[-1]
    for worker, count in enumerate(calls):
        agent_says(d, SavePoint(worker, asked.save, count))  # type: ignore[attr-defined]


def waiting_loop() -> tuple[Driver, int]:
    """A run is on all ranks when a save becomes due."""
    d = world()
    run = d.run()
    d.sleep(EVERY + 0.1)
    return d, run


def test_idle_ranks_save_when_the_time_has_come_and_again() -> None:
    d = world()
    assert d.told(RankReply)[-1] == RankReply("auto", -1, Ack())
    assert heard(d, KeepAutosave) == [KeepAutosave(OPTIONS, EVERY, 25.0)]
    d.sleep(EVERY - 1)
    assert not saves_run(d)
    d.sleep(3.1)
    (cell,) = saves_run(d)
    assert cell.spec.is_internal
    finish(d)
    d.sleep(EVERY * 2)  # while it is written, no other begins
    assert len(saves_run(d)) == 1
    written(d, id_of(cell))
    assert [end.folder for end in d.told(SaveEnded)] == ["/d/save-000001"]
    d.sleep(EVERY + 0.1)
    assert len(saves_run(d)) == 2


def test_cells_that_wait_come_after_a_save_that_is_due() -> None:
    d, run = waiting_loop()
    other = d.run()
    finish(d)
    finish(d)  # the save's
    codes = [cell.spec.code for cell in heard(d, ExecuteCell)]  # type: ignore[attr-defined]
    assert [".save('/d'" in code for code in codes] == [False, True, False]
    assert [m.run for m in d.told(RunStarted)] == [run, other]


def test_ranks_in_a_loop_save_at_the_same_call() -> None:
    d, run = waiting_loop()
    (asked,) = heard(d, PrepareSave)
    assert asked.run == run  # type: ignore[attr-defined]
    points(d, 7, 8, 7)
    assert not heard(d, SaveAt)
    agent_says(d, SavePoint(3, asked.save, 6))  # type: ignore[attr-defined]
    (at,) = heard(d, SaveAt)
    assert (at.call, at.options, at.run) == (9, OPTIONS, run)  # type: ignore[attr-defined]
    written(d, at.save)  # type: ignore[attr-defined]
    assert not d.told(SaveEnded)[-1].error
    d.sleep(EVERY - 1)
    assert len(heard(d, PrepareSave)) == 1


@pytest.mark.parametrize("calls", [(0, 0, 0, 0), (5, 0, 5, 5)])
def test_a_cell_without_calls_is_waited_for_and_that_is_said_once(calls: tuple[int, ...]) -> None:
    d, run = waiting_loop()
    points(d, *calls)
    assert [at.call for at in heard(d, SaveAt)] == [0]  # type: ignore[attr-defined]
    d.sleep(6)
    points(d, *calls)
    notices = [n.text for n in d.told(Notice) if "waits for the end" in n.text]
    assert len(notices) == 1
    assert f"run {run};" in notices[0]
    assert "jdist.save_if_due()" in notices[0]
    d.say(StatusRequest("s"))
    assert d.told(StatusReport)[-1].saves.waits_for == f"run {run}"
    finish(d)
    assert len(saves_run(d)) == 1


def test_ranks_that_do_not_answer_are_not_waited_for() -> None:
    d, _ = waiting_loop()
    points(d, 3, 3, 3)
    d.sleep(5.1)
    assert [at.call for at in heard(d, SaveAt)] == [0]  # type: ignore[attr-defined]
    points(d, 3, 3, 3, 3)  # too late
    assert [at.call for at in heard(d, SaveAt)] == [0]  # type: ignore[attr-defined]
    d.sleep(6)
    assert len(heard(d, PrepareSave)) == 2


def test_a_run_on_some_ranks_is_waited_for() -> None:
    d = world()
    d.run((0, 1))
    d.sleep(EVERY + 6)
    assert not heard(d, PrepareSave)
    assert not saves_run(d)
    assert any("on ranks 0-1; to save" in n.text for n in d.told(Notice))
    d.run((2, 3))  # is not held up by the save
    assert len(d.told(RunStarted)) == 2


def test_a_run_that_ends_before_the_call_is_followed_by_the_save() -> None:
    d, _ = waiting_loop()
    points(d, 4, 4, 4, 4)
    finish(d)
    assert not saves_run(d)  # the beginning of a save may still be on its way
    d.sleep(3.1)
    (cell,) = saves_run(d)
    d.settle()
    written(d, id_of(cell))
    assert not d.told(SaveEnded)[-1].error


def test_the_beginning_of_a_save_may_be_heard_of_after_the_end_of_its_run() -> None:
    d, _ = waiting_loop()
    points(d, 4, 4, 4, 4)
    (at,) = heard(d, SaveAt)
    finish(d)
    written(d, at.save)  # type: ignore[attr-defined]
    d.sleep(2)
    assert not saves_run(d)
    assert [end.error for end in d.told(SaveEnded)] == [""]


def test_an_interrupted_run_is_followed_by_the_save() -> None:
    d, run = waiting_loop()
    points(d, 4, 4, 4, 4)
    d.say(Interrupt("i", (), run))
    finish(d, kind="error")
    d.sleep(3.1)
    assert len(saves_run(d)) == 1


@pytest.mark.parametrize("when", ["asked", "placed"])
def test_a_lost_rank_ends_no_more_than_this_try(when: str) -> None:
    d, _ = waiting_loop()
    points(d, *(4,) * (3 if when == "asked" else 4))
    d.agents["a-0"].kill(1)
    d.settle()
    finish(d, kind="error")
    d.sleep(6)
    (cell,) = saves_run(d)
    d.settle()
    written(d, id_of(cell))
    assert not d.told(SaveEnded)[-1].error


def test_a_failure_is_said_and_tried_again_soon() -> None:
    d = world(every=3600.0)
    d.sleep(3601)
    d.settle()
    written(d, id_of(saves_run(d)[-1]), "OSError: [Errno 28] No space left on device")
    (notice,) = [n.text for n in d.told(Notice) if "failed" in n.text]
    assert "No space left" in notice
    assert "older saves are unchanged" in notice
    d.sleep(61)
    assert len(saves_run(d)) == 2


def test_ranks_that_cannot_copy_their_values_fail_the_save() -> None:
    d = world()
    d.agents["a-0"].says.clear()
    d.sleep(EVERY + 0.1)
    finish(d, kind="error")
    assert d.told(SaveEnded)[-1].error


def test_off_ends_the_saves_and_frees_held_ranks() -> None:
    d, _ = waiting_loop()
    d.say(Autosave("off", None))
    assert [at.call for at in heard(d, SaveAt)] == [0]  # type: ignore[attr-defined]
    assert heard(d, KeepAutosave)[-1] == KeepAutosave(None, 0.0, 25.0)
    d.sleep(EVERY * 3)
    assert not saves_run(d)


@pytest.mark.parametrize("message", [Autosave("off", None), Autosave("again", OPTIONS, EVERY)], ids=["off", "again"])
def test_a_save_that_is_placed_goes_on(message: Autosave) -> None:
    """Some ranks may have come to the call, and wait there for the others."""
    d, _ = waiting_loop()
    points(d, 4, 4, 5, 4)
    d.say(message)
    (at,) = heard(d, SaveAt)
    written(d, at.save)  # type: ignore[attr-defined]
    assert not d.told(SaveEnded)[-1].error
    finish(d)
    d.sleep(EVERY - 1)
    assert not saves_run(d)
    d.sleep(2)
    assert len(saves_run(d)) == (message.options is not None)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_placed_save_that_is_not_wanted_any_more_ends_with_its_run(is_lost: bool) -> None:
    d, _ = waiting_loop()
    points(d, 4, 4, 5, 4)
    d.say(Autosave("off", None))
    if is_lost:
        d.agents["a-0"].kill(1)
        d.settle()
    finish(d)
    d.sleep(EVERY * 2)
    assert not saves_run(d)
    d.say(Autosave("again", OPTIONS, EVERY))
    d.sleep(EVERY + 0.1)
    assert len(saves_run(d)) == 1


def test_a_failed_copy_after_off_does_not_stand_in_the_way_of_later_saves() -> None:
    d = world()
    d.sleep(EVERY + 0.1)
    d.say(Autosave("off", None))
    finish(d, kind="error")
    d.say(Autosave("again", OPTIONS, EVERY))
    d.sleep(EVERY + 0.1)
    assert len(saves_run(d)) == 2


def test_a_save_that_is_due_waits_for_one_that_a_user_asked_for() -> None:
    d = world()
    d.sleep(EVERY - 1)
    for worker in range(4):
        agent_says(d, SaveStarted(worker, "own", 4))
    d.sleep(10)  # which asserts that no wake-up that was served is due again
    assert not saves_run(d)
    for worker in range(4):
        agent_says(d, PartSaved(worker, "own", folder="/d/save-000001" if worker == 3 else ""))
    assert len(saves_run(d)) == 1


def test_saves_are_not_closer_than_a_second() -> None:
    d = Driver().ready()
    d.say(Autosave("auto", OPTIONS, 0.5))
    assert "at least 1 s apart" in d.told(RequestRefused)[-1].reason


class TestBeforeTheEnd:
    """A scheduler has announced the end of the job."""

    def test_idle_ranks_save_at_once(self) -> None:
        d, ended = world(), []
        d.state._autosaver.save_now(ended.append)
        d.sleep(0.1)
        (cell,) = saves_run(d)
        d.settle()
        written(d, id_of(cell))
        assert [end.folder for end in ended] == ["/d/save-000001"]

    def test_a_loop_with_calls_is_not_interrupted(self) -> None:
        d, ended = world(), []
        d.run()
        d.state._autosaver.save_now(ended.append)
        d.sleep(0.1)
        points(d, 2, 2, 2, 2)
        d.sleep(5)  # the step is long
        assert not heard(d, AbortRun)
        written(d, heard(d, SaveAt)[-1].save)  # type: ignore[attr-defined]
        assert len(ended) == 1
        d.sleep(10)
        assert not heard(d, AbortRun)

    def test_a_loop_that_has_just_begun_is_asked_again_before_it_is_interrupted(self) -> None:
        d, ended = world(), []
        d.run()
        d.state._autosaver.save_now(ended.append)
        d.sleep(0.1)
        points(d, 1, 0, 0, 1)
        d.sleep(0.5)
        points(d, 9, 9, 8, 9)
        d.sleep(5)
        assert not heard(d, AbortRun)
        written(d, heard(d, SaveAt)[-1].save)  # type: ignore[attr-defined]
        assert len(ended) == 1

    def test_another_run_is_interrupted_after_a_moment(self) -> None:
        d, ended = world(), []
        d.run()
        d.state._autosaver.save_now(ended.append)
        d.sleep(0.1)
        points(d, 0, 0, 0, 0)
        d.sleep(2)
        assert not heard(d, AbortRun)
        d.sleep(1.5)
        assert heard(d, AbortRun)
        finish(d, kind="error")
        (cell,) = saves_run(d)
        d.settle()
        written(d, id_of(cell))
        assert len(ended) == 1

    def test_a_node_may_leave_once_its_announced_end_has_been_saved(self) -> None:
        d = world()
        for agent in ("a-0", "a-1"):
            d.step(FromAgent(agent, EndAnnounced("SIGTERM")))
        d.sleep(0.1)
        (cell,) = saves_run(d)
        assert not heard(d, MayLeave)
        written(d, id_of(cell))
        assert len(heard(d, MayLeave)) == 1
        notices = [n.text for n in d.told(Notice)]
        assert "the job of node 0 (a-0) is about to end (SIGTERM): the session is being saved to /d" in notices
        assert notices[-1] == "before the end of its job, the session was saved to /d/save-000001"
        assert len([text for text in notices if "about to end" in text]) == 1

    def test_a_controller_that_is_asked_to_end_saves_first(self) -> None:
        d = world()
        d.step(EndRequested("SIGTERM"))
        d.sleep(0.1)
        assert not d.exits
        written(d, id_of(saves_run(d)[0]))
        assert d.exits == ["SIGTERM"]

    def test_a_controller_without_automatic_saves_ends_at_once(self) -> None:
        d = Driver().ready()
        d.step(EndRequested("SIGTERM"))
        assert d.exits == ["SIGTERM"]

    def test_without_automatic_saves_there_is_nothing_to_wait_for(self) -> None:
        d, ended = Driver().ready(), []
        d.state._autosaver.save_now(ended.append)
        assert ended == [None]
