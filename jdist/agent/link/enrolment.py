"""Enrolling: with a join line, an agent finds its controller and gets a key of its own.

The controller is tried at all addresses of the line at once. Of those that answer for this cluster the earliest in the
line is taken, so that nodes which reach it in several ways take the same; that it is the right one, and not somebody in
its place, its key proves.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from jdist.core import __version__
from jdist.core.errors import LaunchError, ProtocolError
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import Enrol, Rejected, ToUnauthenticated
from jdist.wire.transport.dialing import ping
from jdist.wire.transport.invitations import REFUSED, Endpoint, JoinLine
from jdist.wire.transport.keys import KeyPair
from jdist.wire.transport.sockets import ConnectionMonitor, Frames, Port, dial_tcp
from jdist.wire.values.frames import Unpacker, pack

_FIND_WITHIN = 8.0
"""Seconds for the controller to be reached."""
_TRY_AGAIN = 1.0
_HEAD_START = 0.3
"""Seconds that an earlier address of the line may answer after a later one."""
_ANSWER_WITHIN = 15.0
"""Seconds for the controller to take the key."""

_VOID = "the join line has expired or was revoked; ask the user of the cluster for another (invite)"

_answer: Unpacker[Any] = Unpacker(ToUnauthenticated)


async def enrol(context: Any, line: JoinLine) -> Endpoint:
    """Raises LaunchError: it cannot be reached, or lets nobody in with this line."""
    way = line.endpoint(await _find(line), line.key)
    own = KeyPair.make()
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answer(problem: str) -> None:
        if not answered.done():
            answered.set_result(problem)

    def on_frames(frames: Frames) -> None:
        try:
            message = _answer(frames[-1])
        except ProtocolError as e:
            answer(f"the controller's answer cannot be read: {e}")
        else:
            answer(f"{REFUSED} {message.reason}" if isinstance(message, Rejected) else "")

    watches: list[ConnectionMonitor] = []

    def watch(socket: Any) -> None:
        watches.append(ConnectionMonitor(socket, lambda _: None, lambda: answer(_VOID)))

    address = (way.host, way.control_port)
    socket = dial_tcp(context, address, way.server_key, way.key, f"e-{uuid.uuid4().hex}", watch)
    port = Port(socket, on_frames)
    port.send([pack(Enrol(PROTOCOL, __version__, own.public))])
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            problem = await answered
    except TimeoutError:
        problem = f"what answers at {way.host}:{way.control_port} is not the controller that the join line names"
    finally:
        for watched in watches:
            watched.close()
        port.close()
    if problem:
        raise LaunchError(problem)
    return line.endpoint(way.host, own)


async def _find(line: JoinLine) -> str:
    """The line's host at which the controller answers."""
    try:
        async with asyncio.timeout(_FIND_WITHIN):
            while True:
                found = await _first(line)
                if found:
                    return found
                await asyncio.sleep(_TRY_AGAIN)  # a network may be on its way up
    except TimeoutError:
        tried = ", ".join(line.hosts)
        raise LaunchError(
            f"the controller of this join line does not answer at port {line.data_port} of {tried}: is the cluster "
            "still there, and is that port let through? A start with --bind ADDRESS makes it listen at another address"
        ) from None


async def _first(line: JoinLine) -> str:
    trials = [asyncio.create_task(ping((h, line.data_port), line.cluster)) for h in line.hosts]
    try:
        for trial in asyncio.as_completed(trials):
            if await trial:
                break
        answered = next((n for n, t in enumerate(trials) if t.done() and t.result()), None)
        if answered:
            await asyncio.wait(trials[:answered], timeout=_HEAD_START)
        return next((h for h, t in zip(line.hosts, trials, strict=True) if t.done() and t.result()), "")
    finally:
        for trial in trials:
            trial.cancel()
        await asyncio.wait(trials)
