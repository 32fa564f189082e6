"""The node report holds what the GPU driver reports, and its complaints where GPUs are to be expected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jdist.agent.node import GpuDevice, GpuReading, node_facts
from jdist.agent.relay import queries
from jdist.agent.relay.queries import report_fully
from jdist.core.errors import LaunchError
from jdist.core.messages.nodes import Gpu, NodeReport

READING = GpuReading(
    (GpuDevice(0, "H200", "NVIDIA H200", 143771, 12), GpuDevice(1, "b", "NVIDIA GB10")), {}, "570.86.15"
)


class NoStarter:
    """Cannot start the process that asks torch."""

    async def start(self, request: Any) -> int:
        raise LaunchError("no forks here")


def report(monkeypatch: pytest.MonkeyPatch, folder: Path, answer: GpuReading | OSError, gpus: int = 0) -> NodeReport:
    def query(seconds: float) -> GpuReading:
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(queries, "query", query)
    facts = msgspec.structs.replace(node_facts(("127.0.0.1", 1)), gpus=gpus)
    return asyncio.run(report_fully(facts, NoStarter(), folder))  # type: ignore[arg-type]


def test_the_drivers_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = report(monkeypatch, tmp_path, READING, gpus=2)
    assert found.gpus == (Gpu("NVIDIA H200", 143771, 12), Gpu("NVIDIA GB10", 0, 0))
    assert found.driver == "570.86.15"
    assert found.trouble[0] == "torch could not be asked: no forks here"


@pytest.mark.parametrize(
    ("answer", "gpus", "is_told"),
    [
        (OSError("Driver/library version mismatch"), 0, True),
        (OSError("Driver/library version mismatch"), 2, True),
        (FileNotFoundError("NVML Shared Library Not Found"), 0, False),
        (FileNotFoundError("NVML Shared Library Not Found"), 2, True),
        (TimeoutError("no answer within 15 s"), 2, True),
    ],
)
def test_a_driver_that_fails_is_named_and_a_missing_one_where_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: OSError, gpus: int, is_told: bool
) -> None:
    found = report(monkeypatch, tmp_path, answer, gpus)
    assert (f"NVML: {answer}" in found.trouble) == is_told
    assert (found.gpus, found.driver) == ((), "")
