"""Link: a client's connection to a controller, on an asyncio loop; a brief break loses nothing (transport/streams).

What is asked once the controller has died is asked on the link that replaces this one; see :meth:`Link.current`.
"""

import asyncio
import contextlib
import functools
import logging
import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from jdist.client import find
from jdist.core import __version__
from jdist.core.errors import ConnectionLost, LaunchError, ProtocolError, Remedy, UsageError
from jdist.core.messages.base import PROTOCOL, Message, Progress, QueryFailed
from jdist.core.messages.debug import RanksResumed, RunFollowed
from jdist.core.messages.membership import LivenessLost, LivenessRenewed
from jdist.core.messages.protocol import (
    NodeOp,
    NodeQuery,
    NodeReply,
    NodeReplyBody,
    RankOp,
    RankQuery,
    RankReply,
    RankReplyBody,
    ToClient,
)
from jdist.core.messages.runs import RunAccepted, RunRecord
from jdist.core.messages.status import (
    Attached,
    ClientHello,
    ClusterFacts,
    Notice,
    RequestRefused,
    StatusReport,
    Stopped,
)
from jdist.core.settings import BEAT
from jdist.wire import log
from jdist.wire.processes import has_ended, start_time
from jdist.wire.transport.keys import Connection
from jdist.wire.transport.sockets import DialledPort, LivenessConnection, dial_liveness, new_context
from jdist.wire.transport.streams import AGAIN, UNKNOWN, Outbox, Stream, read_head
from jdist.wire.values.frames import Unpacker, pack

if TYPE_CHECKING:
    from jdist.client.remote.host import RemoteHost

_log = logging.getLogger("jdist.client")

HELLO_TIMEOUT = 10.0
_LAST_WORDS = 0.25  # Seconds from the end of a liveness connection until it counts as unexplained.
_END_SEEN = 2.0  # Seconds from the end of the controller's process until its liveness connection has ended.
ANSWER_TIMEOUT = 30.0  # Seconds for a rank to answer a query, or to report progress.

_LIST = (Remedy("list", "see which clusters run"),)
CONTROLLER = -1  # The rank under which the controller itself answers a query.

OnMoved = Callable[[int, Progress], None]  # Called with a rank or node, and the bytes that it has moved.

T = TypeVar("T")

_unpack: Unpacker[Any] = Unpacker(ToClient)


_shared_context = functools.cache(new_context)


