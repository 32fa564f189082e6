"""Metering: answers get what is known of the GPU, wait a moment for what is not, and never for a driver that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from jdist.agent.node.gpus import CudaVisibility, GpuDevice, GpuReading
from jdist.agent.relay.gpu_meter import GpuMeter
from jdist.core.messages.base import Message
from jdist.core.messages.observation import Observation, Stalled
from jdist.core.messages.protocol import RankReply
from jdist.core.observation import Activity

PATIENCE = 20.0
MIB = 1 << 20


class Loop(asyncio.SelectorEventLoop):
    """Its time stands still but for what a test says."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@dataclass
class Worker:
    """What a meter knows of a rank's process."""

    pid: int
    device: str = ""
    gpu_index: int = 0


@dataclass
class Driver:
    """Tells that process 41 has ``own`` MiB of the node's two GPUs' first; fails or hangs when told to."""

    own: int = 100
    calls: int = 0
    fails: bool = False
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self, seconds: float) -> GpuReading:
        self.calls += 1
        own = self.own
        assert self.gate.wait(PATIENCE)
        if self.fails:
            raise OSError("No devices were found")
        devices = (
            GpuDevice(0, "GPU-a", "H200", 1000 * MIB, 500 * MIB, 0.97),
            GpuDevice(1, "GPU-b", "H200", 1000 * MIB, 7 * MIB, 0.03),
        )
        return GpuReading(devices, {41: {"GPU-a": own * MIB}})


class Bed:
    """A meter of a node with two ranks."""

    def __init__(self, loop: Loop, driver: Driver, visibility: CudaVisibility, gpus: int):
        self.loop = loop
        self.driver = driver
        self.sent: list[Any] = []
        self.workers: dict[int, Any] = {0: Worker(41), 1: Worker(42, gpu_index=1)}
        self.meter = GpuMeter(self.workers, visibility, gpus, self.sent.append, driver)

    def answer(self, request: str, rank: int = 0, device: str = "cuda:0", kind: Any = "idle") -> None:
        self.meter.forward(RankReply(request, rank, Observation(device, Activity(kind), 1)))

    async def until(self, claim: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not claim():
            assert time.monotonic() < deadline
            await asyncio.to_thread(time.sleep, 0.001)

    async def come(self, count: int) -> list[Message]:
        """All that was sent, once it is so many."""
        await self.until(lambda: len(self.sent) >= count)
        return self.sent

    async def first(self) -> None:
        """The first measurement is there."""
        self.meter.request("first")
        self.answer("first")
        await self.until(lambda: self.meter._measuring_since is None)
        self.sent.clear()

    def own(self, message: Any) -> int | None:
        return message.body.gpu and message.body.gpu.own and message.body.gpu.own // MIB


Act = Callable[[Bed], Awaitable[None]]
Try = Callable[..., None]


@pytest.fixture
def attempt() -> Try:
    def attempt(
        act: Act, driver: Driver | None = None, visibility: CudaVisibility | None = None, gpus: int = 2
    ) -> None:
        driver = driver or Driver()

        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Loop)
            try:
                await act(Bed(loop, driver, visibility or CudaVisibility(None), gpus))
            finally:
                driver.gate.set()

        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(main())

    return attempt


