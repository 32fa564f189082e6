"""Ray: one agent on each of as many nodes of a Ray cluster that runs already.

Ray is spoken to by a program of its own (talk.py), so that a notebook that uses Ray for itself is left alone, and
importing this costs nothing. What stays in the Ray cluster is one detached actor, the keeper (keeper.py): placement
group and agents are its own and go with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable
from importlib.util import find_spec

import msgspec

from jdist.core.errors import LaunchError
from jdist.core.quantities import ArgumentParser, parse_amount
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, Plan
from jdist.launch.labels import label_of

if find_spec("ray") is None:
    raise ImportError("ray")  # what it takes to import it is seen in talk

_ANSWER = 120.0
"""Seconds for Ray to do what it can do at once."""
_GRACE = 40.0
"""Seconds for the program to take back what it had begun."""
UNREACHED = "Ray cannot be reached"
KEEP = "keep"
"""What the program is told when the world stands: without it, it takes back what it has begun."""


class Wish(msgspec.Struct, frozen=True):
    """What each node is to have; None: as many as there are ranks on it, or as the nodes have."""

    address: str
    num_cpus: float | None
    num_gpus: float | None


class Request(msgspec.Struct, frozen=True):
    """What the program is to do: "launch", "relaunch" or "clear"."""

    what: str
    label: str
    wish: Wish
    node_ranks: tuple[int, ...]
    counts: tuple[int, ...]
    """Ranks on each of these nodes; 0: as the node has GPUs."""
    may_use_gpus: bool
    is_first: bool
    """Of the cluster's launches: not a node that is added to it."""
    options: tuple[str, ...]
    """Of ``jdist join``."""
    env: tuple[tuple[str, str], ...]


def name_of(request: Request) -> str:
    """The keeper's, and its placement group's."""
    return request.label if request.is_first else f"{request.label}-n{request.node_ranks[0]}"


class News(msgspec.Struct, frozen=True):
    """How it goes."""

    waiting: str = ""
    """What is waited for, in words."""
    failures: dict[int, str] = {}
    """By node rank."""
    error: str = ""
    """Why nothing can come of it."""
    is_done: bool = False
    """All agents are started; or everything is removed."""


def read_wish(settings: Settings) -> Wish:
    """What the user wrote after ``--``. Raises UsageError."""
    p = ArgumentParser("--launcher ray --")
    p.add_argument("--address", default="auto")
    p.add_argument("--num-cpus", type=parse_amount, metavar="N")
    p.add_argument("--num-gpus", type=parse_amount, metavar="N")
    o = p.parse(settings.launcher_args)
    return Wish(o.address, o.num_cpus, o.num_gpus)


