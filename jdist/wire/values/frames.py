"""Frames: a message as bytes and back, checked against the union of its direction.

A payload is a message, which is a msgpack map, or an array of several that travel together.
"""

import logging
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from jdist.core.errors import ProtocolError
from jdist.core.messages.base import Message

MAX_MESSAGE = 64 * 1024 * 1024  # Bytes of one control message; larger things travel as data.

_log = logging.getLogger("jdist.wire")

_encoder = msgspec.msgpack.Encoder()
_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ARRAYS = frozenset(bytes([first]) for first in (*range(0x90, 0xA0), 0xDC, 0xDD))  # A msgpack array begins with one.


def pack(message: Message) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


def join(messages: Sequence[bytes]) -> bytes:
    """One payload of encoded messages."""
    return messages[0] if len(messages) == 1 else _encoder.encode([msgspec.Raw(data) for data in messages])


def split(payload: bytes) -> list[bytes]:
    """The encoded messages of a payload. Raises ProtocolError."""
    if payload[:1] not in _ARRAYS:
        return [payload]
    try:
        return [bytes(part) for part in _parts.decode(payload)]
    except (msgspec.DecodeError, RecursionError) as e:
        raise ProtocolError(f"not an array of messages: {e}") from None


M = TypeVar("M")


class Unpacker(Generic[M]):
    """Decoder for one direction's union. Raises ProtocolError on anything that is no member of it."""

    def __init__(self, union: Any):
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)

    def __call__(self, data: bytes) -> M:
        if len(data) > MAX_MESSAGE:
            raise ProtocolError(f"a message of {len(data)} bytes; the limit is {MAX_MESSAGE}")
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise ProtocolError(f"not a message of this direction: {e}") from None

    def each(self, payload: bytes) -> list[M]:
        """The messages of a payload. One that is no member is left out and logged; the others count."""
        messages = []
        for data in split(payload):
            try:
                messages.append(self(data))
            except ProtocolError as e:
                _log.warning("dropped a message: %s", e)
        return messages
