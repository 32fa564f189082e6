"""Asking NVML in a process of its own: its report arrives, its complaints are raised, one that hangs is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from jdist.agent.node import GpuDevice, query
from jdist.wire.processes import has_ended
from support.gpus import MIB, FakeDriver, gpu
from support.waits import eventually


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver(tmp_path)
    monkeypatch.setenv("PYTHONPATH", found.path)
    return found


def test_its_report(driver: FakeDriver) -> None:
    driver.reports(gpu("GPU-a", used=7, processes={41: 5}), driver="570.1")
    reading = query(60.0)
    assert reading.devices == (GpuDevice(0, "GPU-a", "NVIDIA H200", 143771 * MIB, 7 * MIB),)
    assert reading.taken == {41: {"GPU-a": 5 * MIB}}
    assert reading.driver == "570.1"
    assert driver.asked == 1


def test_a_driver_that_fails_and_one_that_is_not_installed(driver: FakeDriver) -> None:
    driver.reports(error="Driver/library version mismatch")
    with pytest.raises(OSError, match="version mismatch") as raised:
        query(60.0)
    assert not isinstance(raised.value, FileNotFoundError)
    driver.reports(is_missing=True)
    with pytest.raises(FileNotFoundError, match="Not Found"):
        query(60.0)


def test_what_it_says_when_it_breaks(driver: FakeDriver) -> None:
    (driver.folder / "pynvml.py").write_text("import os; os.write(2, b'broken \\xff'); os._exit(3)")
    with pytest.raises(OSError, match="broken"):
        query(60.0)


def test_one_that_hangs_is_ended(driver: FakeDriver) -> None:
    driver.reports(hangs=True)
    with pytest.raises(TimeoutError, match="no answer within 5 s"):
        query(5.0)
    assert eventually(lambda: driver.hanging)
    (pid,) = driver.hanging
    assert eventually(lambda: has_ended(pid))
