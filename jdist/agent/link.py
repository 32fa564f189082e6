"""Connect the agent to its controller: enrolment, the stream of messages, and the data port.

*Enrolment*: the agent tries all addresses of its join line at once and uses the earliest in the line that answers for
this cluster, so that nodes with several ways to the controller use the same one. The controller's key proves that it is
genuine, and the agent gets a key of its own.

*The stream* runs over as many connections as it takes::

    reachable ──liveness connection ended | disconnected | silent──► unreachable ──anything arrives──► reachable
                                                                         └──the grace is over──► lost (the agent ends)

The liveness connection distinguishes a dead controller, whose end is closed at once, from a broken network. In both
cases zmq keeps dialling: a network may recover, and a controller may be started again at the same address.

An agent takes several seconds to end, while its ranks run their exit functions. By then the controller may have removed
it from the world, and answers its heartbeats by asking for a hello. An agent that is leaving sends none: the hello
would be refused, or claim a place that is meant for another node.

*Bulk data*: workers open no connections to the controller. A worker connects to a Unix socket of the agent, names a
transfer, receives a TCP socket that is connected and introduced to the data port, and writes a tensor's own memory into
it without a copy.
"""

import asyncio
import contextlib
import logging
import socket
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from jdist.core import __version__
from jdist.core.errors import LaunchError, ProtocolError
from jdist.core.messages.base import PROTOCOL, Message
from jdist.core.messages.membership import Enrol, Heartbeat, LivenessLost, Rejected, ToUnauthenticated
from jdist.core.messages.runs import MetricsLogged, Output, RankDone
from jdist.core.settings import BEAT
from jdist.wire.transport.dialing import dial_data, ping
from jdist.wire.transport.invitations import REFUSED, Endpoint, JoinLine
from jdist.wire.transport.keys import KeyPair, agent_name
from jdist.wire.transport.public_port import Acceptor
from jdist.wire.transport.sockets import DialledPort, Frames, LivenessConnection, dial_liveness
from jdist.wire.transport.streams import AGAIN, UNKNOWN, Outbox, Stream, read_head
from jdist.wire.values.frames import Unpacker, pack, pack_report, split

_NAME_LIMIT = 128


class DataGateway:
    """Listens at ``path`` on the running loop, and hands over in threads."""

    def __init__(self, path: str, data_port: tuple[str, int]):
        self._data_port = data_port
        self._loop = asyncio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(64)
        self._acceptor = Acceptor(listener, lambda sock: self._loop.run_in_executor(None, self._hand_over, sock))

    def _hand_over(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):  # the worker has ended
            sock.settimeout(10.0)
            try:
                name = sock.recv(_NAME_LIMIT).decode().strip()
                with dial_data(self._data_port, "PUT", name) as data:
                    data.setblocking(True)
                    socket.send_fds(sock, [b"ok"], [data.fileno()])
            except OSError as e:
                sock.sendall(f"{self._data_port[0]}:{self._data_port[1]}: {e}".encode())

    def close(self) -> None:
        self._acceptor.close()


_FIND_TIMEOUT = 8.0  # Seconds for the controller to be reached.
_RETRY = 1.0
_HEAD_START = 0.3  # Seconds that an earlier address of the line may answer after a later one.
_ENROL_TIMEOUT = 15.0  # Seconds for the controller to take the key.

_VOID = "the join line has expired or was revoked; ask the user of the cluster for another (invite)"

_answer: Unpacker[Any] = Unpacker(ToUnauthenticated)


