"""Wire: rubbish at every socket of a controller, from a stranger, a guest, an agent and a client, while others use it.

The peers are real: they shake hands with the keys that such a one has, and then say what nobody should.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import uuid
from collections.abc import Callable
from typing import Any

import jdist
from jdist.core.errors import ProtocolError
from jdist.core.messages.base import PROTOCOL
from jdist.core.messages.membership import (
    AddNode,
    AgentHello,
    DropNodes,
    Enrol,
    Enrolled,
    Invite,
    MakeGroup,
    MakeMesh,
    NodeFacts,
    RemoveRanks,
    Restart,
    ToUnauthenticated,
)
from jdist.core.messages.protocol import AgentMessage, ClientMessage
from jdist.core.messages.runs import Interrupt, RunCell
from jdist.core.messages.status import ClientHello, StopCluster
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import Connection, KeyPair, agent_name
from jdist.wire.transport.sockets import DialledPort, Frames, Port, new_context
from jdist.wire.transport.streams import MESSAGE
from jdist.wire.values.frames import Unpacker, pack
from support.fuzz.making import Maker

_HEAD = struct.Struct(">BQQQ")
_ORDERS = (*(StopCluster, RemoveRanks, DropNodes, Restart, AddNode, MakeGroup, MakeMesh, Interrupt, RunCell, Invite),)
"""What a client may well want, and would get: nothing that is dropped."""
_clients: Unpacker[Any] = Unpacker(ClientMessage)
_newcomers: Unpacker[Any] = Unpacker(ToUnauthenticated)
_FACTS = NodeFacts("fuzz", 1, "3.11.0", "2.0", jdist.__version__, 0, 1, "127.0.0.1")
DEADLINE = 20.0


class Fuzz:
    """Peers of a cluster that mean no good. ``sent`` counts what was said, by who said it."""

    def __init__(self, connection: Connection, line: JoinLine, source: random.Random):
        self.sent: dict[str, int] = {}
        self._connection = connection
        self._line = line
        self._source = source
        self._maker = Maker(source, jdist.__version__)
        self._context = new_context()
        self._ports: list[Port] = []

    async def run(self, rounds: int) -> None:
        """``rounds`` of rubbish of every kind; returns when all of it has been heard or refused."""
        try:
            agent_keys = KeyPair.make()
            await self._enrol(agent_keys)
            c = self._connection
            at = (c.host, c.control_port)
            client = self._dial(at, c.key, f"c-{uuid.uuid4().hex}")
            guest = self._dial((self._line.hosts[0], self._line.control_port), self._line.key, f"e-{uuid.uuid4().hex}")
            agent = self._dial(at, agent_keys, agent_name(agent_keys.public))
            liar = self._dial(at, agent_keys, "c-" + "0" * 32)
            for _ in range(rounds):
                self._say("client", client, self._client_says())
                self._say("agent", agent, self._framed(self._maker.payload(AgentMessage), self._hello_agent()))
                self._say("guest", guest, [self._maker.payload(Enrol)])
                self._say("agent under a client's name", liar, [self._maker.payload(ClientMessage)])
                await self._stranger()
        finally:
            for port in self._ports:
                port.close(linger=2.0)
            await asyncio.to_thread(self._context.term)

    async def _enrol(self, keys: KeyPair) -> None:
        """What an agent does first; proves that the gate is still manned."""
        answer: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
        at = (self._line.hosts[0], self._line.control_port)
        guest = self._dial(at, self._line.key, f"e-{uuid.uuid4().hex}", answer.set_result)
        guest.send([pack(Enrol(PROTOCOL, jdist.__version__, keys.public))])
        async with asyncio.timeout(DEADLINE):
            assert isinstance(_newcomers((await answer)[-1]), Enrolled)
        guest.close()
        self._ports.remove(guest)

    def _dial(
        self, at: tuple[str, int], keys: KeyPair, name: str, on_frames: Callable[[Frames], None] = lambda _: None
    ) -> Port:
        port = DialledPort(self._context, at, self._line.server_key, keys, name, on_frames)
        self._ports.append(port)
        return port

    def _say(self, who: str, port: Port, frames: Frames) -> None:
        self.sent[who] = self.sent.get(who, 0) + 1
        port.send(frames)

    # ------------------------------------------------------------ what peers with a key say

    def _client_says(self) -> Frames:
        hello = pack(ClientHello(PROTOCOL, jdist.__version__, "fuzz", 1))
        while True:
            data = self._maker.payload(ClientMessage)
            with contextlib.suppress(ProtocolError):
                message = _clients(data)
                if isinstance(message, _ORDERS) or isinstance(getattr(message, "op", None), Invite):
                    continue
            return self._framed(data, hello)

    def _hello_agent(self) -> bytes:
        return pack(AgentHello(PROTOCOL, jdist.__version__, _FACTS))

    def _framed(self, payload: bytes, hello: bytes) -> Frames:
        """With a head that fits, or one that does not: another session, an old number, a kind that is none."""
        s = self._source
        match s.randrange(12):
            case 0:
                return [payload]
            case 1:
                return [s.randbytes(s.choice((0, 1, 25, 26))), payload]
            case 2:
                return [_HEAD.pack(MESSAGE, 1, 1, 0), payload, payload]
            case 3:
                return [b""] * s.choice((1, 2, 50))
            case 4:  # a hello that came already
                return [_HEAD.pack(MESSAGE, 1, 1, 0), hello]
            case 5:  # a session of its own, in which the payload comes first
                return [_HEAD.pack(MESSAGE, s.randrange(1 << 63), 1, 0), payload]
            case 6:
                return [
                    _HEAD.pack(s.randrange(256), s.choice((1, 2**64 - 1)), s.randrange(9), s.choice((0, 2**64 - 1))),
                    payload,
                ]
            case 7:  # AGAIN, BACK and UNKNOWN
                return [_HEAD.pack(s.randrange(2, 5), 1, 0, 0), b""]
            case _:
                return [_HEAD.pack(1, 1, 0, 0), payload]

    # ------------------------------------------------------------ strangers

    async def _stranger(self) -> None:
        c, s = self._connection, self._source
        if s.random() < 0.5:
            await self._write("stranger at the control port", c.control_port, self._greeting())
        else:
            ports = {"data port": c.data_port, "door": self._line.data_port}
            where = s.choice(sorted(ports))
            await self._write(f"stranger at the {where}", ports[where], s.choice((self._greeting, self._header))())

    def _greeting(self) -> bytes:
        """ZMTP's, with CURVE or without, as it is or spoiled, and something behind it."""
        s = self._source
        mechanism = s.choice((b"NULL", b"PLAIN", b"CURVE", b"\xff" * 20)).ljust(20, b"\0")
        greeting = b"\xff" + bytes(8) + b"\x7f" + bytes([s.choice((3, 3, 2, 0, 9)), s.randrange(2)]) + mechanism
        greeting = greeting.ljust(64, b"\0")
        hello = b"\x04" + bytes([200]) + b"\x05HELLO\x01\x00" + bytes(72) + s.randbytes(120)
        ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
        body = greeting + s.choice((b"", hello, ready, s.randbytes(300), b"\x02" + b"\xff" * 8))
        return body if s.random() < 0.4 else self._maker.spoiled(body)

    def _header(self) -> bytes:
        s = self._source
        verb = s.choice((b"PUT", b"GET", b"LIFE", b"PING", b"DELETE", b"control", "ü".encode()))
        name = s.choice((b"x", self._line.cluster.encode(), b"\xc3\xbc", s.randbytes(16).hex().encode(), b"../../etc"))
        line = b"JDIST1 " + verb + b" " + name + b"\n"
        return line if s.random() < 0.4 else self._maker.spoiled(line)

    async def _write(self, who: str, port: int, data: bytes) -> None:
        self.sent[who] = self.sent.get(who, 0) + 1
        loop = asyncio.get_running_loop()
        with socket.socket() as sock, contextlib.suppress(OSError, TimeoutError):
            sock.setblocking(False)
            async with asyncio.timeout(DEADLINE):
                await loop.sock_connect(sock, ("127.0.0.1", port))
                await loop.sock_sendall(sock, data)
                if self._source.random() < 0.3:
                    await asyncio.wait_for(loop.sock_recv(sock, 4096), 0.05)
