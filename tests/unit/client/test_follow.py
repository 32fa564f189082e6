"""Following a cluster: when it is polled, what a change and a silence lead to, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jdist.client import follow
from jdist.client.follow import ClusterFollower, Observations, watched_pause
from jdist.core.errors import ConnectionLost, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.runs import RunStarted
from jdist.core.messages.status import ClusterFacts, Notice, RankFacts, RunsChanged, StatusReport

LONG = 10.0
FACTS = ClusterFacts("c1", "ready", 1, "gloo", 1, (3,), ("a",), 3)


def row(rank: int, state: str = "idle", pid: int = 7) -> RankFacts:
    return RankFacts(rank, 0, "a", pid, state, 0, "", False)


class FakeObserver:
    """An attached client whose answers the test decides."""

    def __init__(self) -> None:
        self.link = SimpleNamespace(lost="", connection=SimpleNamespace(name="c1"))
        self.watcher: Callable[[Message], None]
        self.error: Exception | None = None
        self.polls = 0
        self.observed: list[list[int]] = []
        self.is_detached = False

    async def status(self) -> StatusReport:
        self.polls += 1
        if self.error is not None:
            raise self.error
        return StatusReport("s", FACTS, (row(0), row(1, pid=0), row(2, "unreachable")), ())

    async def look(self, ranks: list[int], timeout: float) -> Observations:
        self.observed.append(ranks)
        raise UsageError("rank 0 was removed")

    def watch(self, watcher: Callable[[Message], None]) -> None:
        self.watcher = watcher

    async def detach(self) -> None:
        self.is_detached = True


class Recorder(ClusterFollower):
    """Records what it is given."""

    def __init__(self, attempts: int = 1) -> None:
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.attempts = attempts
        super().__init__()

    @property
    def connection(self) -> Any:
        return "the cluster's connection"

    def wants_observations(self, report: StatusReport) -> bool:
        return bool(report.ranks)

    def handle_report(self, report: StatusReport, observations: Observations) -> None:
        self.events.put_nowait(("report", self.has_changed, dict(observations)))

    def handle_silence(self, error: Exception) -> None:
        self.events.put_nowait(type(error))

    def handle_notice(self, notice: Notice) -> None:
        self.events.put_nowait(notice.text)

    async def attaches_again(self) -> bool:
        self.attempts -= 1
        self.events.put_nowait(("again", self.was_attached))
        return self.attempts > 0

    def pause(self) -> float | None:
        return None

    async def next(self) -> object:
        return await asyncio.wait_for(self.events.get(), LONG)


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> FakeObserver:
    fake = FakeObserver()

    async def observe(connection: object) -> FakeObserver:
        assert connection == "the cluster's connection"
        if isinstance(fake.error, ConnectionRefusedError):
            raise fake.error
        return fake

    monkeypatch.setattr(follow.AsyncCluster, "observe", observe)
    monkeypatch.setattr(follow, "_SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(follow, "RETRY_AFTER", 0.0)
    return fake


def test_a_cluster_is_polled_when_it_changes_and_ranks_that_live_are_observed(observer: FakeObserver) -> None:
    async def scenario() -> None:
        follower = Recorder()
        assert await follower.next() == ("report", False, {})
        observer.watcher(RunStarted(1))
        observer.watcher(RunsChanged())
        assert await follower.next() == ("report", True, {})
        observer.watcher(Notice("rank 1 is lost"))
        assert [await follower.next(), await follower.next()] == ["rank 1 is lost", ("report", True, {})]
        follower.poll_now()
        await follower.next()
        assert (observer.polls, observer.observed) == (4, [[0]] * 4)
        await follower.close()
        assert observer.is_detached

    asyncio.run(scenario())


def test_a_report_that_cannot_be_handled_does_not_end_it(observer: FakeObserver) -> None:
    async def scenario() -> None:
        follower = Recorder()
        await follower.next()
        observer.error = KeyError("an unexpected field")
        follower.poll_now()
        assert await follower.next() is KeyError
        observer.error = None
        follower.poll_now()
        assert await follower.next() == ("report", True, {})
        await follower.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(6))
def test_it_ends_also_while_a_change_is_being_noticed(observer: FakeObserver, steps: int) -> None:
    async def scenario() -> None:
        follower = Recorder()
        await follower.next()
        for _ in range(10):  # until it waits for a change
            await asyncio.sleep(0)
        follower.poll_now()
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(LONG):
            await follower.close()
        assert observer.is_detached

    asyncio.run(scenario())


def test_a_silent_controller_is_polled_again_and_a_lost_one_left(observer: FakeObserver) -> None:
    async def scenario() -> None:
        observer.error = TimeoutError()
        follower = Recorder()
        assert await follower.next() is TimeoutError
        observer.error = ConnectionLost("gone")
        observer.link.lost = "its controller is gone"
        follower.poll_now()
        assert await follower.next() == ("again", True)
        assert (observer.is_detached, follower.observer) == (True, None)
        await follower.close()

    asyncio.run(scenario())


def test_a_cluster_that_cannot_be_reached_is_tried_again(observer: FakeObserver) -> None:
    async def scenario() -> None:
        observer.error = ConnectionRefusedError()
        follower = Recorder(attempts=2)
        found = [await follower.next() for _ in range(4)]
        assert found == [ConnectionRefusedError, ("again", False)] * 2
        assert observer.polls == 0
        await follower.close()

    asyncio.run(scenario())


def test_a_large_world_is_polled_less_often() -> None:
    assert watched_pause(2) == 0.5
    assert watched_pause(2048) == 7.5
