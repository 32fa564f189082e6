"""Find: this user's clusters, by their connection files in Jupyter's runtime directory.

A cluster *runs* (its controller listens), is *restartable* (its controller has died, and its agents wait for another),
or is a leftover, whose files the next client that lists clusters removes. Where hosts share that directory, clusters of
other hosts are found as well; they are reached at their controller's public port, and used only by name.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from jdist.core.errors import ProtocolError, Remedy, UsageError, nearest
from jdist.wire.processes import has_ended, host_id
from jdist.wire.transport.keys import CHARTER_AGE, Charter, Connection, charter_path, read_charter, read_connection

_CONNECT_TIMEOUT = 2.0
_FORGOTTEN = 3600.0  # Seconds without a sign of life after which another host's cluster is a leftover.
_FORGOTTEN_HERE = 12 * CHARTER_AGE  # The same where the host's name is ours: of an earlier boot, or container.


def directory() -> Path:
    """The folder of connection files."""
    return Path(jupyter_runtime_dir())


def _files() -> Iterator[tuple[Path, Connection | ProtocolError]]:
    """Connection files, newest first, with their content or the error that reading them raises."""
    for path in sorted(directory().glob("jdist-*.json"), key=_modified, reverse=True):
        try:
            yield path, read_connection(path)
        except ProtocolError as e:
            yield path, e
        except FileNotFoundError:
            continue  # its controller has removed it


def connections() -> dict[str, Connection]:
    """Running clusters by name, newest first; connection files that dead controllers left are removed."""
    found: dict[str, Connection] = {}
    for path, connection in _files():
        if isinstance(connection, ProtocolError):
            continue
        if (reached := _reach(connection)) is not None:
            found[connection.name] = reached
        elif _is_leftover(connection) and restart_time(connection) <= 0:
            _remove(path, connection.name)
    return found


def here() -> dict[str, Connection]:
    """Clusters whose controllers run on this host, or can be started again there, by name, newest first."""
    return {name: c for name, c in (connections() | restartable()).items() if is_here(c)}


def is_here(connection: Connection) -> bool:
    """Whether the cluster's controller is on this host, where its process can be seen."""
    return connection.host_id in ("", host_id())


def _reach(connection: Connection) -> Connection | None:
    """The connection as it is used from this host, if the controller listens."""
    if is_here(connection):  # another process may have taken the port of one that has died
        return connection if not has_ended_here(connection) and listens(connection) else None
    port = connection.public_port
    for address in connection.addresses:
        there = msgspec.structs.replace(connection, host=address, control_port=port, data_port=port)
        if listens(there):
            return there
    return None


def _beyond() -> dict[str, str]:
    """Why clusters of other hosts cannot be used from here, by name."""
    found = {}
    for _, c in _files():
        if isinstance(c, Connection) and not is_here(c) and _reach(c) is None:
            why = "this host does not reach it there" if c.public_port else "it listens only there, without --bind '*'"
            where = f"host {c.hostname}"
            if c.hostname == socket.gethostname():
                where = "this host, in another container or since before its last boot"
            found[c.name] = f"cluster {c.name} runs on {where}: {why}"
    return found


def restartable() -> dict[str, Connection]:
    """Clusters whose controller has died and can be started again from here, by name, newest first."""
    readable = [c for _, c in _files() if isinstance(c, Connection)]
    return {c.name: c for c in readable if restart_time(c) > 0}


def unreadable() -> dict[str, str]:
    """Why connection files cannot be read, by cluster name: they are another version's, or open to other users."""
    return {path.stem.removeprefix("jdist-"): str(e) for path, e in _files() if isinstance(e, ProtocolError)}


def charter_of(connection: Connection) -> Charter | None:
    """The settings and keys that the cluster was started with, if its controller ran on this host."""
    try:
        charter = read_charter(charter_path(directory(), connection.name))
    except (ProtocolError, FileNotFoundError):
        return None
    is_its_own = charter.cluster == connection.cluster and charter.host_id == host_id()
    return charter if is_its_own else None


def restart_time(connection: Connection) -> float:
    """For about how many seconds the controller can still be started again; 0 if it is alive or cannot be."""
    charter = charter_of(connection)
    if charter is None or not has_ended_here(connection):
        return 0.0
    gone = time.time() - _modified(charter_path(directory(), connection.name))
    return max(0.0, charter.agent_grace - max(0.0, gone - CHARTER_AGE))


def remove_dead(name: str) -> None:
    """Remove the files of a cluster whose controller is dead and shall not be started again."""
    for path, connection in _files():
        if isinstance(connection, Connection) and connection.name == name and _is_leftover(connection):
            _remove(path, name)


def _remove(path: Path, name: str) -> None:
    charter_path(directory(), name).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def find(name: str | None) -> Connection:
    """The cluster called ``name``, or the newest, running or restartable. Raises UsageError when there is none."""
    found = connections() | restartable()
    if name is None:
        own = [c for c in found.values() if is_here(c)]
        if own:
            return own[0]
        others = tuple(Remedy("attach", f"use one of host {c.hostname}", name=c.name) for c in found.values())
        where = ", on this host" if others else ""
        remedies = (*others[:3], Remedy("start", "make one"))
        raise UsageError(f"there is no cluster to attach to{where}", remedies=remedies)
    if name not in found:
        if why := _beyond().get(name):
            raise UsageError(why)
        none = nearest(name, found) if found else "; there is none"
        remedies = () if found else (Remedy("start", "make one"),)
        raise UsageError(f"there is no cluster called {name!r}{none}", remedies=remedies)
    return found[name]


def free_name() -> str:
    """A name that no connection file has: c1, c2, …"""
    connections()  # removes leftovers
    taken = {path.stem.removeprefix("jdist-") for path, _ in _files()}
    return next(f"c{n}" for n in range(1, len(taken) + 2) if f"c{n}" not in taken)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its controller removed it since the directory was read
        return 0.0


def listens(connection: Connection) -> bool:
    """Whether a process accepts connections at the cluster's control port."""
    try:
        with socket.create_connection((connection.host, connection.control_port), _CONNECT_TIMEOUT):
            return True
    except OSError:
        return False


def has_ended_here(connection: Connection) -> bool:
    """Whether the controller, which ran on this host, has ended."""
    return is_here(connection) and has_ended(connection.pid, connection.started)


def _is_leftover(connection: Connection) -> bool:
    """Whether its controller ran on this host and its process is gone, or has given no sign of life elsewhere."""
    if is_here(connection):
        return has_ended_here(connection)
    touched = _modified(charter_path(directory(), connection.name))  # 0: it was copied here without its charter
    age = _FORGOTTEN_HERE if connection.hostname == socket.gethostname() else _FORGOTTEN
    return 0 < touched < time.time() - age
