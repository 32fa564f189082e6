"""Remote: the agent of one host, started over an ssh connection of its own.

Until it has its join line, it ends with the connection; later, in a session of its own, it ends with its controller.
"""

import asyncio
import contextlib
import importlib.resources
import shlex
from typing import Any

import asyncssh
import msgspec
from msgspec import Struct

from jdist.core.errors import LaunchError
from jdist.core.settings import SshBootstrapSpec
from jdist.launch.launch_program import last_words
from jdist.launch.node_launch import NodeLaunch
from jdist.launch.ssh.logins import SshLogins

_REPORT = 60.0  # Seconds for a login shell, Python's start and the import of jdist there.
_END = 5.0
_LOG_LINES = 3
# For /bin/sh: run `$0` with the first of the arguments that is an interpreter here.
_CHOOSE = (
    'for p in "$@"; do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0"; done; echo "there is no $*" >&2; exit 127'
)


class BootstrapReport(Struct, frozen=True):
    """Report of the bootstrap."""

    error: str = ""
    pid: int = 0
    log: str = ""


class RemoteAgent(NodeLaunch):
    """Starts one agent on its host, by one of ``pythons``."""

    def __init__(self, host: str, pythons: list[str], spec: SshBootstrapSpec, logins: SshLogins):
        super().__init__(host, "connecting")
        self._pythons = pythons
        self._spec = spec
        self._logins = logins
        self._connection: asyncssh.SSHClientConnection | None = None
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._report = BootstrapReport()
        self._watching: asyncio.Task[None] | None = None

    async def bring(self, join_line: asyncio.Future[str]) -> None:
        """Start the agent and send it its join line. Raises LaunchError."""
        bootstrap = importlib.resources.files("jdist.launch.ssh").joinpath("bootstrap.py").read_bytes()
        command = _command(self._pythons, len(bootstrap))
        try:
            self._connection = await self._logins.log_in(self.name)
            self.stage = "starting"
            self._process = process = await self._connection.create_process(command, encoding=None)
            async with asyncio.timeout(_REPORT):
                with contextlib.suppress(OSError):  # it ended already, and says why
                    process.stdin.write(bootstrap + msgspec.json.encode(self._spec) + b"\n")
                    await process.stdin.drain()
                self._report = await _read_report(process, self._spec.mark.encode())
            if self._report.error:
                raise LaunchError(self._report.error)
            self.stage = "waiting for the controller"
            line = await asyncio.shield(join_line)
            process.stdin.write(line.encode() + b"\n")
        except TimeoutError:
            raise LaunchError(f"Python did not start within {_REPORT:.0f} s; try ssh {self.name} python3") from None
        except (asyncssh.Error, OSError) as e:
            raise LaunchError(str(e) or type(e).__name__) from None
        self.stage = "started"
        self._watching = asyncio.get_running_loop().create_task(self._watch(process))

    async def _watch(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        """Record the agent's end. If only the connection ends, the agent goes on."""
        done = await process.wait()
        if done.exit_status is None and done.exit_signal is None:
            self.stage = "out of sight"
            return
        log = shlex.quote(self._report.log)
        said = await self._run(f"tail -n {_LOG_LINES} {log}; rm -f {log}")
        how = f"code {done.exit_status}" if done.exit_signal is None else f"signal {done.exit_signal[0]}"
        self.failure = f"its agent ended with {how}{f': {last_words(said)}' if said.strip() else ''}"
        self.stage = "ended"

    async def _run(self, command: str) -> str:
        """Output of a short command on the host; "" if the connection is broken."""
        if self._connection is None:
            return ""
        with contextlib.suppress(asyncssh.Error, OSError):
            async with asyncio.timeout(_END):
                return str((await self._connection.run(command, check=False)).stdout or "")
        return ""

    async def end(self) -> None:
        """End the agent if it still runs and can be reached, and close the connection."""
        if self._connection is None:
            return
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write_eof()
        if self._watching is not None and not self._watching.done():
            await self._run(f"kill {self._report.pid}")
            await asyncio.wait([self._watching], timeout=_END)
        await self.release()

    async def release(self) -> None:
        """Close the connection. An agent that has its join line goes on."""
        if self._watching is not None:
            self._watching.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.close()
        with contextlib.suppress(asyncssh.Error, OSError):
            async with asyncio.timeout(_END):
                await connection.wait_closed()


def _command(pythons: list[str], nbytes: int) -> str:
    """Command line for a login shell of any kind: single quotes, no exclamation mark, no newline inside."""
    # The bootstrap is read byte by byte, so that what follows it stays on standard input for the agent.
    read = f'import os,sys;sys.path[:]=filter(None,sys.path);exec(b"".join([os.read(0,1)for _ in range({nbytes})]))'
    return " ".join(["exec /bin/sh -c", shlex.quote(_CHOOSE), shlex.quote(read), *map(shlex.quote, pythons)])


async def _read_report(process: asyncssh.SSHClientProcess[bytes], mark: bytes) -> BootstrapReport:
    """Read the line with the mark, skipping a login's output. Raises LaunchError with the output if there is none."""
    async for line in process.stdout:
        if line.startswith(mark):
            return msgspec.json.decode(line[len(mark) :], type=BootstrapReport)
    done: Any = await process.wait()
    said = " / ".join((done.stderr or b"").decode(errors="replace").strip().splitlines()[-_LOG_LINES:])
    raise LaunchError(f"Python could not be started there: {said or f'exit code {done.exit_status}'}")
