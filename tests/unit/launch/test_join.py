"""The join launcher's file, in which nodes find the join line."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from jdist.core.errors import LaunchError, UsageError
from jdist.core.settings import Settings
from jdist.launch.base import LaunchPlan
from jdist.launch.join import JoinLauncher
from jdist.wire.transport.invitations import wait_for_line


def launcher(*args: str) -> JoinLauncher:
    settings = JoinLauncher.complete(Settings(name="c", launcher="join", launcher_args=args))
    return JoinLauncher(LaunchPlan(settings, "/dev/null"))


async def known(line: str) -> str:
    return line


def test_the_line_is_in_a_private_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "line"
    own = launcher("--file", str(path))
    asyncio.run(own.launch(known("jdist1.abc")))
    assert wait_for_line(str(path), 10.0) == path.read_text() == "jdist1.abc"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["line"]
    assert f"jdist join {path}" in own.instructions()
    assert "jdist1." not in own.instructions()
    asyncio.run(launcher("--file", str(path)).remove_leftovers())
    assert not path.exists()
    asyncio.run(own.end())


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--file PATH; not --fiel x"):
        launcher("--fiel", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="cannot be written"):
        asyncio.run(launcher("--file", str(tmp_path / "file" / "line")).launch(known("jdist1.abc")))
    with pytest.raises(UsageError, match="neither a join line nor a file"):
        wait_for_line(str(tmp_path / "never"), 0.1)
