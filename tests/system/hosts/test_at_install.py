"""jdist is brought to a host that has all but it, from a source tree and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jdist
from jdist.client.remote import host as host_module
from jdist.core.errors import LaunchError, UsageError
from support.hosts.pythons import make_python
from support.hosts.sshd import Sshd
from support.waits import eventually


@pytest.fixture
def share(logins: Sshd, traces: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a's environments are."""
    monkeypatch.setenv("JDIST_SSH", logins.command)
    monkeypatch.delenv("JDIST_AT_PYTHON", raising=False)
    found = logins.runtime("a").parent / "share" / "jdist"
    yield found
    host_module._hosts.clear()
    shutil.rmtree(found, ignore_errors=True)


def test_jdist_is_installed_where_it_is_missing_and_found_from_then_on(
    share: Path, logins: Sshd, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = str(make_python(logins.home / tmp_path.name))
    with pytest.raises(LaunchError, match=r"cannot be imported by .*: No module .*; --install makes an environment"):
        jdist.attach(at="a", at_python=python)
    assert not share.exists()
    cluster = jdist.start(1, at="a", at_python=python, at_install=True, idle_timeout=120, timeout=120)
    assert f"a: making {share}/venv-{jdist.__version__} with {python}" in capfd.readouterr().err
    where = cluster.run("import sys, jdist; (sys.prefix, jdist.__file__.startswith(sys.prefix))").values[0]
    assert where == (f"{share}/venv-{jdist.__version__}", True)
    cluster.detach()
    assert eventually(lambda: not logins.sessions())
    again = jdist.attach("a:c1")
    assert again.run("torch.ones(2).sum().item()").values == {0: 2.0}
    again.stop()


def test_without_torch_nothing_is_installed(share: Path, logins: Sshd, tmp_path: Path) -> None:
    python = str(make_python(logins.home / tmp_path.name, "torch"))
    with pytest.raises(LaunchError, match=r"has no torch, and nothing was installed: .* -m pip install torch there"):
        jdist.start(1, at="b", at_python=python, at_install=True)
    with pytest.raises(UsageError, match="add --at HOST"):
        jdist.start(1, at_install=True)


def test_a_failure_shows_the_last_lines_of_pip_and_leaves_nothing(share: Path, logins: Sshd, tmp_path: Path) -> None:
    python = str(make_python(logins.home / tmp_path.name, "asyncssh"))
    (Path(python).parents[1] / "pip.conf").write_text("[global]\nno-index = true\n")
    with pytest.raises(LaunchError, match=r"(?s)-m pip install failed, and what .* removed:.*asyncssh"):
        jdist.start(1, at="b", at_python=python, at_install=True)
    assert not list((logins.runtime("b").parent / "share" / "jdist").glob("venv*/bin"))
