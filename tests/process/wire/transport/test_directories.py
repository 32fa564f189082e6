"""Directories: each agent has its own, and what dead ones left is removed; but nobody judges another container's."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jdist.wire.processes import pid_namespace
from jdist.wire.transport import keys

CLUSTER = "0123456789ab"
OTHER = "ba9876543210"
LONGEST = keys._LONGEST


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(keys, "_LONGEST", 1000)
    return tmp_path


def ended() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_directory_is_private_and_a_sockets_path_in_it_fits() -> None:
    made = keys.make(CLUSTER)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    longest = f"jdist-{CLUSTER}-{0xFFFFFFFF:x}-{1 << 22}"  # what Linux counts processes to
    assert re.fullmatch(r"jdist-\w{12}-[0-9a-f]{1,8}-\d{1,7}", made.name)
    assert LONGEST + len("/") + len(longest) + len("/kernel-1234.raw.log") <= 107


def test_what_dead_agents_left_is_removed_and_nothing_else(base: Path) -> None:
    here, gone = f"{pid_namespace():x}", ended()
    elsewhere = f"{pid_namespace() ^ 1:x}"
    dead = base / f"jdist-{CLUSTER}-{here}-{gone}"
    alive = base / f"jdist-{CLUSTER}-{here}-{os.getppid()}"
    unseen = base / f"jdist-{CLUSTER}-{elsewhere}-{gone}"
    others = base / f"jdist-{OTHER}-{here}-{gone}"
    strange = base / "jdist-is-my-folder"
    for path in (dead, alive, unseen, others, strange):
        path.mkdir()
        (path / "file").touch()
    keys.sweep(CLUSTER)
    assert sorted(base.iterdir()) == sorted([alive, unseen, others, strange])
    made = keys.make(CLUSTER)
    assert sorted(base.iterdir()) == sorted([alive, unseen, strange, made])
