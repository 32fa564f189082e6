"""Which processes have ended, whatever happens while they are looked at."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jdist.wire import processes


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_has_ended_once_it_is_a_zombie_and_once_it_is_gone(process: subprocess.Popen[bytes]) -> None:
    assert not processes.has_ended(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.has_ended(process.pid)
    process.wait()
    assert processes.has_ended(process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_process_that_is_reaped_while_it_is_looked_at_has_ended(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file in /proc is open then, and reading it fails."""

    def reaped_meanwhile(path: str, mode: str) -> Any:
        file = Path(path).open(mode)  # noqa: SIM115 - has_ended closes it
        process.kill()
        process.wait()
        return file

    monkeypatch.setattr(processes, "open", reaped_meanwhile, raising=False)
    assert processes.has_ended(process.pid)
