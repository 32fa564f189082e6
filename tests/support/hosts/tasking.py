"""Tasking: a launcher that runs what a test says, with the join line in a file, as a user would at a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

from jdist.launch.base import Launcher

JOIN = [sys.executable, "-P", "-m", "jdist", "join"]
_END = 20.0
"""Seconds for tasks to end with their cluster, and the launcher with its tasks."""


class TaskLauncher(Launcher):
    """Starts ``commands(path of the join line)``."""

    commands: ClassVar[Callable[[str], Sequence[Sequence[str]]]]
    directory: ClassVar[Path]
    """Where the line is put: seen on every node."""
    env: ClassVar[dict[str, str]] = {}
    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    async def launch(self, join_line: Awaitable[str]) -> None:
        path = self.directory / f"{self.plan.settings.name}.line"
        path.touch(mode=0o600)
        path.write_text(f"{await join_line}\n")
        self.started.clear()
        self.started += [self._start(command) for command in type(self).commands(str(path))]

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self.env}
        with open(self.plan.log, "ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def failures(self) -> dict[int, str]:
        ended = [p for p in self.started if p.poll() is not None]
        return {n: f"{p.args!r} ended with {p.returncode}: {self._log_end()}" for n, p in enumerate(ended)}

    def _log_end(self) -> str:
        return " / ".join(Path(self.plan.log).read_text(errors="replace").strip().splitlines()[-6:])

    async def end(self) -> None:
        """What a user has started ends with the cluster, by itself; see :func:`wait_all`."""


def wait_all() -> list[int]:
    """What the commands end with, once the cluster has; what does not end is killed."""
    codes = []
    for process in TaskLauncher.started:
        try:
            codes.append(process.wait(_END))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            codes.append(process.wait())
    return codes
