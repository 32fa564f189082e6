"""Which interpreter of a host is meant, as its own /bin/sh finds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jdist.launch.ssh_command import bootstrap_command


def interpreter(path: Path) -> None:
    """Something that says that it was started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho $0\n")
    path.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in ("miniconda3", "miniconda3/envs/ml", "my forge/envs/big", "mamba/envs/small", "else/where", "venv"):
        interpreter(tmp_path / folder / "bin" / "python")
    interpreter(tmp_path / "bin" / "ml")
    interpreter(tmp_path / "bin" / "python3")
    (tmp_path / "miniconda3" / "condabin").mkdir()
    (tmp_path / "miniconda3" / "envs" / "hollow").mkdir()
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{tmp_path}/else/where\n{tmp_path}/miniconda3\n/gone/away\n")
    return tmp_path


def chosen(home: Path, *pythons: str) -> subprocess.CompletedProcess[str]:
    command, _ = bootstrap_command(pythons)
    env = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"}
    env |= {"CONDA_EXE": f"{home}/my forge/bin/conda", "MAMBA_ROOT_PREFIX": f"{home}/mamba"}
    return subprocess.run(["/bin/sh", "-c", command], env=env, capture_output=True, text=True, check=False, timeout=20)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("base", "miniconda3/bin/python"),
        ("ml", "miniconda3/envs/ml/bin/python"),  # not the program of that name
        ("big", "my forge/envs/big/bin/python"),
        ("small", "mamba/envs/small/bin/python"),
        ("where", "else/where/bin/python"),
        ("~/venv/bin/python", "venv/bin/python"),
        ("python3", "bin/python3"),
    ],
)
def test_a_name_is_a_conda_environments_or_a_programs(home: Path, named: str, found: str) -> None:
    done = chosen(home, named)
    assert (done.stdout, done.stderr) == (f"{home}/{found}\n", "")


def test_the_first_that_is_there(home: Path) -> None:
    assert chosen(home, "/no/python", f"{home}/venv/bin/python", "python3").stdout == f"{home}/venv/bin/python\n"


@pytest.mark.parametrize("named", ["hollow", "none", "a b", "$(touch x)", ""])
def test_an_unknown_name_lists_those_that_are_there(home: Path, named: str) -> None:
    done = chosen(home, named)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == f"there is no {named}; environments of conda there: base big ml small where\n"


def test_a_host_without_conda(tmp_path: Path) -> None:
    done = chosen(tmp_path, "ml")
    assert done.stderr == "there is no ml; environments of conda there: none\n"


def test_every_shell_takes_the_command() -> None:
    command, _ = bootstrap_command(["python3"])
    assert not set("!\n\\") & set(command)
