"""The meter of a real process, and the GPU stream with a driver's stand-in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jdist.agent.node import CudaVisibility
from jdist.agent.resources import GpuStream, ResourceMeter
from jdist.core.errors import UsageError
from jdist.core.messages.base import QueryFailed
from jdist.core.messages.nodes import NodeResources, ReadResources
from jdist.core.messages.observation import Activity, Observation
from jdist.core.messages.protocol import RankReply
from support.waits import eventually

BUSY_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
sys.stdin.read()
child.kill()
child.wait()
"""
READINGS = """
import time
for used in (1, 2):
    gpu = '{"index": 0, "uuid": "GPU-a", "name": "H", "total": 10, "used": %d, "busy": 0.5}' % used
    print('{"devices": [%s]}' % gpu, flush=True)
time.sleep(600)
"""


async def measured(meter: ResourceMeter, is_enough: Callable[[NodeResources], object]) -> NodeResources:
    """What the meter answers once that ``is_enough``."""
    running = asyncio.create_task(meter.run())
    async with asyncio.timeout(60):
        found = await meter.answer(ReadResources(60, 60))
        while not is_enough(found):
            await asyncio.sleep(0.05)
            found = await meter.answer(ReadResources(60, 60))
    running.cancel()
    return found


def test_a_busy_child_counts_for_its_process() -> None:
    async def measure() -> None:
        kernel: Any = SimpleNamespace(worker=4, pid=process.pid, has_ended=False, device="", gpu_index=0)
        meter = ResourceMeter({4: kernel}, CudaVisibility(None), 0)
        found = await measured(meter, lambda found: found.ranks.get(4, {}).get("cpu", (0.0,))[-1] > 0.1)
        assert set(found.node) == {"cpu", "memory", "received", "sent"}
        assert found.node["cpu"][-1] <= found.cores + 0.5
        assert found.ranks[4]["memory"][-1] > 1e6
        assert found.memory > found.node["memory"][-1] > 0
        assert len(found.ages) == len(found.node["memory"])
        for senseless in (ReadResources(0, 10), ReadResources(60, 0), ReadResources(1e9, 10)):
            with pytest.raises(UsageError, match="points"):
                await meter.answer(senseless)

    with subprocess.Popen([sys.executable, "-c", BUSY_CHILD], stdin=subprocess.PIPE) as process:
        try:
            asyncio.run(measure())
        finally:
            process.communicate(b"")


def test_the_newest_reading_of_the_driver_and_none_after_the_end() -> None:
    stream = GpuStream((sys.executable, "-c", READINGS))
    try:
        assert eventually(lambda: (r := stream.newest()) is not None and r.devices[0].used == 2)
        process = cast("subprocess.Popen[bytes]", stream._process)
    finally:
        stream.close()
    assert process.wait(30) < 0, "it was killed"


def test_each_workers_gpu() -> None:
    stream = GpuStream((sys.executable, "-c", READINGS))
    try:
        assert eventually(lambda: (r := stream.newest()) is not None and r.devices[0].used == 2)

        async def measure() -> Any:
            facts = {"pid": os.getpid(), "has_ended": False, "device": "cuda:0", "gpu_index": 0}
            kernel: Any = SimpleNamespace(worker=0, **facts)
            meter = ResourceMeter({0: kernel}, CudaVisibility(None), 1, stream)
            return await measured(meter, lambda found: found.ranks)

        found = asyncio.run(measure())
    finally:
        stream.close()
    assert (found.gpus, found.gpu_memory) == (1, 10)
    assert (found.node["gpu"][-1], found.node["gpu_memory"][-1]) == (0.5, 2.0)
    assert (found.ranks[0]["gpu"][-1], found.ranks[0]["gpu_memory"][-1]) == (0.5, 2.0)


def test_an_answer_has_the_newest_reading_and_never_waits() -> None:
    facts = {"pid": 41, "has_ended": False, "device": "", "gpu_index": 0}
    kernels: dict[int, Any] = {0: SimpleNamespace(worker=0, **facts)}
    answer = RankReply("q", 0, Observation("cuda:0", Activity("idle"), 1))
    stream = GpuStream((sys.executable, "-c", READINGS))
    meter = ResourceMeter(kernels, CudaVisibility(None), 1, stream)
    try:
        assert meter.with_gpu(answer).body.gpu is None, "nothing is known yet"
        assert eventually(lambda: (r := stream.newest()) is not None and r.devices[0].used == 2)
        found = meter.with_gpu(answer).body.gpu
        assert (found.used, found.busy) == (2, 0.5)
        silent = RankReply("q", 0, Observation("", Activity("silent"), 1))
        assert meter.with_gpu(silent).body.gpu == found, "the device is that of its last answer"
        other = RankReply("q", 0, QueryFailed("no"))
        assert meter.with_gpu(other) is other
    finally:
        meter.close()


def test_a_driver_that_is_missing_is_asked_once_where_no_gpu_is_seen() -> None:
    missing = 'print(\'{"error": "no driver", "is_missing": true}\')'
    stream = GpuStream((sys.executable, "-c", missing), is_patient=False)
    assert eventually(lambda: stream._process is not None and stream._process.returncode is not None)
    assert eventually(lambda: "jdist-gpu-stream" not in {thread.name for thread in threading.enumerate()})
    assert stream.newest() is None
