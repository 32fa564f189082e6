"""Tunnel keeper: a process that carries the connections of one node to the controller, which that cannot reach.

It logs in to the node by asyncssh, as the launcher does, so that a host which lets the launcher in lets it in as well,
with the same settings and the same messages; OpenSSH's program would ask, and no one is here to answer. The connections
travel over the standard input and output of ``jdist node-end`` there (launch/node_end), so no permission to forward
ports is needed. The node's end names what is to be dialled; only the controller's control and data port on this host's
loopback are::

    connecting ──the node's end has reported──► carrying ──the login ends──► waiting ──a pause──► connecting
        └──────────────────── the node cannot be logged in to ─────────────────▲

`TunnelKeeper._keep` alone changes the state. The pause is 1, 2, 4 … 60 s; a login that carries makes it 1 s again.
Every login offers the same two ports on the node, so the agent finds the controller where it was, and its streams go
on.

The launcher starts a keeper for each node that needs one, and waits for its report; if the first login fails, that is
the report. From then on the keeper belongs to no launcher: its life is bound to the controller's, in a session of its
own. It ends when the cluster's connection file is gone or is another cluster's, which is how a controller ends in
order; after the grace of a carried node without a controller, which may have died and be started again at the same
ports, or with a file that cannot be read all the time; and after the same time without a connection, since the agent
has given up by then, or was removed.
"""

import asyncio
import contextlib
import logging
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Literal

import asyncssh
import msgspec
from msgspec import Struct

from jdist.core.errors import LaunchError, ProtocolError
from jdist.core.settings import SshBootstrapSpec
from jdist.launch.launch_program import reap
from jdist.launch.node_end import NodeEndReport, NodeEndSpec
from jdist.launch.ssh_login import SshLogins, start_there
from jdist.wire import log
from jdist.wire.processes import has_ended, host_id, set_name
from jdist.wire.transport.keys import LOOPBACK, read_connection
from jdist.wire.transport.tunnel import Address, Tunnel

_REPORTED = 150.0  # Seconds for the first login, with the start of Python there.
_ANSWERED = 20.0  # Seconds for the node's end to listen.
_SILENCE = 15.0  # Seconds until a login that breaks silently is given up.
_LONGEST_PAUSE = 60.0
_LOOK = 1.0  # Seconds between two looks at the controller.
_DRAIN = 5.0  # Seconds for the controller's last words to reach the node.

State = Literal["connecting", "carrying", "waiting"]
_log = logging.getLogger("jdist.launch")


class KeeperSpec(Struct, frozen=True):
    """Passed to a keeper on its standard input."""

    host: str
    pythons: tuple[str, ...]
    configuration: str  # File of ssh's configuration; "": the user's.
    node_end: SshBootstrapSpec
    connection_file: str
    cluster: str
    grace: float  # Seconds for which the agent waits for the controller.


class KeeperReport(Struct, frozen=True):
    """Its answer, one line: the node's ports for the control and the data port, or why there are none."""

    ports: tuple[int, ...] = ()
    error: str = ""


