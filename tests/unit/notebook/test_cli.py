"""The command line without a cluster: what it says of itself, and what it says no to."""

from __future__ import annotations

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
