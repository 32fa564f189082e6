"""Invitations: the join line with which an agent finds its controller and enrols, and the endpoint that it uses then.

A join line is for one cluster, expires, and can be revoked. Its holder may enrol, once or several times: the agent
makes a key pair, which the controller accepts from then on, and needs the line no more. So nodes stay connected when
their line expires, and a line that others have seen can be revoked.
"""

import base64
import contextlib
import stat
import time
import zlib
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from jdist.core.errors import UsageError
from jdist.wire.transport.keys import KeyPair

PREFIX = "jdist1"
JOINED = "enrolled with the controller at"  # Printed by an agent that has enrolled, for its starter.
REFUSED = "refused by the controller:"  # Printed by an agent before the reason for which it was refused.
_CHECKSUM = 4


class Endpoint(Struct, frozen=True):
    """How an agent reaches its controller and authenticates there."""

    cluster: str
    host: str
    control_port: int
    data_port: int
    server_key: str  # The controller's public key: no other process can answer in its place.
    key: KeyPair
    is_carried: bool = False  # As in `JoinLine`.


class JoinLine(Struct, frozen=True, array_like=True):
    """All that an agent needs to enrol. The controller may be at any of ``hosts``."""

    cluster: str
    hosts: tuple[str, ...]
    control_port: int
    data_port: int
    server_key: str
    key: KeyPair
    is_carried: bool = False  # It leads through a tunnel: no address of it is one of the controller's host.

    def encode(self) -> str:
        """The line as one word, safe to paste."""
        body = msgspec.msgpack.encode(self)
        return f"{PREFIX}." + base64.urlsafe_b64encode(_checksum(body) + body).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Raises UsageError when the text is no join line."""
        prefix, _, body = text.strip().partition(".")
        if prefix != PREFIX or not body:
            raise UsageError(f"that is no join line: it starts with {PREFIX}. and an invitation prints it")
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            if data[:_CHECKSUM] != _checksum(data[_CHECKSUM:]):
                raise ValueError("checksum")
            line = msgspec.msgpack.decode(data[_CHECKSUM:], type=cls)
            if line.encode() != text.strip():  # Base64 has several spellings of the same bytes
                raise ValueError("spelling")
            return line
        except (ValueError, msgspec.DecodeError):
            raise UsageError("the join line is damaged; copy it again, whole") from None

    def endpoint(self, host: str, key: KeyPair) -> Endpoint:
        """The controller's endpoint at one of the hosts, for an agent with a key of its own."""
        return Endpoint(self.cluster, host, self.control_port, self.data_port, self.server_key, key, self.is_carried)


def find_line(word: str) -> str:
    """The join line that a word is, or that the file of this name holds. Raises UsageError."""
    if word.startswith(f"{PREFIX}."):
        return word
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: there is no user NAME for ~NAME
        return Path(word).expanduser().read_text().strip()
    raise UsageError(f"{word[:40]!r} is neither a join line nor a file that holds one")


def wait_for_line(path: str, seconds: float) -> str:
    """The join line that a file holds, once it is there. Raises UsageError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.1)  # on a file system of another host, a file that is made triggers no event here
    return find_line(path)


def exposure(word: str) -> str:
    """A warning if ``word`` is a file with a join line that any user of this host can read, else ""."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = Path(word).expanduser()
        if not word.startswith(f"{PREFIX}.") and path.stat().st_mode & stat.S_IROTH:
            return f"any user of this host can read {path}, whose line makes its holder a node: chmod 600 {path}"
    return ""


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM, "big")
