"""The command line without a cluster: what it says of itself, and what it says no to."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

import pytest

from jdist.commands import main
from jdist.notebook.cli import COMMANDS


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_it_lists_its_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: jdist COMMAND")
    assert all(f"  jdist {name} " in said for name in (*COMMANDS, "join"))


@pytest.mark.parametrize("name", [*COMMANDS, "join"])
@pytest.mark.parametrize("asked", ["-h", "--help"])
def test_every_command_says_its_usage_where_no_cluster_runs(
    name: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, asked]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"usage: jdist {name}")
    assert "%dist" not in said.out.splitlines()[0]
    assert not said.err


@pytest.mark.parametrize("words", [["frobnicate"], ["stauts"], ["start", "-n", "x"], ["join"]])
def test_what_it_does_not_know_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.strip()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_usage_is_printed_in_any_encoding(words: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    assert main(words) == 0
    assert b"usage: jdist" in written.getvalue()


class FullDisk(io.RawIOBase):
    """A file that cannot grow until ``error`` is 0."""

    def __init__(self, error: int):
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return len(data)


@pytest.mark.parametrize(("error", "says"), [(errno.ENOSPC, "No space left on device"), (errno.EPIPE, "")])
def test_output_that_cannot_be_written_ends_a_command_in_one_line(
    error: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FullDisk(error)
    lost = io.TextIOWrapper(io.BufferedWriter(disk), "utf-8")
    monkeypatch.setattr(sys, "stdout", lost)
    assert main(["--version"]) == 1
    assert sys.stdout is not lost, "Python would fail again when it ends"
    sys.stdout.close()
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == bool(says)
    disk.error = 0
    lost.close()
