"""Reports: processes of the agent that send one datagram, when they are ready or done."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from jdist.agent.processes.exits import on_exit
from jdist.agent.starters.forkserver import ProcessRequest
from jdist.agent.starters.prewarm import Starter
from jdist.core.errors import LaunchError


async def start_reporter(
    starter: Starter, directory: Path, name: str, entry: str, spec: Callable[[str], Struct], timeout: float
) -> tuple[int, bytes]:
    """Start ``entry`` with the spec for a report's path; (pid, report).

    Raises LaunchError, with what it wrote last if it ends without a report, and TimeoutError ``timeout`` seconds after
    its start.
    """
    path, log = directory / f"{name}-report", directory / f"{name}.log"
    path.unlink(missing_ok=True)
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(str(path))
        reports.setblocking(False)
        loop.add_reader(reports, is_over.set)
        try:
            pid = await starter.start(ProcessRequest(entry, msgspec.json.encode(spec(str(path))), str(log), {}))
            on_exit(pid, is_over.set)
            await asyncio.wait_for(is_over.wait(), timeout)
            return pid, reports.recv(1 << 16)
        except BlockingIOError:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise LaunchError(f"its process ended without a report; {' '.join(last)}") from None
        finally:
            loop.remove_reader(reports)
            path.unlink(missing_ok=True)
