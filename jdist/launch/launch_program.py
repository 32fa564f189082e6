"""Engine: a program (srun, mpirun) that gets agents onto nodes, and what it and its nodes say about that.

It runs in a session of its own and writes to the cluster's log, so it goes on when whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from jdist.core.environment import SECRETS, without
from jdist.core.errors import LaunchError
from jdist.launch.reaper import reap
from jdist.wire.log import without_verbose

_NODE = re.compile(r"jdist node (\d+) \(([^)]*)\): (.*)")
"""What launch/node_runner says of a node."""
_TAIL = 4
_LOOK = 0.05
"""Between two looks at a process whose end wakes a thread only."""


class Log:
    """The cluster's log, from now on. ``names`` begin the lines in which an engine itself complains ("srun:")."""

    def __init__(self, path: str, names: Sequence[str] = ()):
        self.path = path
        self._names = tuple(names)
        with self.open() as f:
            self._offset = f.tell()

    def open(self) -> BinaryIO:
        """For writing at its end."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.lseek(fd, 0, os.SEEK_END)
        return os.fdopen(fd, "ab", buffering=0)

    def lines(self) -> list[str]:
        """What has been written since."""
        with open(self.path, errors="replace") as f:
            f.seek(self._offset)
            return without_verbose(f.read().splitlines())

    def ended_nodes(self) -> dict[int, str]:
        """Why nodes' agents have ended, by node rank."""
        return ended_nodes(self.lines())

    def last_words(self) -> str:
        """Its last lines, without those that nodes say about themselves; empty if there is none."""
        return last_words(self.lines(), self._names)

    def first_words(self) -> str:
        """Its first lines: mpirun gives its reason first, and pages of advice after it."""
        return first_words(self.lines())


class Engine:
    """One such program."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Log):
        """Start it. Raises LaunchError."""
        self.log = log
        output = log.open()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as e:
            raise LaunchError(f"{argv[0]} cannot be run: {e}") from None
        finally:
            output.close()
        reap(self._process)

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def tell(self, line: str) -> None:
        """Give it its only line of input."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already: failures say why
                pipe.write(line.encode() + b"\n" if line else b"")
                pipe.close()

    async def end(self, patience: float, grace: float) -> None:
        """Wait ``patience`` seconds for it to end by itself; then ask it to, and after ``grace`` seconds more kill it.

        Its process group goes with it: the program may have started others here.
        """
        self.tell("")
        if await self._ended(patience):
            return
        self._process.terminate()
        if await self._ended(grace):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        await self._ended(grace)

    async def _ended(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:  # noqa: ASYNC110 — see _LOOK
            await asyncio.sleep(_LOOK)
        return self.status is not None


def node_command(place: str, first: int, *more: str, fork: bool = True) -> list[str]:
    """What an engine runs on each node; ``place`` names the variables in which it says which node that is."""
    command = [sys.executable, "-P", "-m", "jdist.launch.node_runner", "--place", place, "--first", str(first), *more]
    return command if fork else [*command, "--no-fork"]


def ended_nodes(lines: Sequence[str]) -> dict[int, str]:
    """Why nodes have ended, from the lines in which launch/node_runner says so; the first reason of each."""
    found: dict[int, str] = {}
    for line in lines:
        match = _NODE.search(line)
        if match is not None:
            found.setdefault(int(match[1]), f"({match[2]}) {match[3]}")
    return found


def last_words(lines: Sequence[str], names: Sequence[str]) -> str:
    """The last lines, of those that begin with one of ``names`` if there are any."""
    said = [w for w in (line.strip() for line in lines) if w.strip("-* ") and not _NODE.search(w)]
    own = [w for w in said if w.startswith(tuple(names))] if names else []
    return " / ".join((own or said)[-_TAIL:])


def first_words(lines: Sequence[str]) -> str:
    """The first lines that say something."""
    said = [w for w in (line.strip() for line in lines) if w.strip("-* ") and not _NODE.search(w)]
    return " / ".join(said[:_TAIL])


def clean_environment(more: Sequence[tuple[str, str]]) -> dict[str, str]:
    """This process's environment for an engine, which may store it or send it on: without secrets."""
    return {**without(os.environ, SECRETS), **dict(more)}
