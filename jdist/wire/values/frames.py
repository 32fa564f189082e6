"""Frames: a message as bytes and back, checked against the union of its direction."""

from typing import Any, Generic, TypeVar

import msgspec

from jdist.core.errors import ProtocolError
from jdist.core.messages.base import Message

MAX_MESSAGE = 64 * 1024 * 1024  # Bytes of one control message; larger things travel as data.

_encoder = msgspec.msgpack.Encoder()


def pack(message: Message) -> bytes:
    """The message's bytes."""
    return _encoder.encode(message)


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
