"""Make zmq sockets, and the liveness connections beside them. No other module makes zmq sockets.

CurveZMQ with an allow-list is used on TCP, and ipc inside a node; there is no plain TCP. A :class:`Port` calls back
with each message on the running asyncio loop: the socket wakes it, never a timer.

A *liveness connection* has next to no traffic, and its end shows whether the peer's process has died. When a process
dies, the system closes its connections in order and at once. A connection that is reset, or on which TCP's keep-alive
probes are not answered, was broken by the network and says nothing about the process. Neither does the end of one whose
peer still answers on another: a proxy closes connections in order after a while without traffic. To prevent that, the
side that has dialled writes a byte now and then.
"""

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils.monitor import parse_monitor_message

from jdist.core.errors import ProtocolError
from jdist.wire.transport.dialing import MAGIC
from jdist.wire.transport.keys import KeyPair

_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # Idle and interval in seconds.
_DIAL_TIMEOUT = 10.0
_SIGN = 3.0  # Seconds between two bytes.


class LivenessConnection(asyncio.Protocol):
    """One end of a liveness connection; when it ends, ``on_end(is_dead)`` is called on the running loop."""

    def __init__(self, on_end: Callable[[bool], None]):
        self._on_end: Callable[[bool], None] | None = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def write_signs(self) -> None:
        """Write a byte from time to time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b".")
            self._timer = asyncio.get_running_loop().call_later(_SIGN, self.write_signs)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._on_end is not None:
            self._on_end(exc is None)

    def close(self) -> None:
        """Close it without calling ``on_end``; may be called again."""
        self._on_end = None
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def dial_liveness(address: tuple[str, int], name: str, on_end: Callable[[bool], None]) -> LivenessConnection:
    """Dial this process's liveness connection at the controller's data port. Raises OSError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_DIAL_TIMEOUT):
        transport, connection = await loop.create_connection(lambda: LivenessConnection(on_end), *address)
    transport.write(MAGIC + f" LIFE {name}\n".encode())
    connection.write_signs()
    return connection


_log = logging.getLogger("jdist.wire")

Frames = list[bytes]
OnFrames = Callable[[Frames], None]
Context = zmq.Context[Any]
_BATCH = 64
_SILENCE = 5  # Seconds for which the other end's kernel may leave a connection's probes unanswered.
_NOW = int(zmq.NOBLOCK)
_NOW_AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)  # Numbers: pyzmq spends most of a call on enum members.

_QUEUE_ALL = {zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.LINGER: 0}
_TCP = {
    **_QUEUE_ALL,
    zmq.IPV6: 1,
    # The kernel closes a connection on which nothing comes back, and zmq dials again: sooner than TCP's own timeout.
    # zmq's heartbeats are not used: in 4.3.5, one that is due on a broken connection whose peer was ahead by more than
    # may be queued ends the process (an assertion).
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 1,
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: _SILENCE,
    zmq.TCP_MAXRT: 1000 * _SILENCE,
    zmq.HANDSHAKE_IVL: 10000,  # Milliseconds.
    zmq.CONNECT_TIMEOUT: 3000,
}
_ROUTER = {zmq.ROUTER_MANDATORY: 1, zmq.ROUTER_HANDOVER: 1}  # Else a peer that reuses an identity too soon is ignored.
_CONTROL_PORT = {
    **_TCP,
    **_ROUTER,
    zmq.MAXMSGSIZE: 65 << 20,  # Bytes of a frame: wire/values/frames' limit and a margin; more ends the connection.
    zmq.RCVHWM: 16,  # Messages of one peer that are queued; TCP itself slows a peer that is further ahead.
}


