"""Queries about a rank's namespace and state, answered on a helper thread while cells may be running."""

import contextlib
import socket
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import psutil

from jdist.core.errors import UsageError, describe_error
from jdist.core.messages import debug, observation, values, widgets
from jdist.core.messages.base import Ack, PayloadWire, Progress, QueryFailed, ValueMissing
from jdist.core.messages.protocol import RankOp, RankReplyBody
from jdist.core.settings import INLINE_LIMIT, WorkerSpec
from jdist.wire import log
from jdist.wire.values.objects import decode, encode, inline
from jdist.wire.values.segments import Segment, layout, split
from jdist.worker.debug.debugger import Debugger
from jdist.worker.debug.frames import PostMortem
from jdist.worker.observe.observer import Observer
from jdist.worker.profile import CellProfiler
from jdist.worker.variables.describe import bin_elements, describe, evaluate
from jdist.worker.variables.digests import block_digests, digests, element
from jdist.worker.variables.introspection import complete, introspect
from jdist.worker.variables.listing import UserNames, VariableLister
from jdist.worker.widgets import EventQueue

_HELD_AT_MOST = 8
_LARGEST_HEAD = 48 << 20  # Bytes of pickle that travel with a message; tensors and arrays are not among them.
_STREAM_TIMEOUT = 60.0  # Seconds without a byte moved before a transfer is given up.
_PROGRESS_EVERY = 0.1
_PROFILE_TIMEOUT = 60.0  # Seconds for a profiled cell that has ended to be read from torch.

Report = Callable[[Progress], None]
Buffers = list[memoryview]


