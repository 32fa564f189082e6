"""Steps of an installation on a remote host, which end with the login."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import jdist
from support.waits import eventually

CODE = "import sys; from jdist.launch.ssh_install import _run; _run(sys.argv[1:], lambda line: print(line, flush=True))"


def begin(*step: str) -> subprocess.Popen[str]:
    env = {"PYTHONPATH": str(Path(jdist.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-P", "-c", CODE, *step], env=env, text=True, **streams)


def test_its_progress_and_the_last_lines_of_a_failure_are_shown() -> None:
    step = begin("sh", "-c", "echo Collecting torch; echo noise; echo no room >&2; exit 3")
    assert step.stdin is not None
    assert step.stdout is not None
    assert step.stdout.read() == "Collecting torch\n"
    assert step.wait(20) == 1
    assert step.stderr is not None
    assert "no room" in step.stderr.read()
    step.communicate()


@pytest.mark.parametrize("how", ["login", "killed"])
def test_it_ends_when_the_login_or_its_process_does(how: str) -> None:
    step = begin("sh", "-c", "echo Collecting; sleep 300")
    assert step.stdout is not None
    assert step.stdout.readline() == "Collecting\n"
    children = psutil.Process(step.pid).children()
    assert children
    began = time.monotonic()
    if how == "killed":
        step.kill()
        step.communicate(timeout=20)
    else:
        _, errors = step.communicate(timeout=20)  # closes its input
        assert "the login has ended" in errors
    assert eventually(lambda: not any(c.is_running() and c.status() != "zombie" for c in children))
    assert time.monotonic() - began < 20
