"""Making: messages that are well-formed and mean nothing, and bytes that are almost messages."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec import inspect

from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.membership import AgentHello
from jdist.core.messages.status import ClientHello
from jdist.wire.values.frames import pack

NUMBERS = (0, 1, 2, 3, 4, -1, 5, 17, 255, 65_536, 2**31, 2**53, 2**63 - 1, -(2**63))
WORDS = (
    *("", "r1", "look-1", "c1", "gloo", "env://", "value", "error", "lost", "stdout", "all"),
    *(
        "x" * 3000,
        "\x00",
        "\x1b[2J",
        "\udce4".encode("utf-8", "surrogateescape").decode("latin-1"),
        "<b>&amp;",
        "ü" * 40,
    ),
)
SIZES = (0, 1, 1, 2, 2, 3)


class Maker:
    """Draws from a seeded source; ``version`` is what hellos say, most of the time."""

    def __init__(self, source: random.Random, version: str):
        self._source = source
        self._version = version

    def message(self, union: Any) -> Message:
        """Any member of a union of messages."""
        kinds = union.__args__ if hasattr(union, "__args__") else (union,)
        made: Message = self._make(inspect.type_info(self._source.choice(kinds)), 0)
        if isinstance(made, AgentHello | ClientHello) and self._source.random() < 0.8:
            return msgspec.structs.replace(made, protocol=PROTOCOL, version=self._version)
        return made

    def _make(self, kind: Any, depth: int) -> Any:
        s = self._source
        match kind:
            case inspect.BoolType():
                return s.random() < 0.5
            case inspect.IntType():
                return s.choice(NUMBERS) if s.random() < 0.3 else s.randrange(6)
            case inspect.FloatType():
                return s.choice((0.0, 1.0, -1.0, 30.0, 1e300, float("inf"), float("nan")))
            case inspect.StrType():
                return s.choice(WORDS)
            case inspect.BytesType():
                return s.randbytes(s.choice((0, 1, 40)))
            case inspect.NoneType():
                return None
            case inspect.LiteralType(values=values):
                return s.choice(values)
            case inspect.UnionType(types=types):
                return self._make(s.choice(types), depth)
            case inspect.VarTupleType(item_type=item):
                return tuple(self._make(item, depth + 1) for _ in range(s.choice(SIZES)))
            case inspect.ListType(item_type=item):
                return [self._make(item, depth + 1) for _ in range(s.choice(SIZES))]
            case inspect.TupleType(item_types=items):
                return tuple(self._make(item, depth + 1) for item in items)
            case inspect.DictType(key_type=key, value_type=value):
                return {self._make(key, depth + 1): self._make(value, depth + 1) for _ in range(s.choice(SIZES))}
            case inspect.StructType(cls=cls, fields=fields):
                return cls(**{f.name: self._make(f.type, depth + 1) for f in fields})
            case inspect.AnyType():
                return s.choice(({}, [], 0, "x", None, {"a": [1, {"b": None}]}, 1.5))
        raise TypeError(f"no idea how to make {kind}")

    # ------------------------------------------------------------ bytes

    def spoiled(self, data: bytes) -> bytes:
        """The bytes with a few faults: flipped, cut, doubled, swapped, or with lengths that promise too much."""
        s = self._source
        out = bytearray(data)
        for _ in range(s.choice((1, 1, 2, 4))):
            at = s.randrange(len(out) + 1)
            match s.randrange(7):
                case 0 if out:
                    out[at % len(out)] ^= 1 << s.randrange(8)
                case 1:
                    del out[at:]
                case 2:
                    out[at:at] = s.randbytes(s.choice((1, 3, 30)))
                case 3:
                    out[at:at] = out[at : at + s.randrange(40)]
                case 4:
                    del out[at : at + s.randrange(1, 12)]
                case 5:  # msgpack: an array, a map, a string, bytes that go on for ever
                    out[at:at] = s.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6")) + b"\xff\xff\xff\xff"
                case _:  # nested more deeply than anybody reads
                    out[at:at] = b"\x91" * s.choice((10, 2000))
        return bytes(out)

    def payload(self, union: Any) -> bytes:
        """A message's bytes, as they should be or not."""
        data = pack(self.message(union))
        return data if self._source.random() < 0.3 else self.spoiled(data)
