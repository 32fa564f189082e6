"""Streams: what two processes say to each other, whole and in order, over any number of connections. Pure.

zmq dials again by itself when a connection breaks, but what was on its way is lost then, at either end and without a
word. So either end numbers its messages and keeps each until the other has said that it has it::

    open ──the connection breaks──► (zmq dials) ──connected again: AGAIN──► resent from what is missing ──► open
     └────UNKNOWN: the other end has no such stream (another controller, or this peer was given up)──► a new one

- MESSAGE  has a number. It counts if it is the next one; one that has come already, or too early, does not.
- NOTE     has none and is not kept: a beat, and what the sender has taken so far.
- AGAIN    the dialler is connected again: send what comes after what I have taken, and say BACK what you have.
- BACK     the answer: the dialler sends again what comes after that.
- UNKNOWN  there is no stream of that session here. Its dialler begins a new one, whose first message is a hello.

Only the dialler begins sessions and sends AGAIN; every frame carries the session, its number and what was taken.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import NamedTuple

from jdist.core.errors import Overrun, ProtocolError

MESSAGE, NOTE, AGAIN, BACK, UNKNOWN = range(5)

_layout = struct.Struct(">BQQQ")
_OWED_MESSAGES = 64
_OWED_BYTES = 1 << 20
"""What may arrive before it is confirmed at once; less than that is confirmed by the next beat."""
KEPT_BYTES = 256 << 20
"""What a controller keeps for a peer that does not take it, before the peer is given up."""

Frames = list[bytes]


class Head(NamedTuple):
    """What stands before every payload."""

    kind: int
    session: int
    number: int
    """1, 2, … of a MESSAGE; 0 of anything else."""
    taken: int
    """The last number that the sender has taken."""


def read_head(frames: Frames) -> Head:
    """Of a message of two frames, head and payload. Raises ProtocolError."""
    if len(frames) != 2 or len(frames[0]) != _layout.size:
        raise ProtocolError("a message without the head of a stream")
    head = Head(*_layout.unpack(frames[0]))
    if head.kind > UNKNOWN:
        raise ProtocolError(f"a message of kind {head.kind}, which is none")
    return head


def unknown(session: int) -> Frames:
    """To a dialler whose stream is not there."""
    return [_layout.pack(UNKNOWN, session, 0, 0), b""]


class Stream:
    """One end of a session."""

    def __init__(self, session: int, limit: float = math.inf):
        """``limit``: bytes that are kept for the other end."""
        self.session = session
        self._limit = limit
        self._sent = 0
        self._taken = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._again_bytes = 0
        """Sent again, less what has been taken since."""
        self._owed_messages = 0
        self._owed_bytes = 0

    def message(self, payload: bytes) -> Frames:
        """The next message; it is kept until the other end has it. Raises Overrun when that is too much."""
        self._sent += 1
        self._kept.append((self._sent, payload))
        self._kept_bytes += len(payload)
        if self._kept_bytes > self._limit:
            raise Overrun(f"{self._kept_bytes >> 20} MiB wait for it")
        return self._frames(MESSAGE, self._sent, payload)

    def note(self, payload: bytes = b"", kind: int = NOTE) -> Frames:
        """A message that may be lost."""
        return self._frames(kind, 0, payload)

    def _frames(self, kind: int, number: int, payload: bytes) -> Frames:
        self._owed_messages = self._owed_bytes = 0
        return [_layout.pack(kind, self.session, number, self._taken), payload]

    def hear(self, head: Head, payload: bytes) -> tuple[bytes, list[Frames]]:
        """What arrived: a payload that counts (else b""), and what is to be sent in answer.

        Raises ProtocolError when the other end has taken what was never sent, Overrun when it asks for too much again.
        """
        if head.taken > self._sent:
            raise ProtocolError(f"it has taken message {head.taken} of {self._sent}")
        while self._kept and self._kept[0][0] <= head.taken:
            freed = len(self._kept.popleft()[1])
            self._kept_bytes -= freed
            self._again_bytes = max(0, self._again_bytes - freed)
        if head.kind == MESSAGE:
            return self._take(head.number, payload)
        answers = []
        if head.kind in (AGAIN, BACK):
            self._again_bytes += self._kept_bytes
            if self._again_bytes > 4 * self._limit:
                raise Overrun(f"{self._again_bytes >> 20} MiB were sent to it again")
            answers = [self._frames(MESSAGE, number, kept) for number, kept in self._kept]
        if head.kind == AGAIN:
            answers.append(self.note(kind=BACK))
        elif head.kind == NOTE and payload:
            answers.append(self.note())  # a beat is answered: the other end knows that it is heard
        return payload if head.kind == NOTE else b"", answers

    def _take(self, number: int, payload: bytes) -> tuple[bytes, list[Frames]]:
        if number != self._taken + 1:
            return b"", []
        self._taken = number
        self._owed_messages += 1
        self._owed_bytes += len(payload)
        is_due = self._owed_messages >= _OWED_MESSAGES or self._owed_bytes >= _OWED_BYTES
        return payload, [self.note()] if is_due else []

    @property
    def kept(self) -> int:
        """How many messages the other end is not known to have."""
        return len(self._kept)
