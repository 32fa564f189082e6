"""Downlinks: the controller's ends of its peers' streams, agents' and clients'."""

from collections.abc import Callable

from jdist.core.errors import Overrun, ProtocolError
from jdist.core.messages.base import Message
from jdist.wire.transport.sockets import Frames
from jdist.wire.transport.streams import KEPT_BYTES, MESSAGE, Stream, read_head, unknown
from jdist.wire.values.frames import pack

_MOST = 8192  # Peers at a time.


class PeerStreams:
    """Numbers what goes down, and takes what comes up once and in order; ``send`` puts frames on the control port.

    A peer that takes nothing of what it is sent is given up: ``on_overrun`` is called with its name and the reason.
    """

    def __init__(self, send: Callable[[Frames], object], on_overrun: Callable[[str, str], object]):
        self._send_frames = send
        self._on_overrun = on_overrun
        self._streams: dict[str, Stream] = {}

    def receive(self, peer: str, frames: Frames) -> bytes:
        """Take what a peer sent, without its identity; a message's bytes, or b"". Raises ProtocolError."""
        head = read_head(frames)
        stream = self._streams.get(peer)
        if stream is None or head.session > stream.session:
            if head.kind != MESSAGE or head.number != 1:
                self._put(peer, unknown(head.session))
                return b""
            if stream is None and len(self._streams) >= _MOST:
                raise ProtocolError(f"there are {_MOST} peers already")
            stream = self._streams[peer] = Stream(head.session, KEPT_BYTES)
        elif head.session < stream.session:
            return b""  # the peer has left that one
        try:
            payload, answers = stream.receive(head, frames[1])
        except Overrun as e:
            self._give_up(peer, stream, e)
            return b""
        for answer in answers:
            self._put(peer, answer)
        return payload

    def send(self, peer: str, message: Message) -> None:
        """Send; if the connection is broken, again when it is back."""
        stream = self._streams.get(peer)
        if stream is None:
            return
        try:
            frames = stream.message(pack(message))
        except Overrun as e:
            self._give_up(peer, stream, e)
        else:
            self._put(peer, frames)

    def _give_up(self, peer: str, stream: Stream, why: Overrun) -> None:
        self.forget(peer)
        self._put(peer, unknown(stream.session))
        self._on_overrun(peer, str(why))

    def forget(self, peer: str) -> None:
        """The peer is given up: if it speaks again it has to say hello first."""
        self._streams.pop(peer, None)

    def _put(self, peer: str, frames: Frames) -> None:
        self._send_frames([peer.encode(), *frames])
