"""Prewarmer: begins when a node has been idle for a while, waits while a cell runs, goes on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from jdist.agent.processes.forkserver import ProcessRequest
from jdist.agent.processes.starter import PreloadedProcess, Prewarmer, Starter

IDLE = 0.02


class Recorder(Starter):
    """A starter that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.warmed = asyncio.Event()

    async def start(self, request: ProcessRequest) -> int:
        raise NotImplementedError

    async def _begin_ahead(self) -> PreloadedProcess:
        raise NotImplementedError

    async def warm(self) -> None:
        self.told.append("warm")
        self.warmed.set()

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def close(self) -> None:
        self.told.append("close")


def play(scene: Callable[[Prewarmer, Recorder], Coroutine[Any, Any, None]]) -> list[str]:
    """What the starter is told in a scene."""

    async def main() -> list[str]:
        tasks: list[asyncio.Task[None]] = []
        starter = Recorder()
        prewarmer = Prewarmer(starter, lambda work: tasks.append(asyncio.create_task(work)), IDLE)
        await scene(prewarmer, starter)
        prewarmer.stop()
        await asyncio.gather(*tasks)
        return starter.told

    return asyncio.run(main())


async def warmed(starter: Recorder) -> None:
    await asyncio.wait_for(starter.warmed.wait(), 10)


def test_it_begins_when_the_node_has_been_idle_for_a_while() -> None:
    async def scene(prewarmer: Prewarmer, starter: Recorder) -> None:
        prewarmer.record_ended(0)
        prewarmer.record_ended(1)
        assert starter.told == []
        await warmed(starter)

    assert play(scene) == ["resume", "warm"]


def test_not_before_the_last_rank_has_ended_its_cell() -> None:
    async def scene(prewarmer: Prewarmer, starter: Recorder) -> None:
        prewarmer.record_started([0, 1])
        prewarmer.record_ended(0)
        await asyncio.sleep(4 * IDLE)
        assert starter.told == ["pause"]
        prewarmer.record_ended(1)
        await warmed(starter)

    assert play(scene) == ["pause", "resume", "warm"]


def test_a_cell_that_comes_in_time_puts_it_off() -> None:
    async def scene(prewarmer: Prewarmer, starter: Recorder) -> None:
        prewarmer.record_ended(0)
        prewarmer.record_started([0])
        await asyncio.sleep(4 * IDLE)

    assert play(scene) == ["pause"]


def test_a_cell_stops_what_is_under_way_and_its_end_lets_it_go_on() -> None:
    async def scene(prewarmer: Prewarmer, starter: Recorder) -> None:
        prewarmer.record_ended(0)
        await warmed(starter)
        starter.warmed.clear()
        prewarmer.record_started([0])
        prewarmer.record_ended(0)
        await warmed(starter)

    assert play(scene) == ["resume", "warm", "pause", "resume", "warm"]


def test_a_cell_for_no_rank_that_is_here_changes_nothing() -> None:
    async def scene(prewarmer: Prewarmer, starter: Recorder) -> None:
        prewarmer.record_ended(0)
        prewarmer.record_started([])
        await warmed(starter)

    assert play(scene) == ["resume", "warm"]


def test_it_can_be_turned_off() -> None:
    async def scene(prewarmer: Prewarmer, starter: Recorder) -> None:
        prewarmer.is_enabled = False
        prewarmer.record_ended(0)
        await asyncio.sleep(4 * IDLE)

    assert play(scene) == ["resume"]
