from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from jdist.server.routes import console_command

HERE = socket.gethostname()


@pytest.fixture
def connection_file(tmp_path: Path) -> Path:
    path = tmp_path / "a folder" / "kernel-1.json"
    path.parent.mkdir()
    path.write_text('{"key": "secret"}')
    return path


def test_a_rank_of_this_machine(connection_file: Path) -> None:
    command, why = console_command(HERE, str(connection_file))
    assert command == f"{sys.executable} -m jupyter_console --existing '{connection_file}'"
    assert "secret" not in command
    assert why == ""


def test_a_rank_of_another_machine(connection_file: Path) -> None:
    assert console_command("elsewhere", str(connection_file)) == (
        "",
        f"the rank is on elsewhere, and this server on {HERE}",
    )


def test_a_rank_whose_files_are_not_here(connection_file: Path) -> None:
    """As that of a container with this machine's name."""
    connection_file.unlink()
    assert console_command(HERE, str(connection_file))[0] == ""


def test_without_the_program(connection_file: Path) -> None:
    command, why = console_command(HERE, str(connection_file), "jupyter_console_that_nobody_has")
    assert command == ""
    assert "pip install jupyter-console" in why
