"""The controller's edge: a control socket, a data port, a clock; feeds :class:`State` and carries out what it says."""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from jdist.controller.model.model import (
    EdgeNotice,
    EndRequested,
    Event,
    Exit,
    Forget,
    FromAgent,
    FromClient,
    PeerGone,
    Send,
    Tick,
)
from jdist.controller.peers import PeerKeys, PeerStreams
from jdist.controller.state import State
from jdist.core.errors import ProtocolError
from jdist.core.messages.base import Ack, QueryFailed
from jdist.core.messages.membership import FormWorld, Invite, Invited, StartWorker, Welcome
from jdist.core.messages.protocol import AgentMessage, ClientMessage, RankQuery, RankReply, RankReplyBody
from jdist.core.messages.status import SetOrigin
from jdist.core.messages.values import DebugLog, Forward, ForwardedAt, GetDebugLog, Hold, Release
from jdist.wire import log
from jdist.wire.bulk.server import DataServer
from jdist.wire.transport.keys import LOOPBACK, Charter
from jdist.wire.transport.public_port import open_public_port
from jdist.wire.transport.sockets import KeyGate, bind_tcp, new_context
from jdist.wire.values.frames import Unpacker, pack
from jdist.wire.values.segments import shares_memory

_log = logging.getLogger("jdist.controller")

_SAY_AGAIN = 10.0
_LONGEST_NAME = 64  # Bytes of a peer's identity.
_ANSWERED = 2.0  # Seconds in which an agent answers that is alive although its liveness connection has ended.
_LOOK_AGAIN = 0.02
_LAST_WORDS = 1.0  # Seconds for the last messages to leave.

_GIVES_WORKERS = Welcome | StartWorker | FormWorld

_from_agent: Unpacker[Any] = Unpacker(AgentMessage)
_from_client: Unpacker[Any] = Unpacker(ClientMessage)


