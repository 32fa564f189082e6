"""Keep the private files of a cluster on its own host: its keys, and its agents' directories.

The files have mode 0600 and lie in Jupyter's runtime directory. With the *connection file*, the same user's notebooks,
command line and JupyterLab find a cluster. With the *charter*, another controller is started when the first has died.
Keys are never in argv or in the environment.

An agent has a private directory for sockets and logs, and shares one for synced code. Directories of dead agents are
removed.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import zmq
from msgspec import Struct

from jdist.core.errors import ProtocolError, writing_to
from jdist.core.messages.membership import Owner
from jdist.core.messages.status import Origin
from jdist.core.settings import Settings
from jdist.wire.own_files import distrust, is_own, open_own
from jdist.wire.processes import has_ended, pid_namespace, start_time

_LONGEST = 42  # Characters of the temporary directory's path: a Unix socket's path may have 107.
_NAME = re.compile(
    r"jdist-(?P<cluster>[0-9a-f]{12})-(?:code(?:\d+)?|(?P<namespace>[0-9a-f]+)-(?P<pid>\d+)(?:-[0-9a-f]{8})?)"
)


def make(cluster: str) -> Path:
    """Make this process's directory for a cluster, mode 0700, and remove those of processes that have ended."""
    sweep()
    path = _base() / f"jdist-{cluster}-{pid_namespace():x}-{os.getpid()}"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another user owns that name
        path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        path.mkdir(mode=0o700)
    return path


def code_directory(cluster: str, number: int = 0) -> Path:
    """The folder for a cluster's synced code on this host. Its users hold its :func:`lock_file` shared.

    ``number``: of another name, where another user has taken those before it.
    """
    return _base() / f"jdist-{cluster}-code{number or ''}"


def lock_file(directory: Path) -> Path:
    """The lock file of a folder for code."""
    return directory / ".jdist-lock"


def _base() -> Path:
    path = tempfile.gettempdir()
    return Path(path if len(path) < _LONGEST else "/tmp")


def sweep(cluster: str = "") -> None:
    """Remove the directories of dead agents of a cluster (without a name: of all) on this host."""
    here = f"{pid_namespace():x}"  # processes of other containers cannot be seen
    for path in _base().glob("jdist-*-*"):
        found = _NAME.fullmatch(path.name)
        if found is None or cluster not in ("", found["cluster"]) or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):  # another process is removing it, too, or the code is in use or being made
            if not is_own(path.lstat()):
                continue
            if found["pid"] is None and sys.platform != "win32":
                import fcntl

                with open(lock_file(path), "rb") as lock:  # without a lock file it is just being made
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            elif found["namespace"] == here and has_ended(int(found["pid"])):
                shutil.rmtree(path, ignore_errors=True)


S = TypeVar("S", bound=Struct)


