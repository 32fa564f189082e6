"""Probe: whether a port of this node can be reached from another node, and with which delay.

A listener is open for some seconds, at a port that the system chooses, as it does for Gloo and NCCL. It serves only
peers that send its token, and sends each further byte back.
"""

import contextlib
import hmac
import socket
import threading
import time

from jdist.core.errors import ConnectionLost
from jdist.core.messages.nodes import NetworkPath

_PINGS = 12
_MOST = 64  # Connections that a listener serves at a time: one from each other node, and some that fail.
_IDLE = 5.0  # Seconds without a byte after which a connection is dropped.


class Listener:
    """Listens at ``address`` for ``seconds``, in threads of its own."""

    def __init__(self, address: str, token: str, seconds: float):
        """Raises OSError when nothing can listen there."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family, backlog=_MOST)
        self._token = token.encode()
        self._until = time.monotonic() + seconds
        self._slots = threading.BoundedSemaphore(_MOST)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="jdist-probe", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def close(self) -> None:
        self._until = 0.0
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes the socket

    def _accept(self) -> None:
        with self._socket:
            while True:
                left = self._until - time.monotonic()
                if left <= 0:
                    return
                self._socket.settimeout(left)
                try:
                    peer, _ = self._socket.accept()
                except OSError:  # also a timeout: the listener's time is over
                    return
                if self._slots.acquire(blocking=False):
                    threading.Thread(target=self._serve, args=(peer,), name="jdist-probed", daemon=True).start()
                else:
                    peer.close()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer, contextlib.suppress(OSError, ConnectionLost):
                peer.settimeout(_IDLE)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not hmac.compare_digest(_receive(peer, len(self._token)), self._token):
                    return
                while time.monotonic() < self._until and (data := peer.recv(_PINGS)):
                    peer.sendall(data)
        finally:
            self._slots.release()


def probe_path(name: str, target: tuple[str, int], token: str, timeout: float) -> NetworkPath:
    """Probe the path to a listener at ``target``, and look up its host's ``name``. Errors are in the result.

    ``timeout``: seconds for the lookup, and again for connecting.
    """
    addresses, name_trouble = resolve(name, timeout)
    try:
        round_trip = _round_trip(target, token, timeout)
    except (OSError, ConnectionLost) as e:
        kind, trouble = _explain(e, timeout)
        return NetworkPath(name, addresses, name_trouble, trouble, kind)
    return NetworkPath(name, addresses, name_trouble, round_trip=round_trip)


def resolve(name: str, timeout: float) -> tuple[tuple[str, ...], str]:
    """The addresses of ``name`` on this host, or why there is none."""
    answer: list[tuple[tuple[str, ...], str]] = []

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            answer.append((tuple(dict.fromkeys(str(f[4][0]) for f in found)), ""))
        except (OSError, UnicodeError) as e:
            answer.append(((), getattr(e, "strerror", None) or str(e)))

    # A name server that drops packets blocks the lookup: a thread for which that takes too long is abandoned.
    thread = threading.Thread(target=look_up, name="jdist-resolve", daemon=True)
    thread.start()
    thread.join(timeout)
    return answer[0] if answer else ((), f"no answer of a name server within {timeout:g} s")


def _round_trip(target: tuple[str, int], token: str, timeout: float) -> float:
    times = []
    with socket.create_connection(target, timeout=timeout) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(token.encode())
        for n in range(_PINGS):
            began = time.monotonic()
            sock.sendall(bytes([n]))
            _receive(sock, 1)
            times.append(time.monotonic() - began)
    return min(times)


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionLost("the other end closed the connection")
        data += part
    return data


def _explain(error: Exception, timeout: float) -> tuple[str, str]:
    """(kind, explanation): tells apart a firewall that drops, one that rejects, and a missing route."""
    if isinstance(error, TimeoutError):
        return "timeout", f"no answer within {timeout:g} s: packets are dropped on the way"
    if isinstance(error, ConnectionRefusedError):
        return "refused", "the connection is refused there, by a firewall or by a program that took the port"
    if isinstance(error, ConnectionLost | ConnectionResetError | BrokenPipeError):
        return "broken", f"the connection was made and broken again ({error})"
    return "unreachable", f"there is no way to it ({getattr(error, 'strerror', None) or error})"
