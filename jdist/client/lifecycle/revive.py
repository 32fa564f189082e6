"""Reviving: a controller that has died is started again, and its cluster attached to, with every name on the ranks.

Several clients may try at once: the one whose controller gets the port has started it, the others attach to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from jdist.client import find
from jdist.client.lifecycle.start import start_controller_again
from jdist.client.link import Link
from jdist.core.errors import ConnectionLost, LaunchError
from jdist.core.messages.base import Message
from jdist.core.remedy import Remedy
from jdist.wire.transport.keys import Connection, connection_path, read_connection

_EXIT = 5.0
"""Seconds for a process that has closed its connections to be gone."""
_AGENTS_BACK = 15.0
"""Seconds for agents to come back and the world to stand; after that the cluster is as it is."""


async def attach(
    connection: Connection, on_event: Callable[[Message], None], kind: str, *, is_dead: bool = False
) -> Link:
    """A link to the cluster; its controller is started again if it has died. Raises ConnectionLost, LaunchError.

    ``is_dead``: it is known to have died, if only just: its process may still be on its way out.
    """
    charter = find.charter_of(connection)
    if charter is not None and (is_dead or not find.listens(connection)):
        await _ended(connection.pid)
    if charter is None or find.restart_time(connection) <= 0:
        link = Link(connection, on_event)
        await link.open(kind)
        return link
    await asyncio.to_thread(start_controller_again, charter)
    connection = read_connection(connection_path(find.directory(), connection.name))
    if connection.cluster != charter.cluster:
        remedies = (Remedy("attach", "use it", name=connection.name),)
        raise ConnectionLost(f"cluster {connection.name} is another one now", remedies=remedies)
    link = Link(connection, on_event)
    await link.open(kind)
    try:
        with contextlib.suppress(TimeoutError, LaunchError):  # then status says what is missing
            await link.wait_ready(_AGENTS_BACK)
    except BaseException:
        link.close()
        raise
    return link


async def _ended(pid: int) -> None:
    """Until the process is gone, or clearly stays."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watched, over.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _EXIT)
    finally:
        loop.remove_reader(watched)
        os.close(watched)
