"""What ranks have of GPUs, from the driver of a node to what a browser is shown, with a driver that is made up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import jdist
from jdist.notebook.verbs import ranks
from support.gpus import MIB, FakeDriver
from support.gpus import gpu as reported
from support.lab.browser import LONG, Browser
from support.waits import eventually

pytestmark = [pytest.mark.usefixtures("server", "traces")]

SLEEP = "import time\nwhile True: time.sleep(0.01)"


@contextlib.contextmanager
def started(driver: FakeDriver, visible: str) -> Iterator[jdist.Cluster]:
    """A cluster of two ranks on a node that has the driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", driver.path)
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        cluster = jdist.start(nproc_per_node=2, backend="gloo", name="metered", timeout=LONG, idle_timeout=LONG)
    with cluster:
        yield cluster


def rows(browser: Browser) -> list[dict[str, Any]]:
    found = browser.get("jdist/clusters/metered")
    return found.get("ranks", [])  # type: ignore[no-any-return]


def gpu(row: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("gpu_"): value for key, value in row.items() if key.startswith("gpu")}


@dataclass
class Screen:
    """What ``%dist status`` shows on, and the cluster that it is of."""

    cluster: jdist.Cluster
    shown: list[str] = field(default_factory=list)

    @property
    def screen(self) -> Screen:
        return self

    def show(self, bundle: dict[str, str]) -> None:
        self.shown.append(bundle["text/plain"])


def all_idle(cluster: jdist.Cluster) -> bool:
    """Both ranks say so."""
    return [look.doing.kind for look in cluster.look(timeout=LONG).values()] == ["idle", "idle"]


def status(cluster: jdist.Cluster) -> str:
    screen = Screen(cluster)
    ranks.status(screen, [])  # type: ignore[arg-type]
    return screen.shown[-1]


def test_what_each_rank_has_of_its_gpu(browser: Browser, tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    driver.reports(reported("GPU-aa11", used=1024, busy=35), reported("GPU-bb22", used=2048, busy=97))
    with started(driver, "GPU-bb,GPU-aa11") as cluster:
        assert eventually(lambda: rows(browser), LONG)
        assert [gpu(row) for row in rows(browser)] == [{}, {}], "of ranks without a GPU nothing is said"
        pids = [row.pid for row in cluster.status().ranks]
        driver.reports(
            reported("GPU-aa11", used=1024, busy=35, processes={pids[1]: None}),
            reported("GPU-bb22", used=2048, busy=97, processes={pids[0]: 512}),
        )
        cluster.run("device = torch.device('cuda', rank)")  # as it is where torch can use them

        total = 143771 * MIB
        expected = [
            {"name": "GPU 1 (NVIDIA H200)", "total": total, "used": 2048 * MIB, "own": 512 * MIB, "busy": None},
            {"name": "GPU 0 (NVIDIA H200)", "total": total, "used": 1024 * MIB, "own": None, "busy": None},
        ]
        assert eventually(lambda: list(map(gpu, rows(browser))) == expected, LONG), rows(browser)

        run = cluster.run(SLEEP, background=True)
        assert eventually(lambda: [gpu(row).get("busy") for row in rows(browser)] == [0.97, 0.35], LONG)
        said = ("97%", "35%", "0.5 of 140 GiB", "1.0 of 140 GiB by all")
        assert eventually(lambda: all(map(status(cluster).__contains__, said)), LONG), status(cluster)
        cluster.interrupt()
        run.wait(LONG)

        # a driver that hangs takes nothing away but this, and nothing of it is left when the cluster ends
        driver.reports(hangs=True)
        assert cluster.run("rank").values == {0: 0, 1: 1}
        assert eventually(lambda: all_idle(cluster), LONG)
        assert eventually(lambda: driver.hanging, LONG)
        assert cluster.run("rank").values == {0: 0, 1: 1}
        assert eventually(lambda: all_idle(cluster), LONG)
        assert len(driver.hanging) == 1
