"""A node's end of what ssh carries for it: whether it reaches the controller by itself, and the end of its tunnel.

``jdist reach`` and ``jdist node-end`` are started by logins. Each reads one line of standard input and writes one of
standard output; then the second one's standard input and output are the tunnel (wire/transport/tunnel). It listens at
two ports of the node's loopback, for the controller's control and data port, which the keeper (launch/tunnel_keeper)
dials. A login that follows a broken one names its process: that ends first, and with it the connections in it, which
are reset as by a broken network; so the ports are free.
"""

import asyncio
import contextlib
import os
import signal
import socket
from functools import partial

import msgspec
from msgspec import Struct

from jdist.core.errors import ConnectionLost
from jdist.wire import log
from jdist.wire.processes import has_ended, set_name, start_time
from jdist.wire.transport.dialing import ping
from jdist.wire.transport.keys import LOOPBACK
from jdist.wire.transport.tunnel import Address, Tunnel, TunnelConnection

_REACH = 4.0  # Seconds for the controller to answer a node that reaches it.
_BEAT = 15.0  # Seconds between two looks whether the other end is there, and for it to answer.
_END = 3.0  # Seconds for the process of a broken login to end.


class ReachSpec(Struct, frozen=True):
    """The controller that ``jdist reach`` looks for; it answers with true or false."""

    cluster: str
    hosts: tuple[str, ...]
    port: int


class NodeEndSpec(Struct, frozen=True):
    """Passed to a node's end."""

    controller: tuple[Address, ...]  # What the keeper dials for each port.
    ports: tuple[int, ...]  # The ports; 0: any.
    before: tuple[int, int] = (0, 0)  # Process id and start time of the end before this one.


class NodeEndReport(Struct, frozen=True):
    """The answer, before the tunnel begins."""

    ports: tuple[int, ...] = ()
    process: tuple[int, int] = (0, 0)  # Process id and start time.
    error: str = ""


def main(command: str) -> int:
    """Carry out ``reach`` or ``node-end``; the exit code."""
    log.configure(command)
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # unbuffered: what follows the line is the tunnel's
        line = stdin.readline()
    if command == "reach":
        _say(asyncio.run(_reaches(msgspec.json.decode(line, type=ReachSpec))))
    elif line.endswith(b"\n"):  # else the login has ended
        set_name("jdist-node-end")
        asyncio.run(_serve(msgspec.json.decode(line, type=NodeEndSpec)))
    return 0


def _say(answer: object) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")


async def _reaches(wanted: ReachSpec) -> bool:
    trials = [asyncio.create_task(ping((h, wanted.port), wanted.cluster, _REACH)) for h in wanted.hosts]
    try:
        for trial in asyncio.as_completed(trials):
            if await trial:
                return True
        return False
    finally:
        for trial in trials:
            trial.cancel()


async def _serve(spec: NodeEndSpec) -> None:
    """Serve the tunnel until the login ends, or the other end is silent."""
    try:
        await _end_process(*spec.before)
        listeners = [socket.create_server((LOOPBACK, port)) for port in spec.ports]
    except OSError as e:
        _say(NodeEndReport(error=str(e)))
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    tunnel = Tunnel(None, ended.set)
    ports = tuple(int(listener.getsockname()[1]) for listener in listeners)
    _say(NodeEndReport(ports, (os.getpid(), start_time(os.getpid()))))
    await loop.connect_write_pipe(lambda: tunnel.output, os.fdopen(os.dup(1), "wb", buffering=0))
    _silence()
    await loop.connect_read_pipe(lambda: tunnel, os.fdopen(os.dup(0), "rb", buffering=0))
    for listener, address in zip(listeners, spec.controller, strict=True):
        carry = partial(TunnelConnection, partial(_carry, tunnel, address))
        await loop.create_server(carry, sock=listener)
    watching = loop.create_task(_watch(tunnel))
    await ended.wait()
    watching.cancel()


def _silence() -> None:
    """Whatever prints from now on must not write into the tunnel, or wait for its reader."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)


def _carry(tunnel: Tunnel, address: Address, connection: TunnelConnection) -> None:
    tunnel.carry(connection, address)


async def _watch(tunnel: Tunnel) -> None:
    """End a tunnel whose other end does not answer."""
    with contextlib.suppress(TimeoutError, ConnectionLost):
        while True:
            await asyncio.sleep(_BEAT)
            await tunnel.ask(b"", _BEAT)
    tunnel.close()


async def _end_process(pid: int, started: int) -> None:
    """End an earlier process of this command, if it is still there. Raises OSError."""
    if not pid or has_ended(pid, started):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_END):
            while not has_ended(pid, started):  # noqa: ASYNC110 — it is no child of this process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise OSError(f"process {pid}, which holds the ports of an earlier login, does not end") from None