class KeyGate:
    """The allow-list of a controller's TCP port: the keys that may shake hands, and the names that each may use."""

    def __init__(self, context: Context, on_void: Callable[[], object] = lambda: None):
        self._auth = AsyncioAuthenticator(context)
        self._allowed: dict[str, tuple[str, float]] = {}  # By public key: prefix of its holders' names, expiry.
        self._on_void = on_void  # Called when a peer comes with a key that has expired or was revoked.
        self._loop = asyncio.get_running_loop()
        self._auth.start()
        self._auth.configure_curve_callback("*", self)

    def allow(self, public_keys: Iterable[str], called: str = "", until: float = math.inf) -> None:
        """Accept these keys, under names that begin with ``called`` (``c-``), or are ``called`` itself."""
        self._allowed.update((k, (called, until)) for k in public_keys)

    def forbid(self, public_keys: Iterable[str]) -> None:
        """Revoke these keys; messages of their connected holders are dropped."""
        self.allow(public_keys, until=0.0)

    def forget(self, public_keys: Iterable[str]) -> None:
        """Remove these keys; their holders are unauthenticated peers."""
        for key in public_keys:
            self._allowed.pop(key, None)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Called by pyzmq's authenticator for every handshake; ``key`` in Z85."""
        _, until = self._allowed.get(key.decode(), ("", -1.0))
        if 0.0 <= until <= time.time():
            self._loop.call_soon(self._on_void)  # not from here: an exception would end all handshakes
        return until > time.time()

    def lets_in(self, key: str, name: bytes) -> bool:
        """Whether the holder of a key may use a name."""
        called, until = self._allowed.get(key, ("", 0.0))
        is_its = name.startswith(called.encode()) if called[2:] == "" else name == called.encode()
        return is_its and until > time.time()

    def close(self) -> None:
        self._auth.stop()


class Port:
    """A zmq socket on the running loop. ``on_frames`` is called with every message, in order.

    A message for which it raises ProtocolError is dropped and logged; so is one under a name that ``gate`` does not
    allow its sender's key, because zmq itself accepts any name.
    """

    def __init__(self, socket: zmq.Socket[bytes], on_frames: OnFrames, address: str = "", gate: KeyGate | None = None):
        self._socket = socket
        self._on_frames = on_frames
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.FD)
        self.address = address
        self.tcp_port = int(address.rsplit(":", 1)[1]) if address.startswith("tcp:") else 0
        self._will_drain = False
        self._loop.add_reader(self._fd, self._drain)
        self._drain_soon()

    def send(self, frames: Frames) -> bool:
        """Queue a message; False when the peer is not connected any more."""
        if self._socket.closed:
            return False
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _NOW_AND_MORE)
            self._socket.send(frames[-1], _NOW)
        except (zmq.Again, zmq.ZMQError) as e:
            if e.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        self._drain_soon()  # the file descriptor is edge-triggered: a send may swallow its edge
        return True

    def _drain_soon(self) -> None:
        if not self._will_drain:
            self._will_drain = True
            self._loop.call_soon(self._drain)

    def drain(self) -> None:
        """Handle all messages that are here."""
        while self._handle_next():
            pass

    def _drain(self) -> None:
        self._will_drain = False
        is_more = True
        try:
            for _ in range(_BATCH):
                is_more = self._handle_next()
                if not is_more:
                    return
        finally:
            if is_more:  # also when on_frames raised: later messages must not get stuck
                self._drain_soon()

    def _handle_next(self) -> bool:
        """Handle the next message; False if there is none."""
        if self._socket.closed:
            return False
        try:
            first = frame = self._socket.recv(_NOW, copy=False)
            frames = [frame.bytes]
            while frame.more:
                frame = self._socket.recv(_NOW, copy=False)
                frames.append(frame.bytes)
        except zmq.Again:
            return False
        if self._gate is not None and not self._gate.lets_in(str(first.get("User-Id")), frames[0]):
            _log.warning("dropped a message under the name %r, which its key does not allow", frames[0][:40])
            return True
        try:
            self._on_frames(frames)
        except ProtocolError as e:
            _log.warning("dropped a message at %s: %s", self.address or "the link to the controller", e)
        return True

    def close(self, linger: float = 0.0) -> None:
        """Close; messages already queued get ``linger`` seconds to leave."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=int(linger * 1000))


def new_context() -> Context:
    """The zmq context of a process."""
    return zmq.Context()


def _new_socket(context: Context, kind: int, options: dict[Any, Any], keys: KeyPair | None = None) -> Any:
    socket = context.socket(kind)
    for option, value in options.items():
        socket.setsockopt(option, value)
    if keys is not None:
        socket.curve_publickey = keys.public.encode()
        socket.curve_secretkey = keys.secret.encode()
    return socket


def bind_tcp(context: Context, host: str, keys: KeyPair, gate: KeyGate, on_frames: OnFrames, port: int = 0) -> Port:
    """A ROUTER at ``port`` (0: any free one); messages begin with their sender's identity. Raises OSError if taken."""
    socket = _new_socket(context, zmq.ROUTER, _CONTROL_PORT, keys)
    socket.curve_server = True
    bracketed = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{bracketed}:{port or '*'}")
    except zmq.ZMQError as e:
        socket.close()
        raise OSError(e.errno, f"{e.strerror}: {host}:{port or '*'}") from None
    return Port(socket, on_frames, socket.LAST_ENDPOINT.decode().rstrip("\0"), gate)