class KeyPair(Struct, frozen=True):
    """A CurveZMQ pair, Z85 text."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, …)"  # a log or traceback must not show the secret

    @classmethod
    def make(cls) -> Self:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


class Invitation(Struct, frozen=True):
    """A key with which agents enrol until ``expires`` (seconds since the epoch, by the controller's clock)."""

    key: KeyPair
    expires: float

    @classmethod
    def make(cls, seconds: float) -> Self:
        return cls(KeyPair.make(), time.time() + seconds)


class Connection(Struct, frozen=True):
    """How a client reaches a cluster's controller."""

    name: str
    cluster: str  # A random identifier, which tells apart clusters of the same name.
    host: str
    control_port: int
    data_port: int
    server_key: str  # The controller's public key: no other process can answer in its place.
    key: KeyPair  # The key with which clients authenticate.
    pid: int
    version: str
    hostname: str = ""  # The controller's host, on which `host` and the two ports are.
    host_id: str = ""  # Tells it apart from others of that name, also in time (see wire/processes).
    started: int = 0  # The controller's start time: with it, another process with its pid is not taken for it.
    addresses: tuple[str, ...] = ()  # That host's addresses at which clients on other hosts reach `public_port`.
    public_port: int = 0  # 0: it is closed, and only clients on the controller's host reach it.


class Charter(Struct, frozen=True):
    """All that a controller of the cluster needs to be started again, at the same ports."""

    settings: Settings
    cluster: str
    version: str
    hostname: str
    host_id: str  # The controller's host: only there its ports are the same.
    control_port: int
    data_port: int
    keys: KeyPair
    for_clients: KeyPair
    public_port: int = 0  # 0: it is closed (see wire/transport/public_port).
    invitations: tuple[Invitation, ...] = ()
    agents: tuple[str, ...] = ()  # Public keys of the agents that have enrolled.
    owners: dict[str, Owner] = {}  # By the agent's name.
    origin: Origin | None = None  # The notebook that it belongs to.

    @property
    def agent_grace(self) -> float:
        """Seconds for which some agent waits for the controller to be started again."""
        is_carried = any(owner.is_carried for owner in self.owners.values())
        return self.settings.carried_grace if is_carried else self.settings.agent_grace

    def connection(self, pid: int, addresses: tuple[str, ...] = ()) -> Connection:
        """The connection file's content for a controller with process id ``pid``, on a host with these addresses."""
        return Connection(
            *(self.settings.name, self.cluster, LOOPBACK, self.control_port, self.data_port),
            server_key=self.keys.public,
            key=self.for_clients,
            pid=pid,
            version=self.version,
            hostname=self.hostname,
            host_id=self.host_id,
            started=start_time(pid),
            addresses=addresses if self.public_port else (),
            public_port=self.public_port,
        )


class StartController(Struct, frozen=True):
    """Passed to a controller's process on its standard input."""

    settings: Settings
    directory: str  # Where the connection files lie.
    charter: Charter | None = None  # The charter of a controller that has died, in whose place this one starts.


class ControllerStarted(Struct, frozen=True):
    """The reply to `StartController` on standard output, one line."""

    connection_file: str = ""
    join_line: str = ""  # With which the first agents join; "" where they have joined before.
    error: str = ""


LOOPBACK = "127.0.0.1"  # The address of the controller for clients and for nodes on its own host.
CHARTER_AGE = 5.0  # Seconds between two touches of the charter by a live controller.


def agent_name(public_key: str) -> str:
    """The name of the agent that holds this key; no other peer can use it."""
    return f"a-{hashlib.sha256(public_key.encode()).hexdigest()[:32]}"


def new_cluster_id() -> str:
    """A random identifier of twelve hex digits."""
    return secrets.token_hex(6)


def connection_path(directory: Path, name: str) -> Path:
    """The path of the connection file of the cluster called ``name``."""
    return directory / f"jdist-{name}.json"


def charter_path(directory: Path, name: str) -> Path:
    """The path of the charter of the cluster called ``name``."""
    return directory / f"jdist-{name}.charter"


def write_keys(path: Path, content: Connection | Charter, *, replace: bool) -> None:
    """Write the file atomically, mode 0600. Raises FileExistsError if there is one that is not to be replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with writing_to(path.parent), os.fdopen(open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as f:
            f.write(msgspec.json.encode(content))
        if replace:
            partial.replace(path)
        else:
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_connection(path: Path) -> Connection:
    """Raises FileNotFoundError; ProtocolError for a file of another version, or open to other users."""
    return _read(path, Connection)


def read_charter(path: Path) -> Charter:
    """Raises the same errors as :func:`read_connection`."""
    return _read(path, Charter)


def _read(path: Path, kind: type[S]) -> S:
    # Checks and reads one descriptor: in a folder that others may write to, the name may become another file.
    try:
        fd = open_own(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as e:
        raise ProtocolError(f"{path} cannot be read: {e.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        if distrust(os.fstat(fd)):
            raise ProtocolError(f"{path} is open to other users; it holds keys. Remove it and start the cluster again")
        data = file.read()
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        what = "connection file" if kind is Connection else "charter"
        raise ProtocolError(f"{path} is no {what} of this jdist version ({e}); remove it") from None
