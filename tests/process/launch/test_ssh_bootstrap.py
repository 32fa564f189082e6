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
