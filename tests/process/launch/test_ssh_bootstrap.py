"""The foothold, as an interpreter on another host runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jdist
from jdist.core.settings import SshBootstrapSpec
from jdist.launch.ssh_command import bootstrap_command

FOOTHOLD = Path(jdist.__file__).parent / "launch" / "ssh_bootstrap.py"
MARK = "mark "


def given(**other: Any) -> dict[str, Any]:
    spec = SshBootstrapSpec(mark=MARK, words=("--version",), log="c-node0")
    return {**msgspec.to_builtins(spec), **other}


def run(
    wanted: dict[str, Any], tmp_path: Path, *, pythons: tuple[str, ...] = (sys.executable,), after: str = ""
) -> tuple[dict[str, Any], subprocess.CompletedProcess[bytes]]:
    """What it reports, and how it ended; with temporary files in ``tmp_path``."""
    command, code = bootstrap_command(pythons)
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "PYTHONPATH": str(FOOTHOLD.parents[2])}
    done = subprocess.run(
        ["sh", "-c", command],
        input=code + json.dumps(wanted).encode() + b"\n" + after.encode(),
        capture_output=True,
        env={**env, **wanted["env"]},
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith(MARK)]
    return (json.loads(lines[0].removeprefix(MARK)) if lines else {}), done


def test_it_becomes_what_it_was_sent_for_and_writes_to_a_log_of_the_users_own(tmp_path: Path) -> None:
    report, done = run(given(), tmp_path, pythons=("/no/python", sys.executable))
    log = Path(report["log"])
    assert done.returncode == 0
    assert log.read_text() == f"jdist {jdist.__version__}\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert b"jdist 0" not in done.stdout


def test_what_comes_after_its_line_is_for_the_agent(tmp_path: Path) -> None:
    report, done = run(given(words=["join", "-"]), tmp_path, after="no line of jdist's\n")
    assert done.returncode == 2
    assert "that is no join line" in Path(report["log"]).read_text()


def test_the_directory_and_the_environment_are_the_agents(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nprint(os.getcwd(), os.environ.get('V'))\n")
    env = {"V": "a b", "PYTHONPATH": f"{tmp_path}:{FOOTHOLD.parents[2]}"}
    report, _ = run(given(directory=str(tmp_path / "there"), env=env), tmp_path)
    assert Path(report["log"]).read_text().splitlines()[0] == f"{tmp_path / 'there'} a b"


def test_modules_that_lie_about_are_not_pythons(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken for the library')")
    _, done = run(given(), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"directory": "/no/directory"}, "No such file or directory: '/no/directory'"),
        ({"jdist": "9.9"}, f"has jdist {jdist.__version__}, not 9.9 as here: pip install jdist=="),
        ({"python": [4, 0]}, "is too old for jdist, which needs 4.0"),
    ],
)
def test_what_is_missing_is_said(other: dict[str, Any], why: str, tmp_path: Path) -> None:
    report, done = run(given(**other), tmp_path)
    assert why in report["error"]
    assert done.returncode == 1


def test_a_jdist_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "jdist.py").write_text("import no_such_module")
    report, _ = run(given(env={"PYTHONPATH": str(tmp_path)}), tmp_path)
    assert "jdist cannot be imported" in report["error"]
    assert "no_such_module" in report["error"]
    assert "-- --python PATH" in report["error"]


def test_a_folder_of_somebody_elses_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / f"jdist-logs-{os.getuid()}").symlink_to(tmp_path)
    report, _ = run(given(), tmp_path)
    assert "no folder of this user's" in report["error"]


def test_no_python_at_all(tmp_path: Path) -> None:
    report, done = run(given(), tmp_path, pythons=("/no/python", "/nor/this"))
    assert not report
    assert done.returncode == 127
    assert b"there is no /no/python /nor/this" in done.stderr


def test_without_a_line_it_ends(tmp_path: Path) -> None:
    command, code = bootstrap_command([sys.executable])
    done = subprocess.run(["sh", "-c", command], input=code, capture_output=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")


def make_environment(share: Path, made_from: str) -> Path:
    """What looks like an environment with jdist: an interpreter that says that it was started."""
    folder = share / "jdist" / "venv-9.9"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\necho it is used, $*\n")
    (folder / "bin" / "python").chmod(0o755)
    if made_from:
        (folder / "jdist-made-from").write_text(made_from)
    return folder


@pytest.mark.parametrize(
    ("named", "made_from", "is_used"),
    [(False, "/any/python", True), (True, sys.executable, True), (True, "/any/python", False), (False, "", False)],
)
def test_an_environment_is_used_that_was_made_for_this_version(
    named: bool, made_from: str, is_used: bool, tmp_path: Path
) -> None:
    make_environment(tmp_path, made_from)
    report, _ = run(given(jdist="9.9", named=named, env={"XDG_DATA_HOME": str(tmp_path)}), tmp_path)
    if is_used:
        assert Path(report["log"]).read_text() == "it is used, -P -m jdist --version\n"
    else:
        assert "not 9.9 as here" in report["error"]


def test_an_environment_that_was_made_from_another_python_is_not_replaced(tmp_path: Path) -> None:
    folder = make_environment(tmp_path, "/any/python")
    wanted = given(jdist="9.9", named=True, wheel="w.whl", wheel_size=1, env={"XDG_DATA_HOME": str(tmp_path)})
    report, _ = run(wanted, tmp_path)
    assert f"{folder} was made from /any/python; remove it there, or name that Python" in report["error"]


def test_a_login_that_ends_before_the_wheel_has_come_leaves_nothing(tmp_path: Path) -> None:
    wanted = given(jdist="9.9", wheel="w.whl", wheel_size=10, env={"XDG_DATA_HOME": str(tmp_path / "share")})
    _, done = run(wanted, tmp_path, after="short")
    assert done.returncode == 1
    assert b"the login has ended" in done.stdout
    assert not (tmp_path / "share").exists()
    assert not list(tmp_path.glob("jdist-wheel-*"))
