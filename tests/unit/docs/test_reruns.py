"""System tests may be run a second time, but not many of them in one run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEM = Path(__file__).parents[2] / "system" / "conftest.py"
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_fails_once(number):
    seen = pathlib.Path(__file__).with_name(f"seen-{{number}}")
    is_first = not seen.exists()
    seen.touch()
    assert not is_first
"""


@pytest.mark.parametrize(("reruns", "code"), [(0, 5), (2, 0), (3, 1)])
def test_a_run_with_more_than_two_reruns_fails(reruns: int, code: int, tmp_path: Path) -> None:
    shutil.copy(SYSTEM, tmp_path)
    (tmp_path / "test_reruns.py").write_text(TESTS.format(count=reruns) if reruns else "")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("second time" in done.stdout) == (reruns > 0)
