"""The rendezvous store: the process that holds it, a rank's client of it, and the ranks' meeting there.

The process holds a TCPStore that no rank's death takes down, and does nothing else.

A rank has one client for its life: each new connection makes both ends look each other's name up, which costs seconds
where a name server drops packets. A spare is connected for when the client's connection has been shut down. Before a
client is used again, the store must have answered it: its connection may have broken meanwhile.

torch retries a refused connection until its timeout and cannot be interrupted. It is therefore asked to connect only
once the port accepts connections. Waiting for that holds no lock, and ends when the formation is abandoned.
"""

import errno
import ipaddress
import os
import signal
import socket
import threading
import time
from collections import defaultdict
from datetime import timedelta

import msgspec
import torch.distributed as dist
from torch.distributed import Store, TCPStore

from jdist.core.errors import LaunchError
from jdist.core.settings import StoreReport, StoreSpec
from jdist.wire.processes import outlive_job_end, set_name
from jdist.worker.compat import torch as torch_compat
from jdist.worker.groups.gloo import Endpoint, connections_to, shut_down

_BACKLOG = 2048
_CONNECT = 30.0  # Seconds to connect to the store.
_ATTEMPT = 2.0  # Seconds for one attempt, which cannot be interrupted.
_AGAIN = 0.05  # Seconds between two attempts.
_ANSWERED = 5.0  # Seconds for the store to answer; longer than one or two lost packets take.
_CLIENTS = 3  # The client that lasts, the spare, and a new one.
_connecting: dict[int, threading.Lock] = defaultdict(threading.Lock)  # By the store's port.
_Client = tuple[TCPStore, set[Endpoint]]  # A client and the local ends of its connections.


# ---------------------------------------------------------------- the store's process


def main(spec_json: bytes) -> None:
    """Entry point: listen, send a `StoreReport` as one datagram, then stay until killed (with the agent)."""
    spec = msgspec.json.decode(spec_json, type=StoreSpec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outlive_job_end()
    set_name("jdist-store")
    reporter = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    reporter.connect(spec.report_to)
    try:
        listener = _listen(spec.host, spec.port)
        store = dist.TCPStore(
            spec.host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=30),
            master_listen_fd=listener.detach(),
        )
    except (RuntimeError, OSError) as e:
        reporter.send(msgspec.json.encode(StoreReport(error=str(e).splitlines()[0])))
        return
    reporter.send(msgspec.json.encode(StoreReport(store.port)))
    reporter.close()
    threading.Event().wait()


