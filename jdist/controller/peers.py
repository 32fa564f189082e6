"""Decide whose keys open the control port, and keep a stream to each agent and client.

Invitations are made, expire and are revoked here. Clients hold the key of the connection file and are named c-…. Agents
enrol as e-… with the key of an invitation, and then use a key of their own and the name that is derived from the key. A
key that is used under another name is ignored.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jdist.controller.backlog import Backlog
from jdist.core import __version__
from jdist.core.errors import Overrun, ProtocolError
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.membership import Enrol, Enrolled, Rejected
from jdist.core.messages.runs import RankDone
from jdist.core.settings import END_DELAY
from jdist.wire.transport.invitations import JoinLine
from jdist.wire.transport.keys import LOOPBACK, Charter, Invitation, agent_name
from jdist.wire.transport.public_port import own_addresses
from jdist.wire.transport.sockets import Frames, KeyGate
from jdist.wire.transport.streams import AGAIN, BACK, KEPT_BYTES, MESSAGE, Outbox, Stream, read_head, unknown
from jdist.wire.values.frames import Unpacker, pack_report

_MOST_AGENTS = 4096  # Keys of agents that are remembered; more only come if agents enrol in vain.
_REMEMBERED = 86400.0  # Seconds for which who comes with a line that has expired is told so.
_KEY_LENGTH = 40  # Characters of a public key.
_read_enrol: Unpacker[Enrol] = Unpacker(Enrol)


class PeerKeys:
    """The lists behind a :class:`KeyGate`. ``on_change`` is called when the charter has to be written again.

    ``here`` gives the names of the agents that have a place in the world.
    """

    def __init__(self, gate: KeyGate, charter: Charter, on_change: Callable[[], None], here: Callable[[], set[str]]):
        self.invitations = charter.invitations
        self.agents = charter.agents
        self._gate = gate
        self._charter = charter
        self._on_change = on_change
        self._here = here
        gate.allow((charter.for_clients.public,), called="c-")
        for key in self.agents:
            gate.allow((key,), called=agent_name(key))
        for invitation in self.invitations:
            gate.allow((invitation.key.public,), called="e-", until=invitation.expires)

    def invite(self, ports: tuple[int, int], listening: tuple[str, int] | None, seconds: float) -> JoinLine:
        """A new line with its own key. ``listening``: host and number of the public port; None for this host only."""
        since = time.time() - _REMEMBERED
        self._gate.forget(i.key.public for i in self.invitations if i.expires < since)
        remembered = tuple(i for i in self.invitations if i.expires >= since)
        invitation = Invitation.make(seconds or self._charter.settings.invitation)
        self._gate.allow((invitation.key.public,), called="e-", until=invitation.expires)
        self.invitations = (*remembered, invitation)
        self._on_change()
        hosts: tuple[str, ...] = (LOOPBACK,)
        if listening is not None:
            ports = (listening[1], listening[1])
            hosts = own_addresses() if listening[0] == "*" else (listening[0],)
        return JoinLine(self._charter.cluster, hosts, *ports, self._charter.keys.public, invitation.key)

    def revoke(self) -> None:
        """Make every join line printed so far void, and agents that enrolled with one unless they have a place."""
        self._gate.forbid(i.key.public for i in self.invitations)
        self.invitations = ()
        self._keep_agents()
        self._on_change()

    def _keep_agents(self, newest: int = 0) -> None:
        """Forget the keys of all agents but those that have a place, and the newest."""
        here = self._here()
        kept = {k for k in self.agents if agent_name(k) in here}.union(self.agents[len(self.agents) - newest :])
        self._gate.forget(k for k in self.agents if k not in kept)
        self.agents = tuple(k for k in self.agents if k in kept)

    def enrol(self, data: bytes) -> Message:
        """Accept the key of an agent that enrols, or reject it with the reason."""
        try:
            request: Enrol = _read_enrol(data)
        except ProtocolError:
            return Rejected(f"it speaks another protocol than jdist {__version__}, which the controller has")
        if (request.protocol, request.version) != (PROTOCOL, self._charter.version):
            theirs = f"it has jdist {request.version} (protocol {request.protocol})"
            return Rejected(f"{theirs}, the controller {self._charter.version} ({PROTOCOL})")
        others = {self._charter.for_clients.public, *(i.key.public for i in self.invitations)}
        if len(request.key) != _KEY_LENGTH or request.key in others:
            return Rejected("it has no key of its own")
        if request.key in self.agents:
            return Enrolled()
        if len(self.agents) >= _MOST_AGENTS:
            self._keep_agents(newest=_MOST_AGENTS // 2)
        self._gate.allow((request.key,), called=agent_name(request.key))
        self.agents = (*self.agents, request.key)
        self._on_change()
        return Enrolled()


_MOST = 8192  # Peers at a time.
_WINDOW = 512 << 10  # Bytes that a client has not acknowledged, from which on what comes next waits in its backlog.


class _Peer(NamedTuple):
    stream: Stream
    outbox: Outbox
    backlog: Backlog

    @property
    def is_behind(self) -> bool:
        return self.stream.kept_bytes + self.outbox.nbytes > _WINDOW


class PeerStreams:
    """Numbers what goes down, and takes what comes up once and in order; ``send`` puts frames on the control port.

    A peer that takes nothing of what it is sent is given up: ``on_overrun`` is called with its name and the reason.
    """

    def __init__(self, send: Callable[[Frames], bool], on_overrun: Callable[[str, str], object]):
        self._send_frames = send
        self._on_overrun = on_overrun
        self.on_answer: Callable[[str], object] = lambda _peer: None  # Called when a peer has answered `probe`.
        self._peers: dict[str, _Peer] = {}

    def receive(self, peer: str, frames: Frames) -> bytes:
        """Take what a peer sent, without its identity; a payload of messages, or b"". Raises ProtocolError."""
        head = read_head(frames)
        known = self._peers.get(peer)
        stream = None if known is None else known.stream
        if stream is None or head.session > stream.session:
            if head.kind != MESSAGE or head.number != 1:
                self._put(peer, unknown(head.session))
                return b""
            if stream is None and len(self._peers) >= _MOST:
                raise ProtocolError(f"there are {_MOST} peers already")
            stream = Stream(head.session, KEPT_BYTES)
            self._peers[peer] = _Peer(stream, Outbox(partial(self._put_message, peer, stream)), Backlog(KEPT_BYTES))
        elif head.session < stream.session:
            return b""  # the peer has left that one
        try:
            payload, answers = stream.receive(head, frames[1])
        except Overrun as e:
            self._give_up(peer, stream, e)
            return b""
        for answer in answers:
            self._put(peer, answer)
        if (known := self._peers[peer]).backlog and not known.is_behind:
            self._release(known)
        if head.kind == BACK:
            self.on_answer(peer)
        return payload

    def probe(self, peer: str) -> None:
        """Have the peer answer, if it lives."""
        if peer in self._peers:
            self._put(peer, self._peers[peer].stream.note(kind=AGAIN))

    def is_connected(self, peer: str) -> bool:
        """Whether there is a connection to the peer, as far as is known now."""
        return peer in self._peers and self._put(peer, self._peers[peer].stream.note())

    def send(self, peer: str, message: Message) -> None:
        """Send, with what else the peer is sent in this turn; if the connection is broken, again when it is back."""
        known = self._peers.get(peer)
        if known is None:
            return
        if peer.startswith("c-") and (known.backlog or known.is_behind):
            try:
                known.backlog.add(message)
            except Overrun as e:
                self._give_up(peer, known.stream, e)
        elif data := pack_report(message):
            known.outbox.add(data, within=END_DELAY if isinstance(message, RankDone) else 0.0)

    def _release(self, peer: _Peer) -> None:
        for data in peer.backlog.take():
            peer.outbox.add(data)

    def flush(self) -> None:
        """Send what is still gathered."""
        for peer in list(self._peers.values()):
            self._release(peer)
            peer.outbox.flush()

    def _put_message(self, peer: str, stream: Stream, payload: bytes) -> None:
        try:
            frames = stream.message(payload)
        except Overrun as e:
            self._give_up(peer, stream, e)
        else:
            self._put(peer, frames)

    def _give_up(self, peer: str, stream: Stream, why: Overrun) -> None:
        self._peers.pop(peer, None)
        self._put(peer, unknown(stream.session))
        self._on_overrun(peer, str(why))

    def forget(self, peer: str) -> None:
        """The peer is given up: if it speaks again it has to say hello first."""
        known = self._peers.pop(peer, None)
        if known is not None:
            self._release(known)
            known.outbox.flush()  # such as why

    def _put(self, peer: str, frames: Frames) -> bool:
        return self._send_frames([peer.encode(), *frames])