class TunnelKeeper:
    """Carries the connections of one node."""

    def __init__(self, spec: KeeperSpec):
        """Raises OSError, ProtocolError if the controller's connection file cannot be read, LaunchError elsewhere."""
        self.state: State = "connecting"
        self._spec = spec
        connection = read_connection(Path(spec.connection_file))
        if connection.host_id != host_id():
            raise LaunchError(
                f"only {connection.hostname}, the controller's host, can carry connections: start it there"
            )
        ports = (connection.control_port, connection.data_port)
        self._controller: tuple[Address, ...] = tuple((LOOPBACK, port) for port in ports)
        self._logins = SshLogins(spec.configuration)
        self._tunnel: Tunnel | None = None
        self._end = NodeEndReport((0, 0))  # The node's end that was there last.
        self._loop = asyncio.get_running_loop()
        self._controlled = self._used = self._loop.time()  # When there was a controller, and a connection.

    async def run(self) -> None:
        """Carry until the controller has ended or the node needs it no more."""
        keeping = self._loop.create_task(self._keep())
        while not keeping.done() and not self._is_over():
            await asyncio.wait([keeping], timeout=_LOOK)  # neither file nor another controller triggers an event here
        await self._drain()
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled() and (fault := keeping.exception()) is not None:
            raise fault

    def _is_over(self) -> bool:
        now, spec = self._loop.time(), self._spec
        try:
            connection = read_connection(Path(spec.connection_file))
        except FileNotFoundError:
            return True
        except (OSError, ProtocolError) as e:  # it may be readable again in a moment: as if there were no controller
            _log.debug("the controller cannot be looked for: %s", e)
        else:
            if connection.cluster != spec.cluster:
                return True
            if not has_ended(connection.pid, connection.started):
                self._controlled = now
        if self._tunnel is not None and not self._tunnel.is_idle:
            self._used = now
        return now - min(self._controlled, self._used) > spec.grace

    async def _drain(self) -> None:
        """Let what the controller said last, and the ends of its connections, reach the node."""
        end = self._loop.time() + _DRAIN
        while self._tunnel is not None and not self._tunnel.is_idle and self._loop.time() < end:  # noqa: ASYNC110 — no event
            await asyncio.sleep(_LOOK / 10)

    # ------------------------------------------------------------ logins

    async def _keep(self) -> None:
        """Log in again and again."""
        pause = 1.0
        while True:
            self._set("connecting")
            try:
                await self._carry()
            except (LaunchError, asyncssh.Error, OSError, TimeoutError, msgspec.DecodeError) as e:
                why = str(e) or type(e).__name__
                if not self._end.process[0]:
                    _report(KeeperReport(error=why))
                    return
                _log.warning("%s cannot be logged in to: %s; it is tried again and again", self._spec.host, why)
            if self.state == "carrying":
                pause = 1.0
            self._set("waiting")
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _set(self, state: State) -> None:
        _log.info("%s: %s, was %s", self._spec.host, state, self.state)
        self.state = state

    async def _carry(self) -> None:
        """Log in, and carry until the login ends."""
        connection = await self._logins.log_in(self._spec.host, _SILENCE)
        try:
            process, _ = await start_there(connection, self._spec.host, self._spec.pythons, self._spec.node_end)
            spec = NodeEndSpec(self._controller, self._end.ports, self._end.process)
            process.stdin.write(msgspec.json.encode(spec) + b"\n")
            async with asyncio.timeout(_ANSWERED):
                line = await process.stdout.readline()
            report = msgspec.json.decode(line, type=NodeEndReport) if line else NodeEndReport(error="it ended at once")
            if report.error:
                raise LaunchError(f"its end of the tunnel could not begin: {report.error}")
            is_first, self._end = not self._end.process[0], report
            await self._serve(process, is_first=is_first)
        finally:
            connection.abort()

    async def _serve(self, process: asyncssh.SSHClientProcess[bytes], *, is_first: bool) -> None:
        ended = asyncio.Event()
        tunnel = Tunnel(_answer, ended.set, dials=frozenset(self._controller))
        (there, output), (inputs, here) = os.pipe(), os.pipe()  # each end has asyncio's flow control
        await process.redirect(stdin=there, stdout=here)
        await self._loop.connect_write_pipe(lambda: tunnel.output, os.fdopen(output, "wb", buffering=0))
        await self._loop.connect_read_pipe(lambda: tunnel, os.fdopen(inputs, "rb", buffering=0))
        self._tunnel = tunnel
        self._set("carrying")
        if is_first:
            _report(KeeperReport(self._end.ports))
        try:
            await ended.wait()
        finally:
            self._tunnel = None
            tunnel.close()


async def _answer(_request: bytes) -> bytes:
    """The node's end asks whether this end is there."""
    return b""


def _report(report: KeeperReport) -> None:
    """Report to whoever has started this process, if that is still there."""
    with contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(report) + b"\n")
    os.dup2(2, 1)


async def _run(spec: KeeperSpec) -> None:
    try:
        keeper = TunnelKeeper(spec)
    except (OSError, ProtocolError, LaunchError) as e:
        _report(KeeperReport(error=str(e)))
        return
    await keeper.run()


def main() -> None:
    """Read the spec on standard input and carry."""
    log.configure("keeper")
    set_name("jdist-keeper")
    asyncio.run(_run(msgspec.json.decode(sys.stdin.readline(), type=KeeperSpec)))


# ---------------------------------------------------------------- the launcher's side


async def start_keeper(spec: KeeperSpec, log_file: str) -> tuple[subprocess.Popen[bytes], KeeperReport]:
    """Start a keeper, which outlives this process. Raises LaunchError. One whose start is cancelled ends."""
    process = _start(log_file)
    try:
        line = await asyncio.to_thread(_talk, process, msgspec.json.encode(spec) + b"\n")
        report = msgspec.json.decode(line, type=KeeperReport) if line else KeeperReport(error=f"see {log_file}")
        if report.error:
            raise LaunchError(report.error)
    except BaseException:
        process.terminate()
        raise
    return process, report


def _start(log_file: str) -> subprocess.Popen[bytes]:
    command, pipe = [sys.executable, "-P", "-m", __name__], subprocess.PIPE
    with open(log_file, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, start_new_session=True)
    reap(process)
    return process


def _talk(process: subprocess.Popen[bytes], spec: bytes) -> bytes:
    """Write the spec, and read the report; b"" if there is none."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(spec)
        return process.stdout.readline() if select.select([process.stdout], [], [], _REPORTED)[0] else b""


if __name__ == "__main__":
    main()