class QueryHandler:
    """Answers queries; one per worker."""

    def __init__(
        self,
        spec: WorkerSpec,
        namespace: dict[str, Any],
        observer: Observer,
        debugger: Debugger,
        post_mortem: PostMortem,
        profiler: CellProfiler,
        user_names: UserNames,
        events: EventQueue,
    ):
        self._spec = spec
        self.rank = spec.rank
        self._session = namespace
        self._debugger = debugger
        self._post_mortem = post_mortem
        self._held: OrderedDict[str, Buffers] = OrderedDict()
        self._lock = threading.Lock()
        self._observer = observer
        self._profiler = profiler
        self._variables = VariableLister(user_names)
        self._events = events

    @property
    def _namespace(self) -> dict[str, Any]:
        """The names of the frame in which the rank is paused, else those of its cells."""
        return self._debugger.read_names(self._session)

    def answer(self, op: RankOp, report: Report) -> RankReplyBody:
        """The reply to one query; ``report`` takes the progress of long ones."""
        match op:
            case debug.ReadStack() | debug.DebugFailure() | debug.ReadSource():
                return self._answer_debugging(op)
            case values.Evaluate():
                return self._evaluate(op, report)
            case values.Fetch():
                return self._fetch(op, report)
            case values.Release():
                self._release(op.handle)
                return Ack()
            case values.BindNames():
                return self._bind_names(op)
            case values.Describe() | values.BinElements() | values.Digest() | values.ReadElement():
                return self._examine(op)
            case values.ListVariables():
                return self._list_variables(op, report)
            case observation.Observe():
                device = str(self._session.get("device", "cpu"))
                return self._observer.observe(device, psutil.Process().memory_info().rss, op.recent)
            case observation.GetStack():
                return observation.StackText(self._observer.stack())
            case observation.GetTrace() | observation.ReadProfile():
                return self._read_run(op)
            case widgets.PrepareEvents() | widgets.StoreEvents() | widgets.DeliverEvents():
                return self._events.answer(op)
            case values.Complete():
                return complete(op.code, op.cursor, self._namespace)
            case values.Inspect():
                return values.Inspected(introspect(op.name, self._namespace, op.detail))
            case values.GetDebugLog():
                return values.DebugLog(log.newest(op.lines))
            case _:
                return QueryFailed(f"a rank cannot answer {type(op).__name__}")

    def _answer_debugging(self, op: debug.ReadStack | debug.DebugFailure | debug.ReadSource) -> RankReplyBody:
        if isinstance(op, debug.ReadStack):
            return self._debugger.read_stack(op) or self._post_mortem.answer(op)
        if isinstance(op, debug.DebugFailure):
            return self._post_mortem.answer(op)
        text = self._debugger.read_source(op.file)
        why = f"{op.file} is not on the stack of rank {self.rank}"
        return QueryFailed(why) if text is None else debug.SourceText(text)

    def _evaluate(self, query: values.Evaluate, report: Report) -> values.Evaluated:
        items: list[PayloadWire | ValueMissing] = []
        held: Buffers = []
        for name in query.names:
            try:
                payload, buffers = encode(evaluate(name, self._namespace), report=_paced(report))
            except BaseException as e:  # the user's own attributes run here, and may exit
                items.append(ValueMissing(describe_error(e)))
                continue
            if len(payload.head) > _LARGEST_HEAD:
                size = f"{len(payload.head):,} bytes of pickle"
                limited = f"the limit is {_LARGEST_HEAD:,}; pull it in parts, or as tensors"
                items.append(ValueMissing(f"{name} is {size}; {limited}"))
            elif payload.nbytes <= INLINE_LIMIT:
                items.append(inline(payload, buffers))
            else:
                held.extend(buffers)
                items.append(payload)
        return values.Evaluated(tuple(items), self._hold(held), query.probe is not None)

    def _examine(self, op: values.Describe | values.BinElements | values.Digest | values.ReadElement) -> RankReplyBody:
        """What the contents of one value are."""
        value = evaluate(op.name if isinstance(op, values.Describe) else op.expr, self._namespace)
        match op:
            case values.Describe():
                return values.Described(msgspec.msgpack.encode(describe(value)))
            case values.BinElements():
                return bin_elements(value, op.low, op.high, op.bins)
            case values.Digest(blocks=0):
                return values.Digested(tuple(digests(value)))
            case values.Digest():
                found = block_digests(value, op.key, op.start, op.stop, op.blocks)
                return values.Digested(tuple(("", "", digest) for digest in found))
            case values.ReadElement():
                index, text = element(value, op.key, op.index)
                return values.ElementRead(tuple(index), text)

    def _list_variables(self, query: values.ListVariables, report: Report) -> values.VariableList:
        place = self._debugger.place()
        frame = "" if place is None else place.function
        return self._variables.list(query, self._namespace, frame, _paced(report))

    def _read_run(self, query: observation.GetTrace | observation.ReadProfile) -> RankReplyBody:
        which = f"run {query.run}" if query.run else "a run"
        if isinstance(query, observation.GetTrace):
            trace = self._observer.trace(query.run)
            if trace is None:
                return QueryFailed(f"rank {self.rank} remembers no calls of {which}")
            return self._profiler.trace(trace.run) or trace
        found = self._profiler.read(query.run, _PROFILE_TIMEOUT)
        if found is None:
            return QueryFailed(f"no profile of {which} is kept there")
        payload, buffers = encode(found)
        return values.Evaluated((payload,), self._hold(buffers), query.probe is not None)

    def _hold(self, buffers: Buffers) -> str:
        """Hold buffers for Fetch; the name under which they are held, "" if there are none."""
        handle = uuid.uuid4().hex if buffers else ""
        if buffers:
            with self._lock:
                self._held[handle] = buffers
                while len(self._held) > _HELD_AT_MOST:
                    self._held.popitem(last=False)
        return handle

    def _release(self, handle: str) -> Buffers:
        with self._lock:
            buffers = self._held.pop(handle, None)
        if buffers is None:
            raise UsageError(f"rank {self.rank} no longer holds that value; pull it again")
        return buffers

    def _fetch(self, query: values.Fetch, report: Report) -> values.Fetched:
        buffers = self._release(query.handle)
        total = layout([b.nbytes for b in buffers])[1]
        reported = time.monotonic()

        def moved(done: int) -> None:
            nonlocal reported
            if time.monotonic() - reported >= _PROGRESS_EVERY:
                reported = time.monotonic()
                report(Progress(done, total))

        if query.probe is None:
            self._stream(query.transfer, buffers, moved)
            return values.Fetched("", total)
        segment = Segment.create(self._spec.cluster, total)
        try:
            segment.fill(buffers, moved)
            segment.hand_over(query.probe.path)
        except BaseException:
            segment.unlink()
            raise
        finally:
            segment.close()
        return values.Fetched(segment.path, total)

    def _stream(self, transfer: str, buffers: Buffers, moved: Callable[[int], None]) -> None:
        offsets, total = layout([b.nbytes for b in buffers])
        with _data_connection(self._spec.handover_socket, transfer) as sock:
            sent = 0
            for offset, buffer in zip(offsets, buffers, strict=True):
                sock.sendall(bytes(offset - sent))
                sent = offset
                for start in range(0, buffer.nbytes, 1 << 24):
                    part = buffer[start : start + (1 << 24)]
                    sock.sendall(part)
                    sent += part.nbytes
                    moved(sent)
            sock.sendall(bytes(total - sent))
            sock.shutdown(socket.SHUT_WR)
            if sock.recv(1) != b"k":
                raise UsageError("the controller did not confirm the transfer; pull again")

    def _bind_names(self, query: values.BindNames) -> Ack:
        for name in query.names:
            if not name.isidentifier():
                raise UsageError(f"{name!r} is no variable name")
        if query.path:
            segment = Segment.open(query.path, query.nbytes)  # copy-on-write: no rank sees another's later changes
            with contextlib.closing(segment):
                views = iter(split(segment.view, [size for p in query.payloads for size in p.sizes]))
                bound = [decode(p, [next(views) for _ in p.sizes]) for p in query.payloads]
        else:
            bound = [decode(p, [bytearray(b) for b in p.buffers or ()]) for p in query.payloads]
        self._debugger.bind(dict(zip(query.names, bound, strict=True)), self._session)
        return Ack()


def _paced(report: Report) -> Callable[[int], None]:
    """Reports how much is done of work of unknown size (such as bytes pickled), so that the receiver keeps waiting."""
    reported = time.monotonic()

    def advanced(done: int) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _PROGRESS_EVERY:
            reported = time.monotonic()
            report(Progress(done, 0))

    return advanced


def _data_connection(path: str, transfer: str) -> socket.socket:
    """A connection to the controller's data port, dialled and introduced by the agent, handed over as a descriptor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as handover:
        handover.settimeout(_STREAM_TIMEOUT)
        handover.connect(path)
        handover.sendall(transfer.encode() + b"\n")
        reply, fds, _, _ = socket.recv_fds(handover, 1024, 1)
        if not fds:
            raise UsageError(f"no way to the controller's data port: {reply.decode(errors='replace')}")
    sock = socket.socket(fileno=fds[0])
    sock.settimeout(_STREAM_TIMEOUT)
    return sock
