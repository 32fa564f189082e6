"""The memory limit of a drill: a cgroup of the rank's own, where one may be made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jdist.wire import cgroups
from jdist.worker import faults


class Fake:
    """Memory cgroups in a folder."""

    def __init__(self, root: Path, version: str):
        self.root, self.version = root, version
        self.folder = root / "user" / "session"
        self.folder.mkdir(parents=True)

    def of(self, _: int) -> list[cgroups.MemoryCgroup]:
        return [cgroups.MemoryCgroup(self.version, "/user/session", self.root, self.folder)]


@pytest.mark.parametrize(("version", "limit"), [("1", "memory.limit_in_bytes"), ("2", "memory.max")])
def test_a_memory_limit_is_set_in_the_first_cgroup_that_can_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, limit: str
) -> None:
    fake = Fake(tmp_path, version)
    monkeypatch.setattr(faults, "MemoryCgroups", lambda: fake)
    (fake.folder / f"jdist-drill-{os.getpid()}").write_text("in the way, so that mkdir fails")
    assert faults.limit_memory() == ""
    own = tmp_path / "user" / f"jdist-drill-{os.getpid()}"
    assert int((own / limit).read_text()) == 256 << 20
    assert (own / "cgroup.procs").read_text() == str(os.getpid())


def test_why_there_is_no_limit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path, "2")
    monkeypatch.setattr(faults, "MemoryCgroups", lambda: fake)
    for folder in (fake.folder, fake.folder.parent, tmp_path):
        (folder / f"jdist-drill-{os.getpid()}").write_text("")
    assert faults.limit_memory() == f"{tmp_path}: File exists"
    monkeypatch.setattr(fake, "of", lambda _: [])
    assert faults.limit_memory() == "there is no memory cgroup here"
