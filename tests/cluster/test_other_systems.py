"""A client on macOS or Windows, as far as Linux can show it: it needs nothing of what only Linux has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jdist
from support import other_system
from support.lacking import lacking, with_own

ROOT = Path(__file__).parents[2]
NUMBERS = 1 << 20


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_client_without_what_only_linux_has(
    fresh_cluster: Callable[..., jdist.Cluster], tmp_path: Path, system: str
) -> None:
    cluster = fresh_cluster(2, bind_host="127.0.0.1")
    done = subprocess.run(
        # No file of the client's can be seen by the ranks, as from another machine.
        [*with_own("/dev/shm", str(tmp_path)), sys.executable, other_system.__file__, system, cluster.name],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    total = NUMBERS * (NUMBERS - 1) // 2
    assert found["port"] == cluster.asynchronous.link.connection.public_port
    assert found["cell"] is True
    assert found["command"] == 0
    assert found["pulled"] == {str(rank): [8 * NUMBERS, total + rank * NUMBERS] for rank in (0, 1)}
    assert found["pushed"] == {str(rank): [8 * NUMBERS, total] for rank in (0, 1)}
    assert found["interrupted"] == {"0": "interrupted", "1": "interrupted"}
    assert found["states"] == ["idle", "idle"]
    assert found["start"].startswith(f"ranks need Linux, and this system is {system}: ")
    assert {path_of(module) for module in found["modules"]} <= type_checked()


def path_of(module: str) -> str:
    """``jdist.wire.log``: jdist/wire/log.py."""
    path = Path(*module.split("."))
    return str(path / "__init__.py" if (ROOT / path).is_dir() else f"{path}.py")


def type_checked() -> set[str]:
    """What `make lint` checks for those systems."""
    make = shutil.which("make")
    if make is None:
        lacking("there is no make")
    said = subprocess.run(
        [make, "-s", "--eval", "checked: ; @echo $(CLIENT)", "checked"], cwd=ROOT, capture_output=True, check=True
    )
    paths = [path for each in said.stdout.decode().split() for path in ROOT.glob(each)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return {str(file.relative_to(ROOT)) for file in files}