class Server:
    """Runs one cluster's controller on the running loop."""

    def __init__(self, charter: Charter, *, is_again: bool, on_charter: Callable[[], None]):
        """Listens at the charter's ports (0: any). Raises OSError if they are taken. ``on_charter``: it has changed."""
        settings, cluster = charter.settings, charter.cluster
        self._charter = charter
        self._on_charter = on_charter
        self._loop = asyncio.get_running_loop()
        self._zmq = new_context()
        self._gate = KeyGate(self._zmq, self._on_void_line)
        self._keys = PeerKeys(self._gate, charter, on_charter, self._agents)
        self._data = DataServer(cluster, self._on_life_end)
        self._public_port: socket.socket | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._zmq.term)
            undo.callback(self._gate.close)
            self._port = bind_tcp(self._zmq, LOOPBACK, charter.keys, self._gate, self._on_frames, charter.control_port)
            undo.callback(self._port.close)
            if settings.bind_host or charter.public_port:
                self._public_port = open_public_port(settings.bind_host or "*", charter.public_port)
                undo.callback(self._public_port.close)
            self._data.listen(LOOPBACK, charter.data_port)
            undo.pop_all()
        self._streams = PeerStreams(self._port.send, self._on_overrun)
        self._streams.on_answer = self._on_answer
        self._suspects: dict[str, str] = {}  # Agents that may be dead, with the liveness connections that have ended.
        if self._public_port is not None:
            self._data.listen_publicly(self._public_port, self._port.tcp_port)
        self._state = State(settings, cluster, charter.version, self._loop.time(), self._new_life)
        if is_again:
            self._state.take_over(charter.owners)
        self._said_void = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_arming = False
        self._over: asyncio.Future[str] = self._loop.create_future()
        self.feed(Tick())

    @property
    def charter(self) -> Charter:
        return msgspec.structs.replace(
            self._charter,
            control_port=self._port.tcp_port,
            data_port=self._data.port,
            public_port=self._public_port.getsockname()[1] if self._public_port is not None else 0,
            invitations=self._keys.invitations,
            agents=self._keys.agents,
        )

    def invite(self, *, is_remote: bool, seconds: float = 0.0) -> str:
        """A line with which agents join. Raises OSError when the public port cannot be opened."""
        if is_remote and self._public_port is None:
            self._public_port = open_public_port("*")
            self._data.listen_publicly(self._public_port, self._port.tcp_port)
        listening = None
        if self._public_port is not None and (is_remote or self._charter.settings.bind_host):
            listening = (self._charter.settings.bind_host or "*", int(self._public_port.getsockname()[1]))
        return self._keys.invite((self._port.tcp_port, self._data.port), listening, seconds).encode()

    async def run(self) -> str:
        """Serve until the cluster is over; why it is."""
        try:
            return await self._over
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._streams.flush()
            self._port.close(linger=_LAST_WORDS)
            self._gate.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * _LAST_WORDS):
                    await asyncio.to_thread(self._zmq.term)
            self._data.close()  # ends the liveness connections: the last messages, which say why, are out

    def end(self, reason: str) -> None:
        """Stop; before that, where sessions are saved by themselves, save for the last time."""
        grace = self._state.model.settings.leave_grace
        self._loop.call_later(grace, self.stop, reason)
        self.feed(EndRequested(reason))

    def stop(self, reason: str) -> None:
        self._state.begin_step(self._loop.time())
        for instruction in self._state.stop(reason):
            self._carry_out(instruction)
        self._arm_soon()

    def _new_life(self) -> str:
        name = secrets.token_hex(16)
        self._data.allow_liveness(name)
        return name

    def _on_life_end(self, name: str, is_dead: bool) -> None:
        peer = self._state.model.liveness_names.get(name, "")
        if is_dead and peer in self._agents():
            # It may have been ended by what lies between: then the agent is still connected, and answers.
            self._suspects[peer] = name
            self._streams.probe(peer)
            self._check_suspect(peer, name, self._loop.time() + _ANSWERED)
        else:
            self._end_life(name, is_dead=is_dead)

    def _end_life(self, name: str, *, is_dead: bool) -> None:
        self._data.forget_all(self._state.model.liveness_names.get(name, ""))
        self.feed(PeerGone(name, is_dead))

    def _check_suspect(self, peer: str, name: str, until: float) -> None:
        """Take an agent to be dead once there is no connection to it, or if it has not answered in time."""
        if self._suspects.get(peer) != name:
            return
        if self._streams.is_connected(peer) and self._loop.time() < until:
            self._loop.call_later(_LOOK_AGAIN, self._check_suspect, peer, name, until)
        else:
            del self._suspects[peer]
            self._end_life(name, is_dead=True)

    def _on_answer(self, peer: str) -> None:
        """An agent lives whose liveness connection has ended."""
        name = self._suspects.pop(peer, "")
        if name:
            self._end_life(name, is_dead=False)

    def _agents(self) -> set[str]:
        return {n.agent for n in self._state.model.world.nodes.values()}

    def _on_overrun(self, peer: str, why: str) -> None:
        """A peer takes nothing: to go on sending would fill this host's memory."""
        _log.warning("dropped %s, which confirms nothing of what it is sent: %s", peer, why)
        for name, owner in self._state.model.liveness_names.items():
            if owner == peer:
                self._loop.call_soon(self.feed, PeerGone(name))  # a step may be under way

    def _on_frames(self, frames: list[bytes]) -> None:
        """Raises ProtocolError for what the port is to drop."""
        if len(frames[0]) > _LONGEST_NAME or not frames[0].isascii():
            raise ProtocolError(f"it calls itself {frames[0][:40]!r}")
        peer = frames[0].decode()
        if peer.startswith("e-"):
            self._port.send([frames[0], pack(self._keys.enrol(frames[-1]))])
            return
        data = self._streams.receive(peer, frames[1:])
        if not data:
            return
        if peer.startswith("a-"):
            self.feed(*(FromAgent(peer, message) for message in _from_agent.each(data)))
        elif peer.startswith("c-"):
            for message in _from_client.each(data):
                if isinstance(message, RankQuery) and not message.ranks:
                    self._streams.send(peer, RankReply(message.request, -1, self._answer(peer, message)))
                else:
                    self.feed(FromClient(peer, message))

    def _on_void_line(self) -> None:
        """Report an agent that used a void join line; a flood of them is one notice."""
        if self._loop.time() - self._said_void > _SAY_AGAIN:
            self._said_void = self._loop.time()
            text = "a node was refused: its join line has expired or was revoked; invite it again"
            self.feed(EdgeNotice(text))

    def feed(self, *events: Event) -> None:
        """One step of the fold, for events that came together, and the timer for the next."""
        if self._over.done():
            return
        self._state.begin_step(self._loop.time())
        for event in events:
            with self._logging_faults(event):
                self._state.handle(event)
        with self._logging_faults(events):
            instructions = self._state.end_step()
            if any(isinstance(each, Send) and isinstance(each.message, _GIVES_WORKERS) for each in instructions):
                self._record_owners()
            for instruction in instructions:
                self._carry_out(instruction)
        self._arm_soon()

    def _record_owners(self) -> None:
        """Write down which agent has which workers, before it is told: no other may claim them after a restart."""
        owners = self._state.owners()
        if owners != self._charter.owners:
            self._charter = msgspec.structs.replace(self._charter, owners=owners)
            with self._logging_faults("the charter"):
                self._on_charter()

    @contextlib.contextmanager
    def _logging_faults(self, handled: object) -> Iterator[None]:
        """Log a fault of ours; what else the cluster's ranks hold must not be lost with it."""
        try:
            yield
        except Exception:
            _log.exception("could not handle %.200r; %s", handled, self._state.model.story)

    def _arm_soon(self) -> None:
        """Set the timer, once for all the messages that have come together."""
        if not self._is_arming:
            self._is_arming = True
            self._loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._is_arming = False
        if self._timer is not None:
            self._timer.cancel()
        when = None if self._over.done() else self._state.next_wakeup()
        if when is not None:
            delay = max(0.0, when - self._loop.time())
            self._timer = self._loop.call_later(delay, self.feed, Tick())

    def _carry_out(self, instruction: object) -> None:
        match instruction:
            case Send():
                self._streams.send(instruction.peer, instruction.message)
            case Forget():
                self._streams.forget(instruction.peer)
            case Exit() if not self._over.done():
                self._over.set_result(instruction.reason)

    def _answer(self, client: str, ask: RankQuery) -> RankReplyBody:
        """Answer a query about bytes that pass through this process, the charter, how to join, or the debug log."""
        if isinstance(ask.op, Forward | Hold) and self._data.is_full(client):
            return QueryFailed("this client has too many transfers under way")
        match ask.op:
            case GetDebugLog(lines):
                return DebugLog(log.newest(lines))
            case Forward(transfer, nbytes, probe):
                self._data.pass_on(transfer, nbytes, client)
                return ForwardedAt(self._data.near if shares_memory(probe) else "")
            case Hold(transfer, nbytes, probe, path) if path:
                if not self._data.offer(transfer, nbytes, probe, path, client):
                    return QueryFailed("another host")
            case Hold(transfer, nbytes):
                self._data.expect(transfer, nbytes, client)
            case Release(handle):
                self._data.forget(handle)
            case SetOrigin(origin):
                self._charter = msgspec.structs.replace(self._charter, origin=origin)
                self._on_charter()
            case Invite(is_remote, seconds, revokes):
                if revokes:
                    self._keys.revoke()
                try:
                    return Invited(self.invite(is_remote=is_remote, seconds=seconds))
                except OSError as e:
                    return QueryFailed(f"the controller cannot listen for other hosts: {e}")
            case _:
                return QueryFailed(f"the controller cannot answer {type(ask.op).__name__}")
        return Ack()
