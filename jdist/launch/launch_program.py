"""Launch program, such as srun, mpirun or an agent: it runs in a session of its own, and so outlives its starter."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import BinaryIO, ClassVar

from jdist.core.errors import LaunchError
from jdist.core.launchers import SECRETS, without
from jdist.launch.base import Launcher, LaunchPlan
from jdist.wire.log import without_verbose
from jdist.wire.transport.invitations import REFUSED

_NODE = re.compile(r"jdist node (\d+) \(([^)]*)\): (.*)")  # launch/node_runner's line about the end of an agent.
_TAIL = 4
_LOG_LINES = 3
_LOOK = 0.05  # Seconds between two polls of a process.
_END = 5.0


class ProgramLog:
    """What is appended to the cluster's log from now on; ``prefixes`` begin a launch program's own error lines."""

    def __init__(self, path: str, prefixes: Sequence[str] = ()):
        self._path = path
        self._prefixes = tuple(prefixes)
        with self.open() as f:
            self._offset = f.tell()

    def open(self) -> BinaryIO:
        """The log, open for appending; its mode is 0600."""
        return open(self._path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))

    def lines(self) -> list[str]:
        """Lines written since this object was made."""
        with open(self._path, errors="replace") as f:
            f.seek(self._offset)
            return without_verbose(f.read().splitlines())

    def ended_nodes(self) -> dict[int, str]:
        """Why agents have ended, by node rank, from launch/node_runner's lines: the first reason of each node."""
        found: dict[int, str] = {}
        for match in filter(None, map(_NODE.search, self.lines())):
            found.setdefault(int(match[1]), f"({match[2]}) {match[3]}")
        return found

    def last_words(self) -> str:
        """The last lines, preferring those with one of the prefixes; empty if there are none."""
        said = self._words()
        own = [line for line in said if line.startswith(self._prefixes)]
        return " / ".join((own or said)[-_TAIL:])

    def first_words(self) -> str:
        """The first lines: mpirun gives its reason first, followed by pages of advice."""
        return " / ".join(self._words()[:_TAIL])

    def _words(self) -> list[str]:
        """The lines that are neither decoration nor the reports of nodes."""
        return [w for w in map(str.strip, self.lines()) if w.strip("-* ") and not _NODE.search(w)]


class LaunchProgram:
    """A running launch program."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: ProgramLog, directory: str | None = None):
        """Start the program, in ``directory`` or in this process's. Raises LaunchError."""
        self.log = log
        try:
            with log.open() as output:
                self._process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=env,
                    cwd=directory,
                    start_new_session=True,
                )
        except OSError as e:
            raise LaunchError(f"{argv[0]} cannot be run: {e}") from None
        reap(self._process)

    @property
    def status(self) -> int | None:  # None while the program runs.
        return self._process.poll()

    def send_line(self, line: str) -> None:
        """Write the only line of the program's standard input, and close it."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already: failures() says why
                pipe.write(line.encode() + b"\n" if line else b"")
                pipe.close()

    async def end(self, patience: float, grace: float) -> None:
        """Wait ``patience`` seconds for its end, then terminate it; ``grace`` seconds later kill its process group."""
        self.send_line("")
        if await self._ended(patience):
            return
        self._process.terminate()
        if await self._ended(grace):
            return
        with contextlib.suppress(ProcessLookupError):
            if sys.platform != "win32":
                os.killpg(self._process.pid, 9)  # with other processes that it may have started on this host
        await self._ended(grace)

    async def _ended(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:  # noqa: ASYNC110 — see _LOOK
            await asyncio.sleep(_LOOK)
        return self.status is not None


class ProgramLauncher(Launcher):
    """A launcher whose nodes are started by programs on this machine: one program for all nodes, or several."""

    patience: ClassVar[float] = _END  # Seconds for a program to end by itself with its agents.

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self.programs: dict[int, LaunchProgram] = {}  # The program that started each node, by node rank.

    @abstractmethod
    def why_ended(self, program: LaunchProgram, status: int) -> str:
        """Reason of a program's end, for nodes whose agents reported none."""

    def failures(self) -> dict[int, str]:
        """Reasons reported by the nodes; for other nodes, the end of the program."""
        found = {}
        for node_rank, program in self.programs.items():
            status = program.status  # before the log is read: then all that the program wrote is there
            why = program.log.ended_nodes().get(node_rank, "")
            if why or status is not None:
                found[node_rank] = why or self.why_ended(program, status or 0)
        return found

    async def end(self) -> None:
        """End the programs, unless they end by themselves with the agents."""
        await asyncio.gather(*(program.end(self.patience, _END) for program in set(self.programs.values())))


def reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child in a thread, so that a child that outlives its starter's interest leaves no zombie."""
    threading.Thread(target=process.wait, name=f"jdist-reap-{process.pid}", daemon=True).start()


def last_words(log: str) -> str:
    """The end of a log that several agents may share, on one line. If an agent was refused, only the refusal."""
    last = without_verbose(log.strip().splitlines())[-_LOG_LINES:]
    refusals = [line[line.index(REFUSED) :] for line in last if REFUSED in line]
    return " / ".join(dict.fromkeys(refusals) or last)


def node_command(place: str, first: int, *more: str, fork: bool = True) -> list[str]:
    """What a launch program runs on each node. ``place`` names the variables that hold the node's index."""
    command = [sys.executable, "-P", "-m", "jdist.launch.node_runner", "--place", place, "--first", str(first), *more]
    return command if fork else [*command, "--no-fork"]


def clean_environment(more: Sequence[tuple[str, str]]) -> dict[str, str]:
    """This process's environment without secrets, for a program that may store it or send it to other hosts."""
    return {**without(os.environ, SECRETS), **dict(more)}