class Link:
    """An attached client. ``on_event`` gets every message that answers no request, in order."""

    host: "RemoteHost | None" = None  # The controller's host, where that is behind ssh.

    def __init__(self, connection: Connection, on_event: Callable[[Message], None]):
        self.connection = connection
        self.facts: ClusterFacts | None = None
        self.lost = ""
        self.is_orphaned = False  # The controller died without a farewell, and may be started again.
        self.is_dropped = False  # The controller lives, and does not know this client any more.
        # Starts it again and returns the link to it, or raises ConnectionLost; None for a client that only observes.
        self.successor: Callable[[], Awaitable[Link]] | None = None
        self._is_open = False  # Before that, ``open`` raises, and ``on_event`` is not told of its end.
        self._is_ending = False  # Its liveness connection has ended: whatever is sent now does not reach it.
        self._local_pid = 0  # The controller's process, if it is on this host and can be seen from here.
        self._on_event = on_event
        self._waiting: dict[str, asyncio.Queue[Message]] = {}
        self._changed = asyncio.Event()
        self._liveness: LivenessConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._attached: Attached | None = None
        self._refusal = ""  # Why the controller does not let this client attach.
        address = (connection.host, connection.control_port)
        keys = (connection.server_key, connection.key)
        identity = f"c-{uuid.uuid4().hex}"
        self._stream = Stream(1)
        self._outbox = Outbox(lambda payload: self._port.send(self._stream.message(payload)))
        self._port = DialledPort(_shared_context(), address, *keys, identity, self._on_frames, self._connection_changed)

    async def open(self, kind: str) -> None:
        """Attach. Raises ConnectionLost when the controller does not answer, ProtocolError when versions differ."""
        log.configure("client")
        self.send(ClientHello(PROTOCOL, __version__, kind, os.getpid()))
        address = (self.connection.host, self.connection.data_port)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                while self._attached is None or self.facts is None:
                    await self._changed.wait()
                    self._check()
                    if self._refusal:
                        raise ProtocolError(self._refusal)
            attached, is_here = self._attached, find.is_here(self.connection)
            started = start_time(attached.pid) if is_here else 0
            self.connection = structs.replace(self.connection, pid=attached.pid, started=started)
            self._liveness = await dial_liveness(address, attached.liveness_name, self._liveness_ended)
            self._local_pid = attached.pid if is_here and started else 0
            self._is_open = True
        except OSError as e:
            self.close()
            at = f"{self.connection.host}:{self.connection.control_port}"
            why = f"no answer from {at}{f' ({e})' if str(e) else ''}; its controller is gone"
            if isinstance(e, TimeoutError):
                why = f"no answer from {at}; its controller hangs, or cannot be reached"
            raise ConnectionLost(f"cluster {self.connection.name}: {why}", remedies=_LIST) from None
        except BaseException:
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Send a message that needs no answer. Raises ConnectionLost."""
        self._check()
        self._outbox.add(pack(message))

    def _connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            self._outbox.flush()  # the hello comes first: until then the controller knows of no stream
            self._port.send(self._stream.note(kind=AGAIN))

    def _check(self) -> None:
        if self.lost:
            raise self.loss()

    def loss(self) -> ConnectionLost:
        """The error that says why the connection is lost, and how to continue."""
        return ConnectionLost(f"cluster {self.connection.name}: {self.lost}", remedies=self.remedies)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Suggested actions once the connection is lost."""
        if self.is_orphaned:
            return (Remedy("attach", "use it again with every namespace kept", name=self.connection.name),)
        if self.is_dropped:
            return (Remedy("attach", "use it again", name=self.connection.name),)
        return (Remedy("start", "make a new one"),)

    async def current(self) -> "Link":
        """This link, or the one that replaces it once its controller has died. Raises ConnectionLost.

        A controller that dies while a request is under way may have acted on it, so that fails. What is asked after
        its death cannot have reached it, and is asked on the new link.
        """
        if not self.lost and (self._is_ending or self._has_process_ended()):
            with contextlib.suppress(TimeoutError):
                await self.wait_lost(_END_SEEN)
        if self.may_be_replaced:
            assert self.successor is not None
            return await self.successor()
        self._check()
        if self.host is not None:
            await self.host.wait_open()
        return self

    @property
    def is_sound(self) -> bool:
        """Whether nothing is known to be wrong with it; :meth:`current` looks closer. May be read on any thread."""
        return not (self.lost or self._is_ending) and (self.host is None or self.host.state == "open")

    @property
    def may_be_replaced(self) -> bool:
        """Whether its controller has died and may be started again for this client."""
        return self.is_orphaned and self.successor is not None

    def _has_process_ended(self) -> bool:
        """Whether the controller's process is known to have ended; it is not known of one on another host."""
        return self._local_pid != 0 and has_ended(self._local_pid, self.connection.started)

    def give_up(self, reason: str, *, is_final: bool) -> None:
        """Record why the controller could not be started again; ``is_final``: no further attempt can succeed."""
        self.lost = reason
        self.is_orphaned = not is_final

    async def request(self, message: Message, expected: type[T], timeout: float = ANSWER_TIMEOUT) -> T:
        """The one answer to a message that has a ``request`` field. Raises UsageError when it is refused."""
        async with contextlib.aclosing(self.answers(message, timeout)) as answers:
            try:
                return body_of(await anext(answers), expected)
            except TimeoutError:
                text = f"cluster {self.connection.name}: its controller has not answered for {timeout:.0f} s"
                raise ConnectionLost(text, remedies=_LIST) from None

    async def query(
        self, ranks: tuple[int, ...], op: RankOp, timeout: float = ANSWER_TIMEOUT, on_progress: OnMoved | None = None
    ) -> dict[int, RankReplyBody]:
        """Send ``op`` to each rank, or with no ranks to the controller itself (:data:`CONTROLLER`); ``{rank: answer}``.

        A rank that sent nothing for ``timeout`` seconds after the last answer or progress report gets a QueryFailed.
        """
        silent = f"no answer for {timeout:.0f} s: its Python may be held by C code, or its node unreachable"
        found: dict[int, RankReplyBody] = dict.fromkeys(ranks or (CONTROLLER,), QueryFailed(silent))
        await self._collect(RankQuery(new_request(), ranks, op), found, timeout, on_progress)
        return found

    async def query_one(
        self,
        rank: int,
        op: RankOp,
        expected: type[T],
        timeout: float = ANSWER_TIMEOUT,
        on_progress: OnMoved | None = None,
    ) -> T:
        """The answer of one rank or of the controller itself (:data:`CONTROLLER`). Raises UsageError if it failed."""
        answer = (await self.query(() if rank == CONTROLLER else (rank,), op, timeout, on_progress))[rank]
        if isinstance(answer, QueryFailed) and rank != CONTROLLER and not answer.reason.startswith("rank "):
            raise UsageError(f"rank {rank}: {answer.reason}")
        return body_of(answer, expected)

    async def query_within(self, ranks: tuple[int, ...], op: RankOp, expected: type[T], seconds: float) -> dict[int, T]:
        """``{rank: answer}`` of the ranks that give an answer of the kind ``expected`` within ``seconds`` in all."""
        found: dict[int, RankReplyBody] = dict.fromkeys(ranks, QueryFailed("too late"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._collect(RankQuery(new_request(), ranks, op), found, seconds, None)
        return {r: body for r, body in sorted(found.items()) if isinstance(body, expected)}

    async def query_nodes(
        self, nodes: Collection[int], op: NodeOp, timeout: float = ANSWER_TIMEOUT
    ) -> dict[int, NodeReplyBody]:
        """Send ``op`` to each node's agent; ``{node: answer}``, a QueryFailed after ``timeout`` silent seconds."""
        silent = QueryFailed(f"no answer for {timeout:.0f} s: its agent is stopped, or the node unreachable")
        found: dict[int, NodeReplyBody] = dict.fromkeys(nodes, silent)
        await self._collect(NodeQuery(new_request(), tuple(nodes), op), found, timeout, None)
        return found

    async def _collect(
        self, query: RankQuery | NodeQuery, found: dict[int, Any], timeout: float, on_progress: OnMoved | None
    ) -> None:
        """Put the replies of all that are in ``found`` there, until nothing has come for ``timeout`` seconds."""
        missing = len(found)
        async with contextlib.aclosing(self.answers(query, timeout)) as answers:
            with contextlib.suppress(TimeoutError):
                while missing > 0:
                    reply = await anext(answers)
                    if not isinstance(reply, RankReply | NodeReply):
                        continue
                    peer = reply.rank if isinstance(reply, RankReply) else reply.node
                    if not isinstance(reply.body, Progress):
                        found[peer] = reply.body
                        missing -= 1
                    elif on_progress is not None:
                        on_progress(peer, reply.body)

    async def answers(self, message: Message, timeout: float) -> AsyncGenerator[Message, None]:
        """Every answer to a request. Raises UsageError when refused, TimeoutError after ``timeout`` silent seconds."""
        link = await self.current()
        if link is not self:
            async with contextlib.aclosing(link.answers(message, timeout)) as answers:
                async for answer in answers:
                    yield answer
            return
        name = message.request  # type: ignore[attr-defined]
        queue = self._waiting[name] = asyncio.Queue[Message]()
        try:
            self.send(message)
            while True:
                async with asyncio.timeout(timeout):
                    answer = await queue.get()
                if isinstance(answer, RequestRefused):
                    raise UsageError(answer.reason, remedies=answer.remedies)
                if isinstance(answer, Stopped):
                    self._check()
                yield answer
        finally:
            self._waiting.pop(name, None)

    async def wait_ready(self, timeout: float | None, on_facts: Callable[[ClusterFacts], None] | None = None) -> None:
        """Wait until the world is formed. Raises LaunchError when it cannot be, TimeoutError after ``timeout`` s."""
        async with asyncio.timeout(timeout):
            while True:
                self._check()
                if self.facts is not None:
                    if on_facts is not None:
                        on_facts(self.facts)
                    if self.facts.phase == "ready":
                        return
                    if self.facts.phase == "failed":
                        raise LaunchError(self.facts.reason, remedies=self.facts.remedies)
                await self._changed.wait()

    def _on_frames(self, frames: list[bytes]) -> None:
        head = read_head(frames)
        if head.kind == UNKNOWN:
            self.is_dropped = self.host is None
            self.is_orphaned = not self.is_dropped  # after a long break, its successor is attached by itself
            self._end("its controller does not know this client any more, which took nothing of what it was sent")
            return
        data, answers = self._stream.receive(head, frames[1])
        for answer in answers:
            self._port.send(answer)
        for message in _unpack.each(data) if data else ():
            self._on_message(message)

    def _on_message(self, message: Message) -> None:
        if self.host is not None:
            message = _named(message, self.connection.name)
        match message:
            case Attached() if self._attached is None:
                self._attached = message
                self._wake()
                return
            case RequestRefused(request="") if self._attached is None:
                self._refusal = message.reason
                self._wake()
                return
            case ClusterFacts():
                self.facts = message
                self._wake()
            case LivenessRenewed(name):
                self._dialling = asyncio.ensure_future(self._dial_liveness(name))
                return
            case RanksResumed(ranks=ranks) if self.facts is not None:  # of a pause, the facts come first
                self.facts = structs.replace(self.facts, paused=tuple(r for r in self.facts.paused if r not in ranks))
            case Stopped():
                self._end(message.reason)
                return
        queue = self._waiting.get(getattr(message, "request", ""))
        if queue is None or isinstance(message, RunAccepted | RunFollowed | RunRecord):
            self._on_event(message)  # the run exists before its first output arrives
        if queue is not None:
            queue.put_nowait(message)

    def _liveness_ended(self, is_dead: bool) -> None:
        """Wait a moment: the controller's last message may still be on its way through zmq's own thread."""
        self._is_ending = is_dead

        def conclude() -> None:
            # A process that is killed before it has read all that was sent to it resets the connection.
            if is_dead or self._has_process_ended():
                self.end_orphaned()
            elif not self.lost:  # the network broke; the controller keeps for this client what it is sent
                self.send(LivenessLost())

        asyncio.get_running_loop().call_later(_LAST_WORDS, conclude)

    async def _dial_liveness(self, name: str) -> None:
        address = (self.connection.host, self.connection.data_port)
        try:
            self._liveness = await dial_liveness(address, name, self._liveness_ended)
        except (OSError, TimeoutError):
            await asyncio.sleep(BEAT)
            if not self.lost:
                self.send(LivenessLost())

    def end_orphaned(self) -> None:
        """The controller has died without a farewell, and may be started again."""
        if not self.lost:
            self.is_orphaned = True
            self._end("its controller is gone")

    def _end(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = reason
        _log.info("cluster %s: %s", self.connection.name, reason)
        stopped = Stopped(reason, self.remedies if self.is_orphaned else ())
        for queue in self._waiting.values():
            queue.put_nowait(stopped)
        if self._is_open:
            self._on_event(stopped)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_lost(self, timeout: float) -> None:
        """Wait until the controller has stopped or is gone. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while not self.lost:
                await self._changed.wait()

    def close(self) -> None:
        """Detach; whatever still waits for an answer fails with ConnectionLost."""
        self._end("this client detached from it")
        if self._liveness is not None:
            self._liveness.close()
        if self._dialling is not None:
            self._dialling.cancel()
        self._outbox.flush()
        self._port.close(linger=0.2)


def _named(message: Message, name: str) -> Message:
    """The message with the cluster's name as it is called from here."""
    match message:
        case ClusterFacts():
            return structs.replace(message, name=name)
        case StatusReport():
            return structs.replace(message, facts=structs.replace(message.facts, name=name))
        case Notice():
            local = name.rpartition(":")[2]
            named = (structs.replace(each, name=name) if each.name == local else each for each in message.remedies)
            return structs.replace(message, remedies=tuple(named))
    return message


def new_request() -> str:
    """A name for a request."""
    return uuid.uuid4().hex[:16]


def body_of(answer: object, expected: type[T]) -> T:
    """The answer, or the body of a rank's reply, as ``expected``. Raises UsageError when it is anything else."""
    body = answer.body if isinstance(answer, RankReply) else answer
    if isinstance(body, expected):
        return body
    raise UsageError(body.reason if isinstance(body, QueryFailed) else f"unexpected answer: {body}")
