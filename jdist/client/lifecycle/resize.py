"""Resizing: a running cluster gets a node more, whose agent is launched from here, or loses ranks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from jdist.client import find
from jdist.client.lifecycle.invite import invite
from jdist.client.link import Link, new_request
from jdist.core.errors import LaunchError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.membership import AddNode, PlaceOpened, RemoveRanks, Resized
from jdist.core.messages.protocol import RankReply
from jdist.core.remedy import Remedy
from jdist.core.settings import Settings
from jdist.launch.base import Launcher, Plan, find_launcher

_WATCH = 0.25
"""Between two looks at whether the launched agent has ended (its exit wakes nobody else)."""
_REMOVE_TIMEOUT = 180.0


class Wanted(Struct, frozen=True):
    """A node that is to be added: its ranks (0: as many as the last node has), and how its agent is started.

    ``launcher`` and ``fork`` None: as the cluster was started, as far as that is known here.
    """

    nproc: int
    launcher: str | None
    args: tuple[str, ...]
    fork: bool | None

    def of(self, settings: Settings) -> Settings:
        """The cluster's settings, with what was said otherwise for this node."""
        name, args = (settings.launcher, settings.launcher_args) if self.launcher is None else (self.launcher, ())
        fork = settings.fork if self.fork is None else self.fork
        return msgspec.structs.replace(settings, launcher=name, launcher_args=self.args or args, fork=fork)


async def add_node(link: Link, wanted: Wanted, timeout: float) -> tuple[Resized, Launcher]:
    """Launch one agent more, and wait until its ranks are in the world. Raises UsageError, LaunchError.

    What was launched is ended again if it does not come to that.
    """
    charter = find.charter_of(link.connection)
    settings = wanted.of(Settings(name=link.connection.name) if charter is None else charter.settings)
    kind = find_launcher(settings.launcher)
    line = await invite(link, is_remote=kind.is_remote)
    request = new_request()
    message = AddNode(request, wanted.nproc, timeout)
    async with contextlib.aclosing(link.answers(request, message, timeout)) as answers:
        placed = _body(await anext(answers))
        if not isinstance(placed, PlaceOpened):
            raise UsageError(f"an unexpected answer: {placed}")
        log = str(find.directory() / f"jdist-{link.connection.name}.log")
        launcher = kind(Plan(settings, log, first=placed.node_rank, nnodes=1))
        try:
            await launcher.launch(_known(line))
            resized = await _join(answers, launcher, placed.node_rank, timeout)
            await launcher.let_go()
            return resized, launcher
        except BaseException:
            await launcher.end()
            raise


async def _join(answers: AsyncGenerator[Message, None], launcher: Launcher, node: int, timeout: float) -> Resized:
    """Until the world has been formed with the node, or its agent has ended."""
    joined = asyncio.ensure_future(anext(answers))
    try:
        async with asyncio.timeout(timeout):
            while not joined.done():
                await asyncio.wait([joined], timeout=_WATCH)
                failures = launcher.failures()
                if failures and not joined.done():
                    raise LaunchError(f"node {node} did not join: {'; '.join(failures.values())}")
            resized = _body(joined.result())
    except TimeoutError:
        text = f"node {node} was not in the world after {timeout:.0f} s"
        raise LaunchError(text, remedies=(Remedy("status", "see what is missing"),)) from None
    finally:
        joined.cancel()
        await asyncio.wait([joined])
    if not isinstance(resized, Resized):
        raise UsageError(f"an unexpected answer: {resized}")
    return resized


async def remove(link: Link, ranks: tuple[int, ...]) -> Resized:
    """End ranks, and wait until the others have formed the world. Raises UsageError."""
    resized = _body(await link.request(RemoveRanks(new_request(), ranks), _REMOVE_TIMEOUT))
    if not isinstance(resized, Resized):
        raise UsageError(f"an unexpected answer: {resized}")
    return resized


async def _known(line: str) -> str:
    return line


def _body(answer: Message) -> object:
    return answer.body if isinstance(answer, RankReply) else answer
