"""Enrolment: with a join line, an agent finds its controller and gets a key of its own.

All addresses of the line are tried at once. Of those that answer for this cluster the earliest in the line is used, so
that nodes which reach the controller in several ways use the same one. The controller's key proves that it is genuine.
"""

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
from jdist.wire.transport.sockets import DialledPort, Frames
from jdist.wire.values.frames import Unpacker, pack

_FIND_TIMEOUT = 8.0  # Seconds for the controller to be reached.
_RETRY = 1.0
_HEAD_START = 0.3  # Seconds that an earlier address of the line may answer after a later one.
_ENROL_TIMEOUT = 15.0  # Seconds for the controller to take the key.

_VOID = "the join line has expired or was revoked; ask the user of the cluster for another (invite)"

_answer: Unpacker[Any] = Unpacker(ToUnauthenticated)


async def enrol(context: Any, line: JoinLine) -> Endpoint:
    """Raises LaunchError: the controller cannot be reached, or does not accept the line."""
    endpoint = line.endpoint(await _find(line), line.key)
    own = KeyPair.make()
    # Why the controller does not take the key; empty if it does.
    problem: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answer(text: str) -> None:
        if not problem.done():
            problem.set_result(text)

    def on_frames(frames: Frames) -> None:
        try:
            message = _answer(frames[-1])
        except ProtocolError as e:
            answer(f"the controller's answer cannot be read: {e}")
        else:
            answer(f"{REFUSED} {message.reason}" if isinstance(message, Rejected) else "")

    host, port = address = (endpoint.host, endpoint.control_port)
    keys, name = (endpoint.server_key, endpoint.key), f"e-{uuid.uuid4().hex}"
    connection = DialledPort(context, address, *keys, name, on_frames, on_refused=lambda: answer(_VOID))
    connection.send([pack(Enrol(PROTOCOL, __version__, own.public))])
    try:
        async with asyncio.timeout(_ENROL_TIMEOUT):
            if await problem:
                raise LaunchError(problem.result())
    except TimeoutError:
        reason = f"what answers at {host}:{port} is not the controller that the join line names"
        raise LaunchError(reason) from None
    finally:
        connection.close()
    return line.endpoint(host, own)


async def _find(line: JoinLine) -> str:
    """The first host of the line at which the controller answers."""
    try:
        async with asyncio.timeout(_FIND_TIMEOUT):
            while True:
                found = await _first(line)
                if found:
                    return found
                await asyncio.sleep(_RETRY)  # a network may be coming up
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