async def enrol(context: Any, line: JoinLine) -> Endpoint:
    """Raises LaunchError: the controller cannot be reached, or does not accept the line."""
    endpoint = line.endpoint(await _find(line), line.key)
    own = KeyPair.make()
    # Why the controller does not take the key; empty if it does.
    problem: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def answer(text: str) -> None:
        if not problem.done():
            problem.set_result(text)

    def on_frames(frames: Frames) -> None:
        try:
            message = _answer(frames[-1])
        except ProtocolError as e:
            answer(f"the controller's answer cannot be read: {e}")
        else:
            answer(f"{REFUSED} {message.reason}" if isinstance(message, Rejected) else "")

    host, port = address = (endpoint.host, endpoint.control_port)
    keys, name = (endpoint.server_key, endpoint.key), f"e-{uuid.uuid4().hex}"
    connection = DialledPort(context, address, *keys, name, on_frames, on_refused=lambda: answer(_VOID))
    connection.send([pack(Enrol(PROTOCOL, __version__, own.public))])
    try:
        async with asyncio.timeout(_ENROL_TIMEOUT):
            if await problem:
                raise LaunchError(problem.result())
    except TimeoutError:
        reason = f"what answers at {host}:{port} is not the controller that the join line names"
        raise LaunchError(reason) from None
    finally:
        connection.close()
    return line.endpoint(host, own)


async def _find(line: JoinLine) -> str:
    """The first host of the line at which the controller answers."""
    try:
        async with asyncio.timeout(_FIND_TIMEOUT):
            while True:
                found = await _first(line)
                if found:
                    return found
                await asyncio.sleep(_RETRY)  # a network may be coming up
    except TimeoutError:
        tried = ", ".join(line.hosts)
        raise LaunchError(
            f"the controller of this join line does not answer at port {line.data_port} of {tried}: is the cluster "
            "still there, and is that port let through? A start with --bind ADDRESS makes it listen at another address"
        ) from None


async def _first(line: JoinLine) -> str:
    trials = [asyncio.create_task(ping((h, line.data_port), line.cluster)) for h in line.hosts]
    try:
        for trial in asyncio.as_completed(trials):
            if await trial:
                break
        answered = next((n for n, t in enumerate(trials) if t.done() and t.result()), None)
        if answered:
            await asyncio.wait(trials[:answered], timeout=_HEAD_START)
        return next((h for h, t in zip(line.hosts, trials, strict=True) if t.done() and t.result()), "")
    finally:
        for trial in trials:
            trial.cancel()
        await asyncio.wait(trials)


_log = logging.getLogger("jdist.agent")

# Seconds without the controller before it has given this agent a place, and with it a grace of the cluster's own.
_JOIN_GRACE = 10.0
_SILENCE = 5 * BEAT  # Seconds without any message until the controller, which answers every beat, is unreachable.
# Another controller is sent output again: that of so many seconds before the last contact, which the one that died may
# not have passed on to the clients, and all since; at most so many bytes.
_RESENT_SECONDS = 10.0
_RESENT_BYTES = 16 << 20


