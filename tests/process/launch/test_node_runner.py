"""What an engine runs on each node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from jdist.launch.node_runner import find_place
from support.waits import eventually

PROGRAM = [sys.executable, "-P", "-m", "jdist.launch.node_runner", "--place", "OMPI_COMM_WORLD_RANK,PMI_RANK"]


def test_a_place_is_found() -> None:
    environ = {"PMI_RANK": "2", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "PATH": "p"}
    assert find_place(["OMPI_COMM_WORLD_RANK", "PMI_RANK"], environ) == 1
    assert find_place(["SLURM_NODEID"], environ) is None


def test_an_agents_end_is_told_and_is_no_failure_of_the_engines() -> None:
    env = {**os.environ, "PMI_RANK": "1"}
    done = subprocess.run(
        [*PROGRAM, "--first", "2"],
        input="no join line\n",
        text=True,
        env=env,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert "jdist node 3 (" in done.stderr
    assert "its agent ended with code" in done.stderr
    assert "join line" in done.stderr


def test_without_a_place_there_is_no_agent() -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")}
    done = subprocess.run(PROGRAM, input="", text=True, env=env, capture_output=True, check=True, timeout=60)
    assert "which node is this?" in done.stderr


def test_a_lines_file_that_nodes_do_not_share_is_named_with_the_way_out() -> None:
    env = {**os.environ, "PMI_RANK": "1"}
    done = subprocess.run(
        [*PROGRAM, "--line", "/no/such/file"], env=env, text=True, capture_output=True, check=True, timeout=60
    )
    assert "the home directory must be the same on all nodes" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_engines_signals_do_not_end_it_and_an_agents_death_by_one_is_named(number: int) -> None:
    keeper = subprocess.Popen(
        PROGRAM, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PMI_RANK": "0"}
    )
    with keeper:
        (agent,) = eventually(lambda: psutil.Process(keeper.pid).children(), 20)
        assert eventually(lambda: os.getsid(agent.pid) == agent.pid, 20), "it is no session of its own"
        keeper.send_signal(number)
        assert eventually(lambda: "jdist" in agent.cmdline(), 20)
        agent.kill()
        _, said = keeper.communicate(timeout=60)
    assert keeper.returncode == 0
    assert "its agent was killed by SIGKILL" in said
