"""Deliver messages completely and in order over any number of connections, and batch those of one loop iteration. Pure.

zmq reconnects by itself when a connection breaks, but silently loses the messages that were in flight. So each end
numbers its messages and keeps each one until the other end has acknowledged it::

    open ──the connection breaks──► (zmq dials) ──connected again: AGAIN──► resent from what is missing ──► open
     └────UNKNOWN: the other end has no such stream (another controller, or it dropped this peer)──► a new one

- MESSAGE  has a number. It is accepted if it is the next one; a duplicate, or one that is too early, is ignored.
- NOTE     has no number and is not kept: a heartbeat, or an acknowledgement alone.
- AGAIN    the dialler has reconnected: resend what I have not acknowledged, and answer with BACK.
- BACK     the answer: the dialler resends what it does not acknowledge.
- UNKNOWN  there is no stream of that session here. Its dialler begins a new one, whose first message is a hello.

Only the dialler begins sessions and sends AGAIN; every frame carries the session, its number and an acknowledgement.

The network layer and the receiver pay far more for a message than for its bytes, and many messages come at once: the
ends of a node's ranks, or of a thousand ranks on their way to a client. The outbox therefore collects the messages for
one peer and flushes them as one payload on the next loop iteration.
"""

import asyncio
import math
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from jdist.core.errors import Overrun, ProtocolError
from jdist.wire.values.frames import join

MESSAGE, NOTE, AGAIN, BACK, UNKNOWN = range(5)

_layout = struct.Struct(">BQQQ")
_ACK_MESSAGES = 64
_ACK_BYTES = 256 << 10  # Bytes after which to acknowledge at once; less is acknowledged by the next heartbeat.
KEPT_BYTES = 256 << 20  # Bytes that a controller keeps for a peer that acknowledges nothing, before it drops the peer.

Frames = list[bytes]


class Head(NamedTuple):
    """The first frame of every message."""

    kind: int
    session: int
    number: int  # 1, 2, … for a MESSAGE; 0 for anything else.
    acknowledged: int  # The number of the last message that the sender has accepted.


def read_head(frames: Frames) -> Head:
    """The head of a message of two frames. Raises ProtocolError."""
    if len(frames) != 2 or len(frames[0]) != _layout.size:
        raise ProtocolError("a message without the head of a stream")
    head = Head(*_layout.unpack(frames[0]))
    if head.kind > UNKNOWN:
        raise ProtocolError(f"a message of kind {head.kind}, which is none")
    return head


def unknown(session: int) -> Frames:
    """The answer to a dialler whose stream does not exist here."""
    return [_layout.pack(UNKNOWN, session, 0, 0), b""]


class Stream:
    """One end of a session."""

    def __init__(self, session: int, limit: float = math.inf):
        """``limit``: bytes that are kept until they are acknowledged."""
        self.session = session
        self._limit = limit
        self._sent = 0
        self._accepted = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._resent_bytes = 0  # Bytes that were resent, less those acknowledged since.
        self._owed_messages = 0
        self._owed_bytes = 0

    def message(self, payload: bytes) -> Frames:
        """The next message, kept until it is acknowledged. Raises Overrun when too much is kept."""
        self._sent += 1
        self._kept.append((self._sent, payload))
        self._kept_bytes += len(payload)
        if self._kept_bytes > self._limit:
            raise Overrun(f"{self._kept_bytes >> 20} MiB are not acknowledged")
        return self._frames(MESSAGE, self._sent, payload)

    def note(self, payload: bytes = b"", kind: int = NOTE) -> Frames:
        """A message that may be lost."""
        return self._frames(kind, 0, payload)

    def _frames(self, kind: int, number: int, payload: bytes) -> Frames:
        self._owed_messages = self._owed_bytes = 0
        return [_layout.pack(kind, self.session, number, self._accepted), payload]

    def receive(self, head: Head, payload: bytes) -> tuple[bytes, list[Frames]]:
        """Handle a frame: the payload, if it is accepted (else b""), and what to send in answer.

        Raises ProtocolError when what was never sent is acknowledged, Overrun when too much must be resent.
        """
        if head.acknowledged > self._sent:
            raise ProtocolError(f"it acknowledges message {head.acknowledged} of {self._sent}")
        while self._kept and self._kept[0][0] <= head.acknowledged:
            freed = len(self._kept.popleft()[1])
            self._kept_bytes -= freed
            self._resent_bytes = max(0, self._resent_bytes - freed)
        if head.kind == MESSAGE:
            return self._accept(head.number, payload)
        answers = []
        if head.kind in (AGAIN, BACK):
            self._resent_bytes += self._kept_bytes
            if self._resent_bytes > 4 * self._limit:
                raise Overrun(f"{self._resent_bytes >> 20} MiB were resent")
            answers = [self._frames(MESSAGE, number, kept) for number, kept in self._kept]
        if head.kind == AGAIN:
            answers.append(self.note(kind=BACK))
        elif head.kind == NOTE and payload:
            answers.append(self.note())  # a heartbeat is answered: the other end knows that it is received
        return payload if head.kind == NOTE else b"", answers

    def _accept(self, number: int, payload: bytes) -> tuple[bytes, list[Frames]]:
        if number != self._accepted + 1:
            return b"", []
        self._accepted = number
        self._owed_messages += 1
        self._owed_bytes += len(payload)
        is_due = self._owed_messages >= _ACK_MESSAGES or self._owed_bytes >= _ACK_BYTES
        return payload, [self.note()] if is_due else []

    @property
    def kept(self) -> int:
        """The number of unacknowledged messages."""
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Their bytes."""
        return self._kept_bytes


_MOST_BYTES = 1 << 20  # Bytes that are gathered; a larger message travels alone.


class Outbox:
    """Gathers encoded messages; ``send`` is called with each payload."""

    def __init__(self, send: Callable[[bytes], object]):
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._nbytes = 0
        self._due: asyncio.Handle | None = None

    def add(self, data: bytes, *, within: float = 0.0) -> None:
        """Send a message with the others of this turn, or of the next ``within`` seconds, in order."""
        if self._nbytes + len(data) > _MOST_BYTES:
            self.flush()
        if within and self._due is None:
            self._due = self._loop.call_later(within, self.flush)
        elif not within and (self._due is None or isinstance(self._due, asyncio.TimerHandle)):
            self._cancel()
            self._due = self._loop.call_soon(self.flush)
        self._waiting.append(data)
        self._nbytes += len(data)

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def flush(self) -> None:
        """Send what has been gathered, now."""
        waiting = self._waiting
        self.clear()
        if waiting:
            self._send(join(waiting))

    def clear(self) -> None:
        """Forget what has been gathered: it is void."""
        self._cancel()
        self._waiting, self._nbytes = [], 0

    def _cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
