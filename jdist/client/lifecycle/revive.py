"""Revive: a controller that has died is started again, and the client attaches to it; the ranks keep every name.

Several clients may try at once: the one whose controller gets the port has started it, the others attach to that one.
"""

import asyncio
import contextlib
from collections.abc import Callable

from jdist.client import find
from jdist.client.lifecycle.controller_process import start_controller
from jdist.client.link import Link
from jdist.core.errors import ConnectionLost, LaunchError
from jdist.core.messages.base import Message
from jdist.core.remedy import Remedy
from jdist.wire.processes import has_ended
from jdist.wire.transport.keys import Connection, connection_path, read_connection

_EXIT = 5.0  # Seconds for a process that has closed its connections to be gone.
# Seconds for agents to reconnect and the world to be formed; after that the cluster is attached to as it is.
_AGENTS_BACK = 15.0


async def attach(
    connection: Connection, on_event: Callable[[Message], None], kind: str, *, is_dead: bool = False
) -> Link:
    """A link to the cluster, whose controller is started again if it has died. Raises ConnectionLost, LaunchError.

    ``is_dead``: the controller is known to have died, although its process may still exist for a moment.
    """
    charter = find.charter_of(connection)
    if charter is not None and (is_dead or not find.listens(connection)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT):
                while not has_ended(connection.pid):  # noqa: ASYNC110 — that triggers no event here
                    await asyncio.sleep(0.01)
    is_restarted = charter is not None and find.restart_time(connection) > 0
    if charter is not None and is_restarted:
        await asyncio.to_thread(start_controller, charter.settings, charter)
        connection = read_connection(connection_path(find.directory(), connection.name))
        if connection.cluster != charter.cluster:
            remedies = (Remedy("attach", "use it", name=connection.name),)
            raise ConnectionLost(f"cluster {connection.name} is another one now", remedies=remedies)
    link = Link(connection, on_event)
    await link.open(kind)
    if is_restarted:
        try:
            with contextlib.suppress(TimeoutError, LaunchError):  # status shows what is missing
                await link.wait_ready(_AGENTS_BACK)
        except BaseException:
            link.close()
            raise
    return link
