"""The wheel of the running jdist, as pip and the import system take it."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import jdist
from jdist.client.remote import wheel as wheel_module
from jdist.client.remote.wheel import WHEEL, make_wheel
from jdist.core.errors import LaunchError


def test_it_has_the_package_and_its_metadata_and_is_read_from_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / WHEEL
    path.write_bytes(make_wheel())
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert "jdist/launch/ssh_bootstrap.py" in names
        assert not [n for n in names if "__pycache__" in n]
        info = PathDistribution(zipfile.Path(path, f"jdist-{jdist.__version__}.dist-info/"))
        record = archive.read(f"jdist-{jdist.__version__}.dist-info/RECORD").decode()
    assert len(record.splitlines()) == len(names)
    assert (info.version, info.metadata["Name"]) == (jdist.__version__, "jdist")
    assert "local" in {e.name for e in info.entry_points if e.group == "jdist.launchers"}
    code = "import jdist.launch.ssh_install as m, sys; print(m.__file__)"
    command = [sys.executable, "-S", "-P", "-c", code]  # the standard library alone
    done = subprocess.run(command, env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(path))


def test_metadata_of_another_version_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "__version__", "9.9")
    with pytest.raises(LaunchError, match=r"jdist 9.9 has the metadata of .* here, so it cannot be sent"):
        make_wheel()


def test_it_is_small() -> None:
    assert len(make_wheel()) < 2 << 20
    assert zipfile.ZipFile(io.BytesIO(make_wheel())).testzip() is None
