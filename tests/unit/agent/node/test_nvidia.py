"""Nvidia-smi: what it prints arrives, what it complains of is said, and one that hangs is ended with all it started."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from jdist.agent.node import nvidia
from support.drivertool import DriverTool
from support.waits import eventually


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverTool:
    found = DriverTool(tmp_path)
    monkeypatch.setenv("PATH", found.path)
    return found


def processes(folder: Path) -> list[str]:
    """Command lines of what the tool has started, and of itself."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        of = process.info["environ"] or {}
        if str(folder) in of.get("PATH", "") and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.info["cmdline"] or []))
    return [line for line in found if "nvidia-smi" in line or line.startswith("sleep")]


def test_what_it_prints(tool: DriverTool) -> None:
    tool.prints("0, GPU-a\n1, GPU-b\n", "GPU-a, 41\n")
    assert nvidia.is_there()
    assert nvidia.query("gpu", ("index", "uuid"), 20.0) == "0, GPU-a\n1, GPU-b\n"
    assert nvidia.query("compute-apps", ("gpu_uuid", "pid"), 20.0) == "GPU-a, 41\n"
    assert tool.asked == ["--query-gpu=index,uuid", "--query-compute-apps=gpu_uuid,pid"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'No devices were found'; exit 6", "No devices were found"),
        ("echo half; echo 'the driver is too old' >&2; exit 2", "the driver is too old"),
        ("exit 9", "ended with code 9"),
    ],
)
def test_what_it_complains_of(tool: DriverTool, script: str, says: str) -> None:
    (tool.folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(OSError, match=says):
        nvidia.query("gpu", ("index",), 20.0)


def test_one_that_hangs_is_ended_with_what_it_started(tool: DriverTool) -> None:
    tool.hangs()
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        nvidia.query("gpu", ("index",), 1.0)
    assert eventually(lambda: not processes(tool.folder)), processes(tool.folder)


def test_bytes_that_are_no_text_are_no_error(tool: DriverTool) -> None:
    (tool.folder / "nvidia-smi").write_text("#!/bin/sh\nprintf '0, \\377\\n'\n")
    assert nvidia.query("gpu", ("index",), 20.0) == "0, \ufffd\n"


def test_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not nvidia.is_there()
    with pytest.raises(OSError, match="nvidia-smi"):
        nvidia.query("gpu", ("index",), 20.0)
