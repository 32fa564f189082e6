"""Tests in this folder play those who should get nothing: other users of the host, strangers, false controllers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.attempts import OTHER, PRELUDE
from support.lacking import lacking

BECOME = f"""{PRELUDE}
os.setgroups([])
os.setresgid({OTHER}, {OTHER}, {OTHER})
os.setresuid({OTHER}, {OTHER}, {OTHER})
"""
"""First: this very Python may lie where that user cannot start it."""


@pytest.fixture
def as_another() -> Callable[..., str]:
    """Runs a program text as another Unix user; what it prints."""
    if os.geteuid() != 0:
        lacking("to be another user needs root")

    def run(text: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-I", "-c", BECOME + text, *arguments],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run
