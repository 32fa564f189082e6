"""The end of a process, seen from outside."""

from __future__ import annotations

import os
import subprocess

from jdist.agent.processes.exits import is_dying


def test_a_process_that_was_killed_is_dying_before_it_has_ended() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            assert not is_dying(pidfd)
            process.kill()
            assert is_dying(pidfd)
            process.wait()
            assert is_dying(pidfd)
        finally:
            os.close(pidfd)
