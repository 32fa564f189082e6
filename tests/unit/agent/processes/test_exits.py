"""Exits: how a process ended, in words."""

from __future__ import annotations

import signal

import pytest

from jdist.agent.processes.exits import OomVerdict, explain_exit


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (None, "the process ended"),
        (0, "exited with code 0"),
        (3 << 8, "exited with code 3"),
        (255 << 8, "exited with code 255"),
        (signal.SIGSEGV, "killed by signal 11 (SIGSEGV)"),
        (signal.SIGSEGV | 0x80, "killed by signal 11 (SIGSEGV)"),
        (signal.SIGTERM, "killed by signal 15 (SIGTERM)"),
        (int(signal.SIGRTMIN) + 1, "killed by signal 35 (?)"),
    ],
)
def test_explain_exit(status: int | None, says: str) -> None:
    assert explain_exit(status) == says


def test_a_kill_for_memory_says_how_that_is_known() -> None:
    verdict = OomVerdict("kernel", "the kernel's cgroup counted 1 oom kill")
    said = explain_exit(signal.SIGKILL, verdict)
    assert said == "killed by signal 9 (SIGKILL), out of memory: the kernel's cgroup counted 1 oom kill"
    assert explain_exit(signal.SIGSEGV, verdict) == "killed by signal 11 (SIGSEGV)"
    assert "no oom kill" in explain_exit(signal.SIGKILL, OomVerdict("process"))


def test_a_kill_names_the_likely_reasons() -> None:
    assert "out-of-memory" in explain_exit(signal.SIGKILL)
    assert "kill -9" in explain_exit(signal.SIGKILL)