def test_the_first_answers_wait_and_tell(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.gate.clear()
        bed.meter.request("q")
        bed.answer("q", 0)
        bed.answer("q", 1, "cuda:1")
        await bed.until(lambda: bed.driver.calls)
        assert bed.sent == []
        bed.driver.gate.set()
        one, other = [m.body.gpu for m in await bed.come(2)]
        assert (one.name, one.total, one.used, one.own, one.busy) == (
            "GPU 0 (H200)",
            1000 * MIB,
            500 * MIB,
            100 * MIB,
            0.97,
        )
        assert (other.name, other.used, other.own, other.busy) == ("GPU 1 (H200)", 7 * MIB, None, 0.03)
        assert bed.driver.calls == 1

    attempt(act)


def test_who_did_not_ask_is_not_told_and_does_not_wait(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.gate.clear()
        bed.meter.request("q")
        bed.answer("look-1")
        bed.meter.forward(Stalled(0, 3))
        assert [type(m) for m in bed.sent] == [RankReply, Stalled]
        assert bed.own(bed.sent[0]) is None

    attempt(act)


def test_while_it_is_recent_it_is_told_at_once_and_measured_once_a_second(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        await bed.first()
        bed.driver.own = 200
        bed.meter.request("at once")
        bed.answer("at once")
        assert bed.driver.calls == 1
        bed.loop.now += 1.5
        bed.driver.gate.clear()
        bed.meter.request("later")
        bed.answer("later")
        await bed.until(lambda: bed.driver.calls == 2)
        bed.meter.request("beside")
        bed.answer("beside")
        assert [bed.own(m) for m in bed.sent] == [100, 100, 100], "none of them waited"
        bed.driver.gate.set()
        await bed.until(lambda: bed.meter._measuring_since is None)
        bed.meter.request("at last")
        bed.answer("at last")
        assert bed.own(bed.sent[-1]) == 200
        assert bed.driver.calls == 2

    attempt(act)


def test_where_a_cell_has_ended_since_it_is_measured_anew(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        await bed.first()
        bed.meter.record_cell_end()
        bed.driver.own = 300
        bed.loop.now += 0.01
        bed.meter.request("q")
        bed.answer("q")
        assert bed.sent == []
        assert [bed.own(m) for m in await bed.come(1)] == [300]

    attempt(act)


def test_what_was_begun_before_a_cells_end_is_not_what_is_told(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.gate.clear()
        bed.meter.request("early")
        await bed.until(lambda: bed.driver.calls)
        bed.loop.now += 0.01
        bed.meter.record_cell_end()
        bed.driver.own = 300
        bed.meter.request("q")
        bed.answer("q")
        bed.driver.gate.set()
        assert [bed.own(m) for m in await bed.come(1)] == [300]
        assert bed.driver.calls == 2

    attempt(act)


def test_a_driver_that_hangs_costs_a_moment_and_is_one_process(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.gate.clear()
        for request in ("q", "r"):
            bed.meter.request(request)
            bed.answer(request, 0, kind="python")
            assert bed.sent == []
            bed.loop.now += 1.1
            (told,) = await bed.come(1)
            assert told.body.doing.kind == "python"  # type: ignore[attr-defined]
            assert bed.own(told) is None
            bed.sent.clear()
        assert bed.driver.calls == 1

    attempt(act)


def test_a_driver_that_hangs_later_leaves_what_was_known_for_a_while(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        await bed.first()
        bed.driver.gate.clear()
        for passed, told in ((4.0, 100), (7.0, None)):
            bed.loop.now += passed
            bed.meter.request("q")
            bed.answer("q")
            bed.loop.now += 1.1
            assert [bed.own(m) for m in await bed.come(1)] == [told]
            bed.sent.clear()

    attempt(act)


@pytest.mark.parametrize(("gpus", "calls"), [(0, 1), (2, 2)])
def test_a_driver_that_fails_is_asked_again_later_if_there_are_gpus(attempt: Try, gpus: int, calls: int) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.fails = True
        await bed.first()
        for _ in range(5):
            bed.meter.request("q")
            bed.answer("q")
            bed.loop.now += 5.0
        assert [bed.own(m) for m in bed.sent] == [None] * 5
        assert bed.driver.calls == 1
        bed.sent.clear()
        bed.driver.fails = False
        bed.loop.now += 3600.0
        bed.meter.request("again")
        bed.answer("again")
        assert [bed.own(m) for m in await bed.come(1)] == [100 if gpus else None]
        assert bed.driver.calls == calls

    attempt(act, gpus=gpus)


def test_a_driver_that_fails_now_takes_back_what_was_known(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        await bed.first()
        bed.driver.fails = True
        bed.loop.now += 1.5
        bed.meter.request("q")
        await bed.until(lambda: bed.meter._measuring_since is None)
        bed.answer("q")
        assert [bed.own(m) for m in bed.sent] == [None]

    attempt(act)


@pytest.mark.parametrize("visible", ["", "-1"])
def test_ranks_that_are_to_see_no_gpu_have_none(attempt: Try, visible: str) -> None:
    async def act(bed: Bed) -> None:
        bed.meter.request("q")
        bed.answer("q")
        assert bed.own(bed.sent[0]) is None
        assert bed.driver.calls == 0

    attempt(act, visibility=CudaVisibility(visible))


def test_where_no_gpu_is_seen_the_driver_is_asked_once_and_no_answer_waits_for_it(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.gate.clear()
        bed.driver.fails = True
        bed.meter.request("q")
        bed.answer("q")
        assert [bed.own(m) for m in bed.sent] == [None]
        bed.driver.gate.set()
        await bed.until(lambda: bed.meter._measuring_since is None)
        bed.loop.now += 7200.0
        bed.meter.request("r")
        assert bed.driver.calls == 1

    attempt(act, gpus=0)


def test_a_driver_that_knows_gpus_which_are_not_seen_is_believed(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        await bed.first()
        bed.meter.record_cell_end()
        bed.loop.now += 0.01
        bed.meter.request("q")
        bed.answer("q")
        assert [bed.own(m) for m in await bed.come(1)] == [100]

    attempt(act, gpus=0)


def test_a_rank_that_is_silent_keeps_its_gpu(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.answer("look-1", 1, "cuda:1")
        await bed.first()
        bed.meter.request("q")
        bed.answer("q", 1, "", "silent")
        assert bed.sent[-1].body.gpu.name == "GPU 1 (H200)"

    attempt(act)


def test_a_rank_without_a_gpu_of_its_own_is_found_by_its_process(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        await bed.first()
        bed.meter.request("q")
        bed.answer("q", 0, "cpu")
        bed.answer("q", 1, "cpu")
        bed.answer("q", 1, "cuda")
        names = [m.body.gpu and m.body.gpu.name for m in bed.sent]
        assert names == ["GPU 0 (H200)", None, "GPU 1 (H200)"]

    attempt(act)


def test_what_has_waited_long_enough_is_sent_once(attempt: Try) -> None:
    async def act(bed: Bed) -> None:
        bed.driver.gate.clear()
        bed.meter.request("q")
        bed.answer("q", 1)
        bed.loop.now += 1.1
        assert [m.rank for m in await bed.come(1)] == [1]  # type: ignore[attr-defined]
        bed.driver.gate.set()
        await bed.until(lambda: bed.meter._measuring_since is None)
        assert len(bed.sent) == 1

    attempt(act)
