"""Invitations: what an agent is given so that it finds its controller and is let in, and what it then has of its own.

A join line is for one cluster, expires, and can be revoked. Whoever holds it may enrol, once or several times: the
agent makes a pair of keys, the controller lets that pair in from then on, and the line is needed no more. So a line
that has expired cuts off no node, and one that somebody saw can be made void.
"""

from __future__ import annotations

import base64
import contextlib
import stat
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.wire.transport.keys import KeyPair

_PREFIX = "jdist1"
JOINED = "enrolled with the controller at"
"""What an agent says of itself once it has enrolled, for whoever started it."""
REFUSED = "refused by the controller:"
"""What it says before the reason if it was not let in, or given no place."""
_CHECKSUM = 4


class Endpoint(Struct, frozen=True):
    """How an agent reaches its controller, and proves itself there."""

    cluster: str
    host: str
    control_port: int
    data_port: int
    server_key: str
    """The controller's public key: nobody else can answer in its place."""
    key: KeyPair


class JoinLine(Struct, frozen=True, array_like=True):
    """What an agent needs to enrol: the controller may be at any of ``hosts``."""

    cluster: str
    hosts: tuple[str, ...]
    control_port: int
    data_port: int
    server_key: str
    key: KeyPair

    def encode(self) -> str:
        """One word, safe to paste."""
        body = msgspec.msgpack.encode(self)
        return f"{_PREFIX}." + base64.urlsafe_b64encode(_checksum(body) + body).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinLine:
        """Raises UsageError when the text is no join line."""
        prefix, _, body = text.strip().partition(".")
        if prefix != _PREFIX or not body:
            raise UsageError(f"that is no join line: it starts with {_PREFIX}. and an invitation prints it")
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            if data[:_CHECKSUM] != _checksum(data[_CHECKSUM:]):
                raise ValueError("checksum")
            return msgspec.msgpack.decode(data[_CHECKSUM:], type=cls)
        except (ValueError, msgspec.DecodeError):
            raise UsageError("the join line is damaged; copy it again, whole") from None

    def endpoint(self, host: str, key: KeyPair) -> Endpoint:
        """At one of the hosts, with a key of one's own."""
        return Endpoint(self.cluster, host, self.control_port, self.data_port, self.server_key, key)


def find_line(word: str) -> str:
    """The join line that a word is, or that the file of this name holds. Raises UsageError."""
    if word.startswith(f"{_PREFIX}."):
        return word
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # the last: nobody has the home of ~NAME
        return Path(word).expanduser().read_text().strip()
    raise UsageError(f"{word[:40]!r} is neither a join line nor a file that holds one")


def exposure(word: str) -> str:
    """What to say of a file that holds a join line and that any user of this host can read; "" of anything else."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = Path(word).expanduser()
        if not word.startswith(f"{_PREFIX}.") and path.stat().st_mode & stat.S_IROTH:
            return f"any user of this host can read {path}, whose line makes its holder a node: chmod 600 {path}"
    return ""


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM, "big")
