"""One agent on each of several nodes of a running Ray cluster.

A program of its own (``ray_program``) talks to Ray, so a notebook that uses Ray is not disturbed and this import is
cheap. One detached actor, the supervisor, stays in the Ray cluster and owns placement group and agents.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Sequence
from importlib.util import find_spec

import msgspec

from jdist.core.errors import LaunchError
from jdist.core.quantities import ArgumentParser, parse_amount
from jdist.core.settings import Settings
from jdist.launch.base import AMOUNT, WORD, Launcher, LauncherForm, LauncherOption, LaunchPlan
from jdist.launch.launch_program import ProgramLog

if find_spec("ray") is None:
    raise ImportError("ray")  # which is imported by the program only

_ANSWER = 120.0  # Seconds for a request to Ray that needs no resources.
_GRACE = 40.0  # Seconds for the program to undo an unfinished launch.
UNREACHED = "Ray cannot be reached"
KEEP = "keep"  # Sent to the program when the world is formed. Without it, the program undoes the launch when it ends.


class RayRequest(msgspec.Struct, frozen=True):
    """Request to the program: "launch", "relaunch" or "clear"."""

    what: str
    label: str
    settings: Settings
    node_ranks: tuple[int, ...]
    is_first: bool  # Whether this is the cluster's first launch, and not a node that is added to it.

    @property
    def name(self) -> str:
        """Name of the supervisor and of its placement group."""
        return self.label if self.is_first else f"{self.label}-n{self.node_ranks[0]}"


class RayProgress(msgspec.Struct, frozen=True):
    """Progress report of the program."""

    waiting: str = ""  # What the launch waits for.
    failures: dict[int, str] = {}  # Why nodes failed, by node rank.
    error: str = ""  # Why the whole launch failed.
    is_done: bool = False  # All agents have been started, or everything has been removed.


def parse_options(words: Sequence[str]) -> argparse.Namespace:
    """The options after ``--``: ``address``, and for each node ``num_cpus`` and ``num_gpus``. Raises UsageError."""
    p = ArgumentParser("--launcher ray --")
    p.add_argument("--address", default="auto")
    p.add_argument("--num-cpus", type=parse_amount, metavar="N")
    p.add_argument("--num-gpus", type=parse_amount, metavar="N")
    return p.parse(words)


class RayLauncher(Launcher):
    """Has a supervisor in the Ray cluster start the agents."""

    form = LauncherForm(
        options=(
            LauncherOption("--address", "Address", "auto", "The Ray cluster's", WORD),
            LauncherOption("--num-cpus", "CPUs per node", "8", pattern=AMOUNT),
            LauncherOption("--num-gpus", "GPUs per node", "8", pattern=AMOUNT),
        ),
        arguments="",
    )

    def __init__(self, plan: LaunchPlan):
        super().__init__(plan)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._progress = RayProgress()
        self._has_progress = asyncio.Event()
        self._is_closing = False  # Whether the program's end is wanted.
        self._has_begun = False
        self._is_clear = False

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        parse_options(settings.launcher_args)
        return super().complete(settings)

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Connect to Ray while the controller starts, then send the join line."""
        self._has_begun = True
        await self._begin("launch", self.plan.node_ranks)
        await self._send_line(await join_line)

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Start another agent in the bundle of one that is gone; Ray moves the bundle to another node if it must."""
        await self._close()
        await self._begin("relaunch", [node_rank])
        await self._send_line(join_line)
        return True

    async def _begin(self, what: str, node_ranks: Sequence[int]) -> None:
        """Start the program with a request."""
        settings, is_first = self.plan.settings, not self.plan.first
        request = RayRequest(what, self.plan.label, settings, tuple(node_ranks), is_first)
        address = parse_options(settings.launcher_args).address
        self._progress = RayProgress(waiting=f"Ray at {address} is being dialled")
        self._has_progress, self._is_clear = asyncio.Event(), False
        log = ProgramLog(self.plan.log)
        with log.open() as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", "from jdist.launch.ray_program import main; main()"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process, log))
        await self._send(msgspec.json.encode(request).decode())

    async def _send_line(self, join_line: str) -> None:
        """Send the join line, and wait until Ray has been reached. Raises LaunchError."""
        await self._send(join_line)
        await self._has_progress.wait()  # for as long as the program dials
        if self._progress.error:
            raise LaunchError(self._progress.error)

    async def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended: what it heard says why
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()

    async def _read(self, program: asyncio.subprocess.Process, log: ProgramLog) -> None:
        """Follow the program's reports until it ends."""
        while program.stdout is not None and (line := await program.stdout.readline()):
            self._progress = msgspec.json.decode(line, type=RayProgress)
            self._has_progress.set()
        await program.wait()
        if not (self._progress.error or self._progress.is_done or self._is_closing):
            said = " / ".join(log.lines()[-2:])[-400:]
            error = f"the program that speaks to Ray ended with code {program.returncode}; {said}"
            self._progress = RayProgress(error=error)
        self._has_progress.set()

    def failures(self) -> dict[int, str]:
        """Reasons reported by Ray."""
        if self._progress.error:
            return dict.fromkeys(self.plan.node_ranks[:1], self._progress.error)
        return self._progress.failures

    def describe(self) -> str:
        return "" if self._progress.error else self._progress.waiting

    async def release(self) -> None:
        """End the program that talks to Ray. Agents and supervisor go on."""
        await self._send(KEEP)
        await self._close()

    async def _close(self) -> None:
        """Close the program's input, on which it undoes what is unfinished and ends."""
        self._is_closing = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        if self._reading is not None:
            await self._reading
        self._process, self._reading, self._is_closing = None, None, False

    async def end(self) -> None:
        """Leave nothing of this launch in the Ray cluster."""
        news = self._progress
        await self._close()
        if self._has_begun and not news.error.startswith(UNREACHED):
            await self.remove_leftovers()

    async def remove_leftovers(self) -> None:
        """Remove the supervisors of this cluster, and with them placement groups and agents."""
        if self._is_clear:
            return
        await self._close()
        await self._begin("clear", self.plan.node_ranks)
        try:
            if self._reading is not None:
                await asyncio.wait([self._reading], timeout=_ANSWER)
        finally:
            news = self._progress
            await self._close()
        if news.error:
            raise LaunchError(f"what Ray may hold for this cluster, {self.plan.label}, is not removed: {news.error}")
        if not news.is_done:
            raise LaunchError(f"Ray did not remove {self.plan.label} within {_ANSWER:.0f} s")
        self._is_clear = True


def fitting(found: list[float], nnodes: int, wanted: float) -> float:
    """Amount of a resource to request for each node: ``wanted``, or less if ``nnodes`` nodes do not have it."""
    have = sorted(found, reverse=True)
    return wanted if len(have) < nnodes else min(wanted, have[nnodes - 1])  # if there are fewer, more may be coming