class MonitoredPort(Port):
    """A port that dials ``endpoint``, and calls ``on_event`` with these events of its connection."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        endpoint: str,
        on_frames: OnFrames,
        events: int,
        on_event: Callable[[int], object],
    ):
        def on_monitor(frames: Frames) -> None:
            on_event(parse_monitor_message(frames)["event"])

        self._monitor = Port(socket.get_monitor_socket(events), on_monitor)  # A later monitor may miss the first event.
        socket.connect(endpoint)
        super().__init__(socket, on_frames, endpoint)

    def close(self, linger: float = 0.0) -> None:
        if not self._socket.closed:
            self._socket.disable_monitor()  # first: zmq's thread would wait for ever to send to a closed socket
        self._monitor.close()
        super().close(linger)


class DialledPort(MonitoredPort):
    """A DEALER to a controller that must hold ``server_key``.

    ``on_change(True)`` is called after each handshake, ``on_change(False)`` when the controller is gone, ``on_refused``
    when it does not accept this side's key (any more).
    """

    def __init__(
        self,
        context: Context,
        address: tuple[str, int],
        server_key: str,
        keys: KeyPair,
        identity: str,
        on_frames: OnFrames,
        on_change: Callable[[bool], object] = lambda _is_connected: None,
        on_refused: Callable[[], object] = lambda: None,
    ):
        def on_event(event: int) -> None:
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                on_refused()
            else:
                on_change(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)

        socket = _new_socket(context, zmq.DEALER, _TCP | {zmq.ROUTING_ID: identity.encode()}, keys)
        socket.curve_serverkey = server_key.encode()
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        super().__init__(socket, f"tcp://{host}:{address[1]}", on_frames, events, on_event)


def bind_ipc(context: Context, path: str, on_frames: OnFrames) -> Port:
    """A ROUTER at a Unix socket, which the directory's mode 0700 protects."""
    socket = _new_socket(context, zmq.ROUTER, _QUEUE_ALL | _ROUTER)
    socket.bind(f"ipc://{path}")
    return Port(socket, on_frames, f"ipc://{path}")


def dial_ipc(context: Context, path: str, on_frames: OnFrames, identity: str) -> Port:
    """A DEALER with this identity at a Unix socket."""
    socket = _new_socket(context, zmq.DEALER, _QUEUE_ALL | {zmq.ROUTING_ID: identity.encode()})
    socket.connect(f"ipc://{path}")
    return Port(socket, on_frames, f"ipc://{path}")


def subscribe_ipc(context: Context, path: str, on_frames: OnFrames, on_end: Callable[[], object]) -> Port:
    """A SUB of everything at a Unix socket. ``on_end``: its other end is gone, and all that it has sent is here."""
    socket = _new_socket(context, zmq.SUB, _QUEUE_ALL | {zmq.SUBSCRIBE: b""})
    return MonitoredPort(socket, f"ipc://{path}", on_frames, int(zmq.EVENT_DISCONNECTED), lambda _: on_end())