def _listen(host: str, port: int) -> socket.socket:
    """Listen at that one address; by default the store listens at all of this host's. Raises OSError.

    A name that stands here for the loopback, or for another host that forwards the port, is reached from elsewhere at
    addresses that cannot be known; for such a name, listen at all of them.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    is_near = ipaddress.ip_address(address[0]).is_loopback and host not in ("localhost", address[0])
    try:
        return socket.create_server(("", port) if is_near else address, family=family, backlog=_BACKLOG)
    except OSError as e:
        if e.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family, backlog=_BACKLOG)


# ---------------------------------------------------------------- a rank's client


class StoreClient:
    """This process's connection to the rendezvous store; callable from any thread."""

    def __init__(self) -> None:
        os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # read when a thread first looks a name up
        self._lock = threading.Lock()
        self._at: Endpoint = ("", 0)
        self._client: _Client | None = None
        self._spare: _Client | None = None
        self._opening: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The store's port, 0 before it has been connected to."""
        return self._at[1]

    def get(self, host: str, port: int, abandoned: threading.Event) -> TCPStore:
        """A client that works. Raises LaunchError when the store does not answer, or once ``abandoned`` is set."""
        for _ in range(_CLIENTS):
            client = self._take(host, port, abandoned)
            if self._answers(client):
                return client
            self._drop(client)
        raise LaunchError(f"the rendezvous store at {host}:{port} does not answer, although it accepts connections")

    def _answers(self, client: TCPStore) -> bool:
        """Whether the store answers there. A connection may have broken since it was used, as networks do."""
        overdue = threading.Timer(_ANSWERED, self._drop, (client,))
        overdue.daemon = True
        overdue.start()
        try:
            client.check(["here"])
        except RuntimeError:
            return False
        finally:
            overdue.cancel()
        return True

    def _take(self, host: str, port: int, abandoned: threading.Event) -> TCPStore:
        """The client, the spare, or a new one."""
        with self._lock:
            if self._at != (host, port):
                self._at, self._client, self._spare, self._opening = (host, port), None, None, None
            opening = self._opening if self._client is None else None
        while opening is not None and opening.is_alive() and not abandoned.is_set():
            opening.join(_AGAIN)
        with self._lock:
            if self._client is None:
                self._client, self._spare = self._spare, None
            client = self._client
        if client is None:
            _await_port(host, port, _CONNECT, abandoned)
            client = _connect(host, port)
            with self._lock:
                self._client = client
        with self._lock:
            if self._spare is None:
                self._opening = threading.Thread(target=self._open_spare, args=(host, port), daemon=True)
                self._opening.start()
        return client[0]

    def disconnect(self) -> None:
        """End whatever waits at the store, by shutting down the client's connection; the spare takes its place."""
        self._drop(None)

    def _drop(self, client: TCPStore | None) -> None:
        """Shut down this client's connection, if it is still the one in use; None: whichever is."""
        with self._lock:
            if self._client is not None and client in (None, self._client[0]):
                torch_compat.mute_warnings()  # until the world is formed again
                ends, self._client = self._client[1], None
                shut_down((), self.port, ends)

    def _open_spare(self, host: str, port: int) -> None:
        try:
            _await_port(host, port, _ATTEMPT, threading.Event())
            spare = _connect(host, port)
        except LaunchError:
            return  # get() will connect by itself then, and report why it cannot
        with self._lock:
            if self._at == (host, port):
                self._spare = spare


def _await_port(host: str, port: int, seconds: float, abandoned: threading.Event) -> None:
    """Wait until the store's port accepts connections. Raises LaunchError when it does not, or once abandoned."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), min(_ATTEMPT, seconds)).close()
            return
        except OSError as e:
            if abandoned.wait(_AGAIN) or time.monotonic() > deadline:
                raise LaunchError(f"the rendezvous store at {host}:{port} cannot be reached from here: {e}") from e


def _connect(host: str, port: int) -> _Client:
    with _connecting[port]:  # else the ends of two clients could not be told apart
        before = connections_to(port)
        try:
            store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECT)
            )
        except RuntimeError as e:
            reason = str(e).splitlines()[0]
            raise LaunchError(f"the rendezvous store at {host}:{port} cannot be reached from here: {reason}") from e
        return store, connections_to(port) - before


# ---------------------------------------------------------------- the meeting


def meet(store: Store, rank: int, world_size: int, timeout: float) -> None:
    """Wait until every rank has come to this store (a PrefixStore of the generation). Raises LaunchError that names the
    ranks which have not come within ``timeout`` seconds.
    """
    began = time.monotonic()
    keys = [f"here/{r}" for r in range(world_size)]
    try:
        store.set(keys[rank], "1")
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as e:
        if time.monotonic() - began < timeout:
            reason = str(e).splitlines()[0]
            raise LaunchError(
                f"rank {rank} lost the rendezvous store while the world was being formed: {reason}"
            ) from e
        raise LaunchError(
            f"rank {rank} waited {timeout:.0f} s for the world's {world_size} ranks; {_absent(store, keys)}. "
            "The cluster's status shows the state of each rank; restart those that did not come"
        ) from e


def _absent(store: Store, keys: list[str]) -> str:
    try:
        ranks = [r for r, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:  # its connection was shut down, or it has ended
        return "not all of them came, and the rendezvous store no longer answers which"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks)) + " did not come"


def sweep(store: TCPStore, generation: int) -> None:
    """Delete the keys of the generations before ``generation``; for one rank to do, once all hold the new one."""
    for key in store.list_keys():
        prefix = key.split("/", 1)[0]
        number = prefix.removeprefix("gen")
        if prefix != number and number.isdecimal() and int(number) < generation:
            store.delete_key(key)
