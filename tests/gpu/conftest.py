"""Tests in this folder need GPUs: `make test-gpu`. Elsewhere they are skipped.

With ``JDIST_GPU_TESTS=cpu`` those with a counterpart on CPUs run there, by gloo, which shows that they are right as
tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jdist
from support.gpus.shared import nccl_options
from support.leaks import Traces
from support.waits import eventually

IS_REHEARSAL = os.environ.get("JDIST_GPU_TESTS") == "cpu"
WORKS = "_on = torch.full((8,), rank + 1.0, device=gpu); dist.all_reduce(_on); _on.unique().tolist()"
"""What all ranks give: the sum of 1 to the world's size."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    absent = pytest.mark.skip(reason="needs a GPU, and a torch that can use it: make test-gpu")
    real = pytest.mark.skip(reason="has no counterpart on CPUs")
    for item in items:
        if not str(item.path).startswith(here):
            continue
        item.add_marker(pytest.mark.gpu)
        if IS_REHEARSAL:
            if item.get_closest_marker("only_gpu"):
                item.add_marker(real)
        elif not torch.cuda.is_available():
            item.add_marker(absent)


class Worlds:
    """The clusters of this folder's tests, each started once and replaced if a test has broken it."""

    def __init__(self) -> None:
        self._clusters: dict[str, jdist.Cluster] = {}

    def get(self, kind: str) -> jdist.Cluster:
        if kind not in self._clusters:
            made = self._clusters[kind] = self._start(is_gloo=kind == "gloo" or IS_REHEARSAL)
            where = "device" if kind == "nccl" or IS_REHEARSAL else "torch.device('cuda', 0)"
            made.run(f"gpu = {where}", setup=True)
        return self._clusters[kind]

    def _start(self, *, is_gloo: bool) -> jdist.Cluster:
        options: dict[str, Any] = {"timeout": 180, "idle_timeout": 600, "warm": False}
        if is_gloo:
            return jdist.start(2, backend="gloo", **options)
        with nccl_options() as nccl:
            return jdist.start(**nccl, **options)

    def check(self, kind: str) -> None:
        cluster = self._clusters[kind]
        try:
            size = len(cluster.run("rank").values)
            assert cluster.run(WORKS, timeout=60).values == {key: [size * (size + 1) / 2] for key in range(size)}
        except BaseException:
            self._clusters.pop(kind).stop()
            raise

    def end(self) -> None:
        for cluster in self._clusters.values():
            cluster.stop()


@pytest.fixture(scope="session")
def worlds(run_traces: Traces) -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.end()


@pytest.fixture
def world(worlds: Worlds) -> Iterator[jdist.Cluster]:
    """A rank on each GPU, or two on the only one, with NCCL. On every rank ``gpu`` is its device.

    It is checked to work after the test.
    """
    yield worlds.get("nccl")
    worlds.check("nccl")


@pytest.fixture
def pair(worlds: Worlds) -> Iterator[jdist.Cluster]:
    """Two ranks on one GPU, with gloo."""
    yield worlds.get("gloo")
    worlds.check("gloo")


@pytest.fixture
def begun(world: jdist.Cluster) -> Callable[[jdist.CellRun], None]:
    """Waits until all ranks of the run are in its cell."""

    def wait(run: jdist.CellRun) -> None:
        def are_there() -> bool:
            seen = world.look()
            return all(rank in seen and seen[rank].run == run.number for rank in run.ranks)

        assert eventually(are_there), "the cell has not begun"

    return wait
