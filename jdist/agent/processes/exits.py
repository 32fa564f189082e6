"""Exits: how a process ended, in words. Pure."""

from __future__ import annotations

import os
import signal

from jdist.agent.processes.oom import Verdict

_HINTS = {
    "somebody": "; no oom kill was counted",
    "unknown": "; the kernel's out-of-memory killer does that, or somebody's kill -9",
}


def explain_exit(status: int | None, memory: Verdict | None = None) -> str:
    """A wait status in words (None: another process took it); ``memory`` says who sends a SIGKILL here."""
    if status is None:
        return "the process ended"
    if not os.WIFSIGNALED(status):
        return f"exited with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in {s.value for s in signal.Signals} else "?"
    if number != signal.SIGKILL:
        return f"killed by signal {number} ({name})"
    memory = memory or Verdict("unknown")
    if memory.cause == "kernel":
        return f"killed by signal {number} ({name}), out of memory: {memory.evidence}"
    return f"killed by signal {number} ({name}{_HINTS[memory.cause]})"
