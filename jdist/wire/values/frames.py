"""Encode a message as bytes, and decode it against the union of its direction.

A payload is a message, which is a msgpack map, or an array of several that travel together. The sender of a message
checks whether the other end accepts it, since only the sender can say what could not be sent. A request is refused as a
whole. In a report, for which a user may wait, whatever cannot be sent is replaced: strings that are no Unicode or too
long, and numbers that are too large. (Python's strings may contain lone surrogates, such as those that stand for the
bytes of a file name that is no UTF-8.)
"""

import logging
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from jdist.core.errors import ProtocolError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.protocol import instead_of

_LEAST, _MOST = -(2**63), 2**64 - 1


def printable(text: str) -> str:
    r"""``text`` with an escape (``\udcff``) for each lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, longest: int, kept: int = 20_000) -> str:
    """``text`` if it has at most ``longest`` characters, else the ``kept`` at each of its ends."""
    if len(text) <= longest:
        return text
    return f"{text[:kept]}\n… {len(text) - 2 * kept:,} characters left out …\n{text[-kept:]}"


def encodable(value: Any) -> Any:
    """Dicts, lists and tuples with printable strings, and floats in place of integers of more than 64 bits."""
    match value:
        case str():
            return printable(value)
        case int() if not _LEAST <= value <= _MOST:
            try:
                return float(value)
            except OverflowError:
                return str(value)
        case dict():
            return {encodable(key): encodable(each) for key, each in value.items()}
        case list() | tuple():
            return [encodable(each) for each in value]
    return value


MAX_MESSAGE = 64 * 1024 * 1024  # Bytes of one control message; larger things travel as data.
MAX_REQUEST = MAX_MESSAGE - (1 << 20)  # Of one that is made anew, with more in it, by those who pass it on.

_log = logging.getLogger("jdist.wire")

_encoder = msgspec.msgpack.Encoder()
_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ARRAYS = frozenset(bytes([first]) for first in (*range(0x90, 0xA0), 0xDC, 0xDD))  # A msgpack array begins with one.


def pack(message: Message) -> bytes:
    """The bytes of a message. Raises UsageError if it is too large, or has what a message cannot carry."""
    return _encode(message, MAX_REQUEST)


def pack_report(message: Message) -> bytes:
    """The bytes of a message, with escapes and floats for what it cannot carry; b"" if nothing can be sent.

    In place of what is too large, whoever waits for it is told so (see `instead_of`).
    """
    try:
        return _encode(message, MAX_MESSAGE)
    except UsageError:
        pass
    try:
        return _encode(encodable(msgspec.to_builtins(message, builtin_types=(bytes,))), MAX_MESSAGE)
    except (UsageError, RecursionError) as e:
        name, instead = type(message).__name__, instead_of(message, str(e))
        _log.warning("a %s was not sent: %s", name, e)
    return b"" if instead is None else _encoder.encode(instead)


def _encode(value: object, limit: int) -> bytes:
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError as e:
        at = str(e.object)[max(0, e.start - 20) : e.start + 20]
        raise UsageError(f"text that is not valid Unicode cannot be sent: {at!r}") from None
    except (OverflowError, RecursionError) as e:
        raise UsageError(f"a message cannot be sent: {e}") from None
    if len(data) > limit:
        raise UsageError(f"a message of {len(data):,} bytes cannot be sent: the limit is {limit:,}")
    return data


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
