"""Examining: what nvidia-smi prints is understood, or said not to be."""

from __future__ import annotations

import pytest

from jdist.agent.relay.node_report import read_gpus
from jdist.core.messages.nodes import Gpu

PRINTED = "NVIDIA H200, 143771, 12, 570.86.15\nNVIDIA H200, 143771, 0, 570.86.15\n"


def test_each_line_is_a_gpu() -> None:
    gpus, driver = read_gpus(PRINTED)
    assert gpus == (Gpu("NVIDIA H200", 143771 << 20, 12 << 20), Gpu("NVIDIA H200", 143771 << 20, 0))
    assert driver == "570.86.15"


def test_no_line_is_no_gpu() -> None:
    assert read_gpus("\n") == ((), "")


def test_a_gpu_without_memory_of_its_own_counts_as_having_none() -> None:
    assert read_gpus("NVIDIA GB10, [N/A], [N/A], 580.1")[0] == (Gpu("NVIDIA GB10", 0, 0),)


def test_what_is_not_understood_is_quoted() -> None:
    with pytest.raises(ValueError, match="No devices were found"):
        read_gpus("No devices were found")
