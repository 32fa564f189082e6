"""Keys of a cluster, and what carries them on its own host: the connection file and the charter.

The connection file (mode 0600 in Jupyter's runtime directory) is how the same user's notebooks, command line and
JupyterLab find a cluster. The charter (mode 0600 beside it) is what another controller of the same cluster starts from
when the first has died. Keys never stand in argv or in the environment.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
from msgspec import Struct

from jdist.core.errors import ProtocolError
from jdist.core.settings import Settings

S = TypeVar("S", bound=Struct)


class KeyPair(Struct, frozen=True):
    """A CurveZMQ pair, Z85 text."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, …)"  # a log or traceback must not show the secret

    @classmethod
    def make(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


class Invitation(Struct, frozen=True):
    """A key that lets agents enrol until ``expires`` (seconds since the epoch, by the controller's clock)."""

    key: KeyPair
    expires: float

    @classmethod
    def make(cls, seconds: float) -> Invitation:
        return cls(KeyPair.make(), time.time() + seconds)


class Connection(Struct, frozen=True):
    """How a client reaches a cluster's controller."""

    name: str
    cluster: str
    """Random name of this very cluster: two that were called alike are not taken for each other."""
    host: str
    control_port: int
    data_port: int
    server_key: str
    """The controller's public key: nobody else can answer in its place."""
    key: KeyPair
    """What clients prove themselves with."""
    pid: int
    version: str


class Charter(Struct, frozen=True):
    """What a cluster is founded on: with this its controller can be started again, at the same ports."""

    settings: Settings
    cluster: str
    version: str
    hostname: str
    """Of the controller: only there its ports are the same."""
    control_port: int
    data_port: int
    keys: KeyPair
    for_clients: KeyPair
    public_port: int = 0
    """See wire/transport/public_port; 0: it is closed."""
    invitations: tuple[Invitation, ...] = ()
    agents: tuple[str, ...] = ()
    """Public keys of the agents that have enrolled."""

    def connection(self, pid: int) -> Connection:
        """Of a controller with this process id."""
        where = (LOOPBACK, self.control_port, self.data_port, self.keys.public)
        return Connection(self.settings.name, self.cluster, *where, self.for_clients, pid, self.version)


class StartController(Struct, frozen=True):
    """Passed to a controller's process on its standard input."""

    settings: Settings
    directory: str
    """Where the connection files lie."""
    charter: Charter | None = None
    """The charter of a controller that has died, in whose place this one starts."""


class ControllerStarted(Struct, frozen=True):
    """The reply to `StartController` on standard output, one line."""

    connection_file: str = ""
    join_line: str = ""
    """With which the first agents join; "" where they have joined before."""
    error: str = ""
    is_running: bool = False
    """Another process has just started the controller again."""


LOOPBACK = "127.0.0.1"
"""Where clients and the nodes on the controller's own host find it."""
CHARTER_AGE = 5.0
"""Seconds between two touches of the charter by a controller that lives."""


def agent_name(public_key: str) -> str:
    """What the agent that holds this key is called: nobody else can speak under that name."""
    return f"a-{hashlib.sha256(public_key.encode()).hexdigest()[:32]}"


def new_cluster_id() -> str:
    """Twelve hex digits."""
    return secrets.token_hex(6)


def connection_path(directory: Path, name: str) -> Path:
    """Where the connection file of the cluster called ``name`` lies."""
    return directory / f"jdist-{name}.json"


def charter_path(directory: Path, name: str) -> Path:
    """Where the charter of the cluster called ``name`` lies."""
    return directory / f"jdist-{name}.charter"


def write_connection(path: Path, connection: Connection, *, again: bool = False) -> None:
    """Write the file whole or not at all, mode 0600. Raises FileExistsError when another cluster has the name.

    ``again``: a controller that was started again writes it in place of the one before.
    """
    _write(path, msgspec.json.encode(connection), replace=again)


def write_charter(path: Path, charter: Charter) -> None:
    """Write the file whole or not at all, mode 0600, in place of what was there."""
    _write(path, msgspec.json.encode(charter), replace=True)


def _write(path: Path, data: bytes, *, replace: bool) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(data)
    if replace:
        partial.rename(path)
        return
    try:
        os.link(partial, path)
    finally:
        partial.unlink()


def read_connection(path: Path) -> Connection:
    """Raises FileNotFoundError, or ProtocolError when the file is not one of this version or not this user's alone."""
    return _read(path, Connection)


def read_charter(path: Path) -> Charter:
    """Raises the same."""
    return _read(path, Charter)


def _read(path: Path, kind: type[S]) -> S:
    # What is judged is what is read: in a folder that others may write to, the name may be another file a moment later.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as e:
        raise ProtocolError(f"{path} cannot be read: {e.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        st = os.fstat(fd)
        if st.st_uid != os.getuid() or st.st_mode & 0o077 or not stat.S_ISREG(st.st_mode):
            raise ProtocolError(f"{path} is open to other users; it holds keys. Remove it and start the cluster again")
        data = file.read()
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        what = "connection file" if kind is Connection else "charter"
        raise ProtocolError(f"{path} is no {what} of this jdist version ({e}); remove it") from None
