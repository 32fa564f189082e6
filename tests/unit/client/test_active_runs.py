"""Active runs: each run gets the controller's messages about it, from its acceptance on, however early it ends."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment
from jdist.client.run import CellRun
from jdist.core.errors import ConnectionLost, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.code import UseImportPath
from jdist.core.messages.debug import FollowRun, RunFollowed
from jdist.core.messages.runs import (
    Interrupt,
    Output,
    RankDone,
    ReadRun,
    RunAccepted,
    RunEnded,
    RunRecord,
    RunStarted,
    Text,
)
from jdist.core.messages.status import ClusterFacts, Notice, Stopped

FACTS = ClusterFacts("c", "ready", 1, "gloo", 1, (2,), ("a",), 2)
CELL = ("x = 1", (0, 1))


class ToController:
    """A link whose controller accepts a cell when it is told to, and then sends ``later`` before any task wakes."""

    def __init__(self) -> None:
        self.facts = FACTS
        self.host = None
        self.lost = ""
        self.may_be_replaced = False
        self.sent: list[Message] = []
        self.on_event: Callable[[Message], None] = lambda _: None
        self.accepts = asyncio.Event()
        self.asked = asyncio.Event()
        self.later: list[Message] = []

    async def current(self) -> ToController:
        return self

    def send(self, message: Message) -> None:
        self.sent.append(message)

    async def request(self, message: Any, expected: type, timeout: float = 0.0) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        async def answered() -> None:
            await self.accepts.wait()
            accepted: Message = RunAccepted(message.request, 7)
            if isinstance(message, FollowRun):
                accepted = RunFollowed(message.request, message.run, "x", (0, 1), (1,), 3.0)
            self.on_event(accepted)
            if not answer.cancelled():
                answer.set_result(accepted)
            for each in self.later:
                self.on_event(each)

        self.answering = asyncio.create_task(answered())
        self.asked.set()
        return await answer


def play(scene: Callable[[ActiveRuns, ToController], Awaitable[None]]) -> None:
    async def main() -> None:
        link: Any = ToController()
        attachment = Attachment()
        attachment.current = link
        runs = ActiveRuns(attachment)
        link.on_event = attachment.receive
        await asyncio.wait_for(scene(runs, link), 10.0)

    asyncio.run(main())


def ended(run: int = 7) -> list[Message]:
    return [RunStarted(run), RankDone(run, 0, "ok"), RankDone(run, 1, "ok"), RunEnded(run, "", 0.1)]


def test_a_run_that_ends_before_its_submitter_wakes_is_whole() -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.later = ended()
        link.accepts.set()
        submitting = asyncio.create_task(runs.submit(*CELL))
        await asyncio.sleep(0)
        gc.collect()
        run = await submitting
        assert run.is_done
        assert sorted(run.outcomes) == [0, 1]

    play(scene)


def test_ranks_learn_where_this_process_finds_modules_whenever_that_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.accepts.set()
        for path in (["/a", *sys.path], ["/a", *sys.path], ["/b", *sys.path]):
            monkeypatch.setattr(sys, "path", path)
            await runs.submit(*CELL)
        paths = [message.path.before[0] for message in link.sent if isinstance(message, UseImportPath)]
        assert paths == ["/a", "/b"]

    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("/a", "/b")])
    play(scene)


def test_ranks_learn_which_modules_they_can_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine.py", "data.csv", "not-a-name.py", "compiled.abi3.so", "__main__.py"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()

    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.accepts.set()
        await runs.submit(*CELL)
        (tmp_path / "fresh.py").touch()
        await runs.submit(*CELL)
        known = [set(message.modules) for message in link.sent if isinstance(message, UseImportPath)]
        ours = {"mine", "compiled", "folder"}
        assert [names & {*ours, "fresh", "data", "__main__"} for names in known] == [ours, {*ours, "fresh"}]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    play(scene)


def test_a_cell_whose_submitter_has_gone_is_interrupted_when_it_is_accepted() -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        submitting = asyncio.create_task(runs.submit(*CELL))
        await link.asked.wait()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        link.accepts.set()
        await link.answering
        assert link.sent[1:] == [Interrupt("", (), 7)]

    play(scene)


def test_cancelling_the_wait_interrupts_the_run() -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.accepts.set()
        waiting = asyncio.create_task(runs.wait(await runs.submit(*CELL)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert link.sent[1:] == [Interrupt("", (), 7)]

    play(scene)


def test_the_end_of_the_cluster_ends_its_runs() -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.accepts.set()
        run: CellRun = await runs.submit(*CELL)
        runs.handle(Stopped("its controller is gone"))
        assert run.is_done
        with pytest.raises(ConnectionLost, match="its controller is gone"):
            await runs.wait(run)

    play(scene)


@pytest.mark.parametrize("end", ["value", "unknown there", "not started again"])
def test_a_run_goes_on_with_the_controller_that_takes_over(end: str) -> None:
    async def scene(runs: ActiveRuns, link: Any) -> None:
        link.accepts.set()
        run: CellRun = await runs.submit(*CELL)
        told: list[Message | None] = []
        run.watch(told.append)
        link.on_event(RankDone(7, 0, "value"))
        revived, link.may_be_replaced, link.lost = asyncio.Event(), True, "its controller is gone"
        recorded = (Notice("cut", 7), RunStarted(7), Output(7, (Text((1,), "stdout", "more"),)))
        record = RunRecord("", 7, (0, 1), recorded, 1.0)

        async def current() -> Any:
            await revived.wait()
            if end == "not started again":
                raise ConnectionLost(link.lost)
            return link

        async def request(message: ReadRun, _expected: type) -> Message:
            assert message.waiter is not None
            assert message.waiter.is_owner
            if end == "unknown there":
                raise UsageError("run 7 is not known")
            answer = msgspec.structs.replace(record, request=message.request)
            link.on_event(answer)
            link.later = [RankDone(7, 1, "value"), RunEnded(7, "", 2.0)]
            return answer

        link.current, link.request = current, request
        runs.handle(Stopped(link.lost))
        assert not run.is_done
        run.cancel()
        await asyncio.sleep(0)
        link.lost = "its controller is gone, and could not be started again" if end == "not started again" else ""
        revived.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert end != "value" or Interrupt("", (), 7) in link.sent, "the user has interrupted meanwhile"
        for late in link.later:
            link.on_event(late)
        await run
        if end != "value":
            with pytest.raises(ConnectionLost, match="its controller is gone"):
                run.check()
            return
        run.check()
        assert sorted(run.outcomes) == [0, 1]
        assert not [m.text for m in told if isinstance(m, Notice)], "what has been recorded is said already"
        assert [m.items[0].text for m in told if isinstance(m, Output)] == ["more"]

    play(scene)


def test_a_lost_cluster_is_not_interrupted() -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.lost = "its controller is gone"
        runs.interrupt_now(7)
        assert not link.sent

    play(scene)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        with pytest.raises(UsageError, match="a timeout is a positive number of seconds"):
            await runs.submit("x", (0,), timeout=timeout)

    play(scene)


def test_a_run_is_followed_once_and_gets_what_comes_next() -> None:
    async def scene(runs: ActiveRuns, link: ToController) -> None:
        link.accepts.set()
        link.later = [RankDone(7, 1, "value")]
        one, two = await asyncio.gather(runs.follow(7), runs.follow(7))
        assert one is two
        assert sorted(one.outcomes) == [0, 1]
        assert await runs.follow(7) is one
        runs.handle(RunEnded(7, "", 4.0))
        assert one.is_done

    play(scene)
