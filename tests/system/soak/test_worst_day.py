"""Eight pairs of faults of a fixed seed; ``worst_day.py`` makes as many as asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.lacking import lacking

TESTS = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_whatever_goes_wrong_two_at_a_time_costs_only_what_it_must() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        lacking("to mount small file systems and to be another user needs root and unshare")
    command = [sys.executable, "-m", "support.soak.worst_day", "--pairs", "8", "--seed", "2"]
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 pairs, 0 of them wrong" in done.stdout