class ControllerLink:
    """Dials the controller at ``endpoint``. ``on_lost`` is called once, with the reason, when the grace is over."""

    _hello: Callable[[], Message]
    _on_message: Callable[[bytes], None]

    def __init__(self, context: Any, endpoint: Endpoint, on_lost: Callable[[str], None]):
        self.grace = _JOIN_GRACE
        self.is_leaving = False  # The agent is ending, and does not join again.
        self.ends: dict[tuple[int, int], RankDone] = {}  # By worker and run, if they may not have been delivered.
        self._output: deque[tuple[float, bytes]] = deque()  # The newest, with the times at which it was sent.
        self._output_bytes = 0
        self._endpoint = endpoint
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._stream = Stream(0)
        self._outbox = Outbox(lambda payload: self._port.send(self._stream.message(payload)))
        self._last_contact = self._loop.time()
        self._grace_timer: asyncio.TimerHandle | None = None
        self._liveness: LivenessConnection | None = None
        self._dial_task: asyncio.Task[None] | None = None
        address, name = (endpoint.host, endpoint.control_port), agent_name(endpoint.key.public)
        keys = (endpoint.server_key, endpoint.key)
        self._port = DialledPort(context, address, *keys, name, self._on_frames, self._handle_connection)
        self._start_grace()

    def open(self, hello: Callable[[], Message], on_message: Callable[[bytes], None]) -> None:
        """Begin; ``hello`` makes a stream's first message, ``on_message`` gets each message's bytes once, in order."""
        self._hello = hello
        self._on_message = on_message
        self._begin_stream()

    def _begin_stream(self) -> None:
        """At first, and when the controller does not know this agent any more.

        What was not delivered is void, except for the ends of cells and the output, which a run's clients would lose.
        They recognise what they already have (see `OutputNumber`).
        """
        self._outbox.clear()
        self._stream = Stream(self._stream.session + 1)
        _log.info("begin session %d with the controller", self._stream.session)
        self.send(self._hello())
        for _, data in self._output:
            self._outbox.add(data)
        for done in self.ends.values():
            self.send(done)
        self._outbox.flush()

    def send(self, message: Message, within: float = 0.0) -> None:
        """Send, together with others of this turn or of the next ``within`` seconds.

        If the connection is broken, the message is sent once more when it is back.
        """
        if isinstance(message, RankDone):
            self.ends[message.rank, message.run] = message
        if data := pack_report(message):
            self._outbox.add(data, within=within)
            if isinstance(message, Output | MetricsLogged):
                self._keep(data)

    def _keep(self, output: bytes) -> None:
        self._output.append((self._loop.time(), output))
        self._output_bytes += len(output)
        oldest = self._last_contact - _RESENT_SECONDS
        while self._output and (self._output_bytes > _RESENT_BYTES or self._output[0][0] < oldest):
            self._output_bytes -= len(self._output.popleft()[1])

    def beat(self) -> None:
        """Send a heartbeat; called once a second."""
        self._port.send(self._stream.note(pack(Heartbeat())))
        if self._loop.time() - self._last_contact > _SILENCE:
            self._start_grace()

    def _on_frames(self, frames: Frames) -> None:
        head = read_head(frames)
        self._record_contact()
        if head.session != self._stream.session:
            return
        if head.kind == UNKNOWN:
            if not self.is_leaving:
                self._begin_stream()
            return
        payload, answers = self._stream.receive(head, frames[1])
        for answer in answers:
            self._port.send(answer)
        if not self._stream.kept and self._outbox.is_empty:
            self.ends.clear()
        for data in split(payload) if payload else ():
            self._on_message(data)

    # ------------------------------------------------------------ reachability

    def _handle_connection(self, is_connected: bool) -> None:
        if not is_connected:
            self._start_grace()
        elif self._stream.session:
            self._port.send(self._stream.note(kind=AGAIN))

    def _record_contact(self) -> None:
        self._last_contact = self._loop.time()
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None

    def _start_grace(self) -> None:
        """End after the grace without the controller: no worker outlives its cluster, no agent waits for ever."""
        if self._grace_timer is None:
            at = f"the controller at {self._endpoint.host}:{self._endpoint.control_port}"
            reason = f"{at} has not been there for {self.grace:.0f} s"
            self._grace_timer = self._loop.call_later(self.grace, self._on_lost, reason)

    # ------------------------------------------------------------ the liveness connection

    def dial_liveness(self, name: str) -> None:
        """Dial a liveness connection of this name in place of the one that is there, if any."""
        if self._dial_task is not None:
            self._dial_task.cancel()
        if self._liveness is not None:
            self._liveness.close()
        self._dial_task = self._loop.create_task(self._dial_liveness(name))

    async def _dial_liveness(self, name: str) -> None:
        address = (self._endpoint.host, self._endpoint.data_port)
        try:
            self._liveness = await dial_liveness(address, name, self._handle_liveness_end)
        except OSError:
            await asyncio.sleep(BEAT)  # the network is broken: do not ask for the next one at once
            self.send(LivenessLost())

    def _handle_liveness_end(self, is_dead: bool) -> None:
        """The controller's process has ended, whatever is still to arrive from it; or the connection broke."""
        if is_dead:
            self._start_grace()
        else:
            self.send(LivenessLost())

    def close(self, linger: float) -> None:
        """Messages already queued get ``linger`` seconds to leave. The liveness connection ends with the process."""
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        if self._dial_task is not None:
            self._dial_task.cancel()
        self._outbox.flush()
        self._port.close(linger)
