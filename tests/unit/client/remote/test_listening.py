"""The ports of this process from which connections reach another host."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from jdist.client.remote.host import RemoteHost


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_as_the_host_is_closed_ends(turns: int) -> None:
    """However many turns of the loop lie between the two, the connection is neither kept nor forgotten."""

    async def close_after() -> None:
        host = RemoteHost("x")
        port = await host._listen(("127.0.0.1", 9))
        host.state = "open"
        loop = asyncio.get_running_loop()

        def turn(left: int) -> None:
            if left:
                loop.call_soon(turn, left - 1)
            else:
                host.close()

        with socket.socket() as client:
            client.connect(("127.0.0.1", port))
            client.setblocking(False)
            turn(turns)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(loop.sock_recv(client, 1), 10)

    asyncio.run(close_after())
    gc.collect()  # an error is raised for a socket that nobody has closed
