"""Helpers: a process's one datagram arrives, also if it ends at once; one that ends without it says why."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from jdist.agent.processes.forkserver import ProcessRequest
from jdist.agent.processes.helpers import start_reporter
from jdist.core.errors import LaunchError
from jdist.core.settings import TorchFactsSpec

REPORT = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'ready', sys.argv[1])"


class Starter:
    """Starts Python with ``code``, which gets the report's path."""

    def __init__(self, code: str):
        self.code = code
        self.pid = 0

    async def start(self, request: ProcessRequest) -> int:
        return self._spawn(request.log, msgspec.json.decode(request.spec, type=TorchFactsSpec).report_to)

    def _spawn(self, path: str, report_to: str) -> int:
        with open(path, "wb") as log:
            process = subprocess.Popen([sys.executable, "-c", self.code, report_to], stderr=log)
        process.returncode = 0  # the test waits for it
        self.pid = process.pid
        return process.pid


def start(folder: Path, code: str, timeout: float = 30.0) -> bytes:
    starter = Starter(code)
    try:
        asked = start_reporter(starter, folder, "any", "no.module:main", TorchFactsSpec, timeout)  # type: ignore[arg-type]
        pid, report = asyncio.run(asked)
        assert pid == starter.pid
        return report
    finally:
        os.kill(starter.pid, signal.SIGKILL)
        os.waitpid(starter.pid, 0)
        assert not any(folder.glob("any-report*"))


@pytest.mark.parametrize("code", [REPORT, f"{REPORT}; import time; time.sleep(1000)"])
def test_its_report(tmp_path: Path, code: str) -> None:
    assert start(tmp_path, code) == b"ready"


def test_one_that_ends_without_a_report_says_why(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="ended without a report; no torch here"):
        start(tmp_path, "import sys; sys.exit('no torch here')")


def test_one_that_reports_too_late(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        start(tmp_path, "import time; time.sleep(1000)", timeout=0.5)
