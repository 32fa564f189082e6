"""The controller's process: settings in on standard input, one line out when it listens, then it serves until the end.

It runs in a session of its own, so that interrupting or restarting the notebook's kernel leaves it alone. One that has
died is started again from its charter, at the same ports, where its nodes look for it: of several that try, the one
that gets the port serves, and what another program has taken is waited for.
"""

import asyncio
import contextlib
import errno
import faulthandler
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from jdist.controller.server import Server
from jdist.core import __version__
from jdist.core.errors import LaunchError, ProtocolError
from jdist.wire import awake_loop, log
from jdist.wire.processes import has_ended, host_id, on_exit
from jdist.wire.transport import keys
from jdist.wire.transport.public_port import own_addresses
from jdist.wire.values.segments import sweep

_QUEUE = 30 * 86400.0
_PORTS = 10.0  # Seconds to wait for ports that another program has taken.
_DESCRIPTORS = 65536  # The limit that is asked for: a node or client takes a few, an unauthenticated peer one.


async def _serve(start: keys.StartController) -> None:
    is_again, settings, directory = start.charter is not None, start.settings, Path(start.directory)
    charter = start.charter
    if charter is None:
        host, pairs = (socket.gethostname(), host_id()), (keys.KeyPair.make(), keys.KeyPair.make())
        charter = keys.Charter(settings, keys.new_cluster_id(), __version__, *host, 0, 0, *pairs)
    name, cluster = charter.settings.name, charter.cluster
    path, beside = keys.connection_path(directory, name), keys.charter_path(directory, name)

    addresses = own_addresses() if settings.bind_host in ("", "*") else (settings.bind_host,)

    def write() -> None:
        keys.write_keys(beside, server.charter, replace=True)
        connection = server.charter.connection(os.getpid(), addresses)  # the public port may be open now
        keys.write_keys(path, connection, replace=True)

    server = await _listen(partial(Server, charter, is_again=is_again, on_charter=write), charter, path)
    keys.write_keys(path, server.charter.connection(os.getpid(), addresses), replace=is_again)
    keys.write_keys(beside, server.charter, replace=True)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.end, "the controller was asked to end (SIGTERM)")
    if settings.until:
        on_exit(settings.until, partial(server.stop, f"process {settings.until}, which started it, has ended"))
    living = loop.create_task(_touch(beside))
    try:
        seconds = settings.invitation if settings.launcher == "join" else _QUEUE  # a job may wait in a queue for long
        line = "" if is_again else server.invite(is_remote=bool(settings.bind_host), seconds=seconds)
        _report(keys.ControllerStarted(str(path), line))
        await server.run()
    finally:
        living.cancel()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            # A later cluster of the same name may have written its own.
            if msgspec.json.decode(path.read_bytes(), type=keys.Connection).cluster == cluster:
                beside.unlink(missing_ok=True)
                path.unlink()
        sweep(cluster)
        keys.sweep(cluster)


async def _listen(new_server: Callable[[], Server], charter: keys.Charter, path: Path) -> Server:
    """The server at the charter's ports, once they are free. Raises LaunchError, or _Running if another has them."""
    end = time.monotonic() + _PORTS
    while True:
        try:
            return new_server()
        except OSError as e:
            if e.errno != errno.EADDRINUSE or not charter.control_port or time.monotonic() > end:
                error = f"the controller cannot listen on {charter.settings.bind_host or keys.LOOPBACK}: {e}"
                if charter.control_port and e.errno == errno.EADDRINUSE:
                    error += "; its nodes look for it at that port, which another program has taken meanwhile"
                raise LaunchError(error) from None
        if _serves(charter, path):
            raise _Running
        await asyncio.sleep(0.1)  # a port that becomes free triggers no event


class _Running(Exception):
    """Another process has just started the controller again."""


def _serves(charter: keys.Charter, path: Path) -> bool:
    """Whether a process lives that the connection file calls the cluster's controller."""
    try:
        there = keys.read_connection(path)
    except (OSError, ProtocolError):
        return False
    return there.cluster == charter.cluster and not has_ended(there.pid, there.started)


async def _touch(charter: Path) -> None:
    """Keep the charter's time of change near: from it others see for how long a controller has been gone."""
    while True:
        with contextlib.suppress(OSError):  # it was removed: the controller cannot be started again, no more than that
            os.utime(charter)
        await asyncio.sleep(keys.CHARTER_AGE)


def _report(started: keys.ControllerStarted) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # the starter reads one line and goes its way


def main() -> int:
    """The exit code."""
    faulthandler.enable()  # an end in C code leaves its stacks in the log
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=keys.StartController)
    log.configure("controller", level=dict(start.settings.env).get(log.VARIABLE, ""))
    try:
        awake_loop.run(_serve(start))
    except BrokenPipeError:
        return 1  # the starter has ended before it heard of this cluster: no node can join it
    except FileExistsError as e:
        name = start.settings.name
        advice = f"start with --name OTHER, or remove {e.filename2}"
        _report(keys.ControllerStarted(error=f"the name {name} has just been taken; {advice}"))
        return 1
    except _Running:
        _report(keys.ControllerStarted(str(keys.connection_path(Path(start.directory), start.settings.name))))
        return 0
    except LaunchError as e:
        _report(keys.ControllerStarted(error=str(e)))
        return 1
    except OSError as e:
        _report(keys.ControllerStarted(error=f"the controller cannot write its files: {e}"))
        return 1
    return 0
