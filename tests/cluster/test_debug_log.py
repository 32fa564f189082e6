"""jdist's own log: every process answers, at the level that was asked for, also where the environment must travel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

import jdist
from jdist.client.find import directory
from jdist.core.errors import CellError
from support.waits import eventually


def test_every_process_logs_what_it_does_and_only_warnings_reach_the_users_eyes(
    fresh_cluster: Callable[..., jdist.Cluster],
) -> None:
    own = fresh_cluster(1, 2, env={"JDIST_LOG": "debug"})
    own.run("1")
    pid = own.status().ranks[1].pid
    with pytest.raises(CellError) as lost:
        own.run(f"import os; os.kill({pid}, {int(signal.SIGKILL)}) if rank == 1 else None")
    assert "DEBUG" not in str(lost.value)
    assert eventually(lambda: own.facts.generation == 2 and own.facts.phase == "ready")
    logs = own.debug_log(1000)
    assert {e.process for e in logs.entries} >= {"controller", "node 0", "node 1", "rank 0", "rank 1"}
    assert logs.missing == {}
    assert [e.time for e in logs.entries] == sorted(e.time for e in logs.entries)

    def has_logged(process: str, *words: str) -> bool:
        return any(e.process == process and all(w in e.record.text for w in words) for e in logs.entries)

    assert has_logged("node 1", "worker 1 is down: killed by signal 9 (SIGKILL")
    assert has_logged("rank 0", "formed generation 2")
    assert has_logged("controller", "run 1: queued -> running")
    log = (directory() / f"jdist-{own.name}.log").read_text()
    assert re.search(r"jdist agent INFO: \w+ \d+ is down: killed by signal 9", log)
    assert "jdist controller DEBUG: run 1: queued -> running" in log
    assert str(own.debug_log(1)).count("\n") == 0


def test_it_is_quiet_unless_asked(cluster: jdist.Cluster) -> None:
    assert "JDIST_LOG" not in os.environ
    cluster.run("1")
    entries = cluster.debug_log(1000).entries
    levels = {e.record.level for e in entries if e.process != "client"}  # this process keeps those of other tests, too
    assert "INFO" in levels
    assert "DEBUG" not in levels


def test_the_command_line_shows_it(cluster: jdist.Cluster) -> None:
    command = [sys.executable, "-m", "jdist", "logs", "--debug", "-n", "500", "--cluster", cluster.name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = shown.splitlines()
    assert any(re.fullmatch(r"[\d:.]{12} node 0 agent INFO: worker \d+ is up: process \d+", line) for line in lines)
    assert any(re.match(r"[\d:.]{12} controller INFO: client .* attached: command line", line) for line in lines)
