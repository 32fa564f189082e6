"""A flood: a peer with a valid key that says as much as it can; a program of its own, to be measured beside."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

import msgspec

import jdist
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.protocol import RankQuery
from jdist.core.messages.runs import CellSpec, RunCell
from jdist.core.messages.status import ClientHello, StatusRequest
from jdist.core.messages.values import Complete
from jdist.wire.transport.keys import Connection
from jdist.wire.transport.sockets import DialledPort, new_context
from jdist.wire.transport.streams import AGAIN, Stream
from jdist.wire.values.frames import pack

LARGE = 8 << 20


async def flood(connection: Connection, kind: str, seconds: float) -> int:
    """Bytes handed to the network within so many seconds; what is sent back is never confirmed."""
    context = new_context()
    at = (connection.host, connection.control_port)
    keys = (connection.server_key, connection.key)
    port = DialledPort(context, at, *keys, f"c-{uuid.uuid4().hex}", lambda _: None)
    stream = Stream(1)
    port.send(stream.message(pack(ClientHello(PROTOCOL, jdist.__version__, "flood", 1))))
    end, sent, number = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        number += 1
        match kind:
            case "large cells":
                frames = stream.message(pack(RunCell(f"r{number}", CellSpec("#" * LARGE), (7,))))
            case "large rubbish":
                frames = [b"\0" * 25, b"\xff" * LARGE]
            case "surveys":
                frames = stream.message(pack(StatusRequest(f"r{number}" + "x" * 50_000)))
            case "questions":
                frames = stream.message(pack(RankQuery(f"r{number}" + "x" * 5_000, (0,), Complete("", 0))))
            case _:
                frames = stream.note(kind=AGAIN)
        sent += sum(map(len, frames))
        port.send(frames)
        stream._kept.clear()  # this peer keeps nothing: it is not here to be understood
        await asyncio.sleep(0 if number % 8 else 0.002)
    port.close()
    await asyncio.to_thread(context.term)
    return sent


if __name__ == "__main__":
    found = msgspec.json.decode(sys.stdin.buffer.read(), type=Connection)
    print(asyncio.run(flood(found, sys.argv[1], float(sys.argv[2]))))
