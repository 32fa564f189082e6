"""Serve the tunnel of a client on another host, on standard input and output: ``jdist serve``, which ssh starts.

The clusters are this host's; a command that starts nodes is a process of its own, which goes on when the login ends.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from jdist.client import find
from jdist.client.lifecycle.sites import LocalSite
from jdist.client.remote.requests import (
    AnyRequest,
    BeginCommand,
    CommandBegun,
    CommandOutput,
    EndCommand,
    FindCluster,
    ListClusters,
    ReadCommand,
    RemoveLeftovers,
    Revive,
    WaitRemoved,
    encode_answer,
    refusal,
)
from jdist.core.errors import JdistError, LaunchError, describe_error, writing_to
from jdist.launch.launch_program import reap
from jdist.wire import log
from jdist.wire.processes import has_ended, start_time
from jdist.wire.transport.tunnel import Tunnel

_SILENCE = 90.0  # Seconds without a byte after which the client is taken to be gone: one that lives writes every 3 s.
_OUTPUT = 10.0  # Seconds for which a request for a command's output waits.
_LOOK = 0.1
_UNDO = 30.0  # Seconds for a command that was interrupted to end what it began.
_PIECE = 1 << 16  # Bytes.
_ROOM = 1 << 16  # Bytes that are reserved for what a command writes: its error, also when the disk has become full.


def main() -> int:
    """Serve until standard input ends."""
    log.configure("serve")
    asyncio.run(_serve())
    return 0


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    tunnel = Tunnel(_answer, ended.set)
    await loop.connect_write_pipe(lambda: tunnel.output, os.fdopen(os.dup(1), "wb", buffering=0))
    os.dup2(2, 1)  # whatever prints must not write into the tunnel
    await loop.connect_read_pipe(lambda: tunnel, os.fdopen(os.dup(0), "rb", buffering=0))
    while not ended.is_set() and loop.time() - tunnel.heard < _SILENCE:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENCE / 3):
                await ended.wait()
    tunnel.close()


async def _answer(data: bytes) -> bytes:
    try:
        return encode_answer(await _carry_out(msgspec.msgpack.decode(data, type=AnyRequest)))
    except JdistError as e:
        return encode_answer(refusal(e))
    except Exception as e:  # the client must not wait for an answer that never comes
        return encode_answer(refusal(LaunchError(describe_error(e))))


async def _carry_out(request: AnyRequest) -> object:
    here = LocalSite()
    match request:
        case ListClusters():
            return list((await here.clusters()).values())
        case FindCluster(name):
            return await here.find(name or None)
        case Revive(connection, is_dead):
            return await here.revive(connection, is_dead=is_dead)
        case WaitRemoved(connection):
            await here.wait_removed(connection)
        case RemoveLeftovers(settings):
            await here.remove_leftovers(settings)
        case BeginCommand(verb, words, name):
            return _begin_command(verb, words, name or find.free_name())
        case ReadCommand(command, offset):
            return await _read_command(command, offset)
        case EndCommand(command):
            await _end_command(command)
    return True


def _begin_command(verb: str, words: tuple[str, ...], name: str) -> CommandBegun:
    """Carry out a command in a process that outlives this one, and writes to a file."""
    path = find.directory() / f"jdist-{name}-{secrets.token_hex(4)}.{verb}"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _reserve(path)
    own = ["--name" if verb == "start" else "--cluster", name, "--at="]  # here, whatever JDIST_AT says
    command = [sys.executable, "-P", "-m", "jdist", verb, *own, *words]
    with path.open("r+b") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    started = start_time(process.pid)
    reap(process)
    return CommandBegun(name, process.pid, started, str(path))


def _reserve(path: Path) -> None:
    """Make a command's output file; it ends at the first zero byte. Raises LaunchError."""
    try:
        with writing_to(path.parent), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(bytes(_ROOM))
    except OSError as e:
        path.unlink(missing_ok=True)
        raise LaunchError(f"the command cannot write its output: {e}") from None


async def _read_command(command: CommandBegun, offset: int) -> CommandOutput:
    """What the command has written from there on, once there is something or it has ended."""
    path = Path(command.file)
    is_over = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_OUTPUT):
            while not (is_over := has_ended(command.pid, command.started)):
                if b"\n" in _read_from(path, offset):
                    break
                await asyncio.sleep(_LOOK)
    data = _read_from(path, offset)
    whole = data if is_over else data[: data.rfind(b"\n") + 1]
    is_last = is_over and len(data) < _PIECE
    if is_last:
        _remove_output(command)
    return CommandOutput(whole.decode(errors="replace"), offset + len(whole), is_last)


def _read_from(path: Path, offset: int) -> bytes:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(_PIECE).partition(b"\0")[0]
    return b""


async def _end_command(command: CommandBegun) -> None:
    """Interrupt a command, and wait until it has ended what it began."""
    with contextlib.suppress(ProcessLookupError):
        if not has_ended(command.pid, command.started):
            os.kill(command.pid, signal.SIGINT)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNDO):
            while not has_ended(command.pid, command.started):  # noqa: ASYNC110 — it may not be a child of this process
                await asyncio.sleep(_LOOK)
    _remove_output(command)


def _remove_output(command: CommandBegun) -> None:
    Path(command.file).unlink(missing_ok=True)
