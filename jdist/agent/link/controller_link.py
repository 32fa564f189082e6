"""The uplink: the agent's end of its stream to the controller, over whatever connections that takes.

States, and what moves it on::

    there ──liveness connection ended | disconnected | silent──► missed ──anything is heard──► there
                                                        └──the grace is over──► given up (the agent ends)

The liveness connection tells a dead controller (its end is closed at once) from a broken network (it is not).
Either way zmq dials on: a network may heal, and a controller may be started again at the same address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jdist.core.messages.base import Message
from jdist.core.messages.membership import Heartbeat, LivenessLost
from jdist.core.settings import BEAT
from jdist.wire.transport.invitations import Endpoint
from jdist.wire.transport.keys import agent_name
from jdist.wire.transport.liveness import LivenessConnection, dial_liveness
from jdist.wire.transport.sockets import ConnectionMonitor, Frames, Port, dial_tcp
from jdist.wire.transport.streams import AGAIN, UNKNOWN, Stream, read_head
from jdist.wire.values.frames import pack

_JOIN_GRACE = 10.0
"""Seconds without the controller before it has given this agent a place, and with it a grace of the cluster's own."""
_SILENCE = 5 * BEAT
"""Without a word from the controller, which answers every beat, until it counts as missed."""


class Uplink:
    """Dials the controller by ``way``. ``on_message`` gets each message's bytes once and in order.

    ``hello`` makes the first message of a stream: at the start, and when the controller does not know this agent (any
    more). ``on_given_up`` is called once, with the reason.
    """

    def __init__(
        self,
        context: Any,
        way: Endpoint,
        hello: Callable[[], Message],
        on_message: Callable[[bytes], None],
        on_given_up: Callable[[str], None],
    ):
        self.grace = _JOIN_GRACE
        self._way = way
        self._hello = hello
        self._on_message = on_message
        self._on_given_up = on_given_up
        self._loop = asyncio.get_running_loop()
        self._stream = Stream(0)
        self._last_heard = self._loop.time()
        self._giving_up: asyncio.TimerHandle | None = None
        self._liveness: LivenessConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        address = (way.host, way.control_port)
        socket = dial_tcp(context, address, way.server_key, way.key, agent_name(way.key.public), self._watch_connection)
        self._port = Port(socket, self._on_frames)
        self._miss()

    def greet(self) -> None:
        """Begin a stream with a hello; what an earlier one still had to say is void with it."""
        self._stream = Stream(self._stream.session + 1)
        self.send(self._hello())

    def send(self, message: Message) -> None:
        """Send; if the connection is broken, again when it is back."""
        self._port.send(self._stream.message(pack(message)))

    def beat(self) -> None:
        """Say that this agent lives; once a second."""
        self._port.send(self._stream.note(pack(Heartbeat())))
        if self._loop.time() - self._last_heard > _SILENCE:
            self._miss()

    def _on_frames(self, frames: Frames) -> None:
        head = read_head(frames)
        self._heard()
        if head.session != self._stream.session:
            return
        if head.kind == UNKNOWN:
            self.greet()
            return
        payload, answers = self._stream.hear(head, frames[1])
        for answer in answers:
            self._port.send(answer)
        if payload:
            self._on_message(payload)

    # ------------------------------------------------------------ is it there?

    def _watch_connection(self, socket: Any) -> None:
        self._watch = ConnectionMonitor(socket, self._connection_changed)

    def _connection_changed(self, is_connected: bool) -> None:
        if not is_connected:
            self._miss()
        elif self._stream.session:
            self._port.send(self._stream.note(kind=AGAIN))

    def _heard(self) -> None:
        self._last_heard = self._loop.time()
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _miss(self) -> None:
        """Without the controller, end after the grace: no worker outlives its cluster, no agent waits for ever."""
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(self.grace, self._give_up, self.grace)

    def _give_up(self, grace: float) -> None:
        at = f"the controller at {self._way.host}:{self._way.control_port}"
        self._on_given_up(f"{at} has not been there for {grace:.0f} s")

    # ------------------------------------------------------------ the liveness connection

    def dial_liveness(self, name: str) -> None:
        """Dial a liveness connection of this name in place of the one that is there, if any."""
        if self._dialling is not None:
            self._dialling.cancel()
        if self._liveness is not None:
            self._liveness.close()
        self._dialling = self._loop.create_task(self._dial_liveness(name))

    async def _dial_liveness(self, name: str) -> None:
        try:
            self._liveness = await dial_liveness((self._way.host, self._way.data_port), name, self._liveness_ended)
        except OSError:
            await asyncio.sleep(BEAT)  # the network is cut: no use in asking for the next one at once
            self.send(LivenessLost())

    def _liveness_ended(self, is_dead: bool) -> None:
        """The controller's process is gone, whatever is still underway from it; or the connection broke."""
        if is_dead:
            self._miss()
        else:
            self.send(LivenessLost())

    def close(self, linger: float) -> None:
        """Messages already queued get ``linger`` seconds to leave. The liveness connection ends with the process."""
        if self._giving_up is not None:
            self._giving_up.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
        self._watch.close()
        self._port.close(linger)
