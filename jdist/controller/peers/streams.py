"""Downlinks: the controller's ends of its peers' streams, agents' and clients'."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jdist.core.errors import Overrun, ProtocolError
from jdist.core.messages.base import Message
from jdist.wire.transport.outbox import Outbox
from jdist.wire.transport.sockets import Frames
from jdist.wire.transport.streams import AGAIN, BACK, KEPT_BYTES, MESSAGE, Stream, read_head, unknown
from jdist.wire.values.frames import pack_report

_MOST = 8192  # Peers at a time.


class _Peer(NamedTuple):
    stream: Stream
    outbox: Outbox


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
            self._peers[peer] = _Peer(stream, Outbox(partial(self._put_message, peer, stream)))
        elif head.session < stream.session:
            return b""  # the peer has left that one
        try:
            payload, answers = stream.receive(head, frames[1])
        except Overrun as e:
            self._give_up(peer, stream, e)
            return b""
        for answer in answers:
            self._put(peer, answer)
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
        if known is not None and (data := pack_report(message)):
            known.outbox.add(data)

    def flush(self) -> None:
        """Send what is still gathered."""
        for peer in list(self._peers.values()):
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
            known.outbox.flush()  # such as why

    def _put(self, peer: str, frames: Frames) -> bool:
        return self._send_frames([peer.encode(), *frames])
