"""An engine's process, and what is read out of the log."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from jdist.core.errors import LaunchError
from jdist.launch.launch_program import LaunchProgram, ProgramLog, clean_environment

SAID = [
    "--------------------------------------------------------------------------",
    "[1,1]<stderr>:jdist node 1 (b): its agent ended with code 1: refused by the controller: too many",
    "srun: error: c: task 2: Killed",
    "",
    "jdist node 1 (b): its agent was killed by SIGKILL",
    "a word",
]


def test_what_nodes_say_of_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    plain, slurms = ProgramLog(str(path)), ProgramLog(str(path), ["srun: error"])
    assert slurms.last_words() == ""
    path.write_text("\n".join(SAID))
    assert plain.ended_nodes() == {1: "(b) its agent ended with code 1: refused by the controller: too many"}
    assert slurms.last_words() == "srun: error: c: task 2: Killed"
    assert plain.last_words() == "srun: error: c: task 2: Killed / a word"
    assert plain.first_words() == "srun: error: c: task 2: Killed / a word"


def test_only_what_comes_after_the_start_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("jdist node 0 (a): long ago\n")
    log = ProgramLog(str(path))
    assert log.ended_nodes() == {}
    with path.open("a") as f:
        f.write("jdist node 2 (c): now\n")
    assert log.ended_nodes() == {2: "(c) now"}


def test_it_reads_its_line_and_is_ended_at_the_latest_by_force(tmp_path: Path) -> None:
    log = ProgramLog(str(tmp_path / "log"))

    async def scenario() -> None:
        stubborn = LaunchProgram(
            ["sh", "-c", "trap '' TERM; read line; echo got $line; sleep 60; sleep 60"], os.environ, log
        )
        stubborn.send_line("the line")
        async with asyncio.timeout(20):
            while "got the line" not in log.lines():  # noqa: ASYNC110 — nothing wakes a waiter when a file grows
                await asyncio.sleep(0.01)
        assert stubborn.status is None
        await stubborn.end(0.1, 0.5)
        assert stubborn.status == -9
        await stubborn.end(0.1, 0.5)

    asyncio.run(scenario())
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no-such-engine cannot be run"):
        LaunchProgram(["no-such-engine"], os.environ, ProgramLog(str(tmp_path / "log")))


def test_an_engine_gets_none_of_the_hubs_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    env = clean_environment([("V", "1")])
    assert "JUPYTERHUB_API_TOKEN" not in env
    assert env["V"] == "1"