class RayLauncher(Launcher):
    """Has a keeper start the agents; see the module's text."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self._talk: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._news = News()
        self._heard = asyncio.Event()
        self._settled = asyncio.Event()
        self._is_over = False
        self._has_begun = False
        self._is_clear = False

    @classmethod
    def complete(cls, settings: Settings) -> Settings:
        settings = super().complete(settings)
        read_wish(settings)
        return settings

    def _request(self, what: str, node_ranks: tuple[int, ...]) -> Request:
        s = self.plan.settings
        counts = s.nproc_per_node or (0,)
        return Request(
            what,
            label_of(self.plan),
            read_wish(s),
            node_ranks,
            tuple(counts[min(n, len(counts) - 1)] for n in node_ranks),
            s.backend != "gloo",
            not self.plan.first,
            () if s.fork else ("--no-fork",),
            s.env,
        )

    async def launch(self, join_line: Awaitable[str]) -> None:
        """Ray is dialled while the controller comes up."""
        self._has_begun = True
        await self._begin(self._request("launch", tuple(self.plan.node_ranks)))
        await self._say(await join_line)
        await self._reached()

    async def relaunch(self, node_rank: int, join_line: str) -> bool:
        """Another agent in the bundle of one that is gone; Ray finds another node for it if it must."""
        await self._close()
        await self._begin(self._request("relaunch", (node_rank,)))
        await self._say(join_line)
        await self._reached()
        return True

    async def _reached(self) -> None:
        """Raises LaunchError where no Ray cluster is."""
        await self._heard.wait()  # for as long as talk dials
        if self._news.error:
            raise LaunchError(self._news.error)

    async def _begin(self, request: Request) -> None:
        log = os.open(self.plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._news = News(waiting=f"Ray at {request.wish.address} is being dialled")
        self._heard, self._settled, self._is_clear = asyncio.Event(), asyncio.Event(), False
        try:
            self._talk = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "jdist.launch.ray.protocol"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._hearing = asyncio.get_running_loop().create_task(self._hear(self._talk))
        await self._say(msgspec.json.encode(request).decode())

    async def _say(self, line: str) -> None:
        if self._talk is not None and self._talk.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended: what it heard says why
                self._talk.stdin.write(line.encode() + b"\n")
                await self._talk.stdin.drain()

    async def _hear(self, talk: asyncio.subprocess.Process) -> None:
        stdout = talk.stdout
        if stdout is None:
            return
        while line := await stdout.readline():
            self._news = msgspec.json.decode(line, type=News)
            self._heard.set()
            if self._news.is_done or self._news.error:
                self._settled.set()
        await talk.wait()
        if not self._news.error and not self._news.is_done and not self._is_over:
            self._news = News(error=f"the program that speaks to Ray ended with code {talk.returncode}; {self._log()}")
        self._heard.set()
        self._settled.set()

    def _log(self) -> str:
        with open(self.plan.log, errors="replace") as f:
            return " / ".join(f.read().strip().splitlines()[-2:])[-400:]

    def failures(self) -> dict[int, str]:
        """Ray's own reasons."""
        if self._news.error:
            return dict.fromkeys(self.plan.node_ranks[:1], self._news.error)
        return self._news.failures

    def describe(self) -> str:
        return "" if self._news.error else self._news.waiting

    async def let_go(self) -> None:
        """What speaks to Ray need not live on; agents and keeper do."""
        await self._say(KEEP)
        await self._close()

    async def _close(self) -> None:
        """The program ends at the end of its input, and takes back what it has not finished."""
        self._is_over = True
        if self._talk is not None and self._talk.stdin is not None:
            self._talk.stdin.close()
            try:
                async with asyncio.timeout(_GRACE):
                    await self._talk.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._talk.kill()
                await self._talk.wait()
        if self._hearing is not None:
            await self._hearing
        self._talk, self._hearing, self._is_over = None, None, False

    async def end(self) -> None:
        """Nothing stays in the Ray cluster of a launch of this object's."""
        news = self._news
        await self._close()
        if not self._has_begun or self._is_clear or news.error.startswith(UNREACHED):
            return
        await self.clear()

    async def clear(self) -> None:
        """Remove the keepers of this cluster, and with them placement groups and agents."""
        if self._is_clear:
            return
        await self._close()
        await self._begin(self._request("clear", tuple(self.plan.node_ranks)))
        try:
            async with asyncio.timeout(_ANSWER):
                await self._settled.wait()
        except TimeoutError:
            raise LaunchError(f"Ray did not remove {label_of(self.plan)} within {_ANSWER:.0f} s") from None
        finally:
            error = self._news.error
            await self._close()
        if error:
            raise LaunchError(f"what Ray may hold for this cluster, {label_of(self.plan)}, is not removed: {error}")
        self._is_clear = True


def fitting(found: list[float], nnodes: int, wanted: float) -> float:
    """How much of a resource each of ``nnodes`` nodes is asked for: ``wanted``, or less if they all have less.

    ``found``: what each node has in all. With fewer nodes than are asked for, others may be on their way.
    """
    have = sorted(found, reverse=True)
    return wanted if len(have) < nnodes else min(wanted, have[nnodes - 1])
