"""Record each call that a cell makes of torch.distributed's public functions.

torch's flight recorder knows no send, no receive and no root, and when a call returned it does not know either. So a
function that records the call stands in for each public one. A recorded call holds no tensor and no Work alive, and
whatever can be computed from it is computed when it is read. A recorded call costs about 2 µs (benchmarks/recording.py
on a 2-core VM).

torch numbers collectives, but no sends and receives. Counted here by channel, the n-th send meets the n-th receive of
its other end, so that it is known which half of a message is missing.
"""

import functools
import inspect
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from inspect import Parameter
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed import distributed_c10d as c10d

from jdist.core.errors import UsageError
from jdist.core.messages.observation import ANY, Channel
from jdist.core.outcome import FORKED
from jdist.worker import process
from jdist.worker.compat import torch as torch_compat

_Key = tuple[str, bool, int, int]  # Group, whether it sends, peer, tag.


class ChannelProgress:
    """The messages of one channel."""

    def __init__(self) -> None:
        self.begun = 0
        self.taken: dict[int, int] = {}  # Of receives from any rank: from whom they got how many.


class Channels:
    """The counts of all channels. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[_Key, ChannelProgress] = {}
        self._keys: dict[Any, _Key | None] = {}  # By what was passed besides the tensor.

    def begin(self, call: "LoggedCall") -> ChannelProgress | None:
        """Count a message and number its call; None if this rank is not in the group."""
        key = self._key(call)
        if key is None:
            return None
        with self._lock:
            count = self._counts.setdefault(key, ChannelProgress())
            count.begun += 1
            call.nth = count.begun
        return count

    def take_back(self, count: ChannelProgress) -> None:
        """The call has failed before a message was under way."""
        with self._lock:
            count.begun -= 1

    def is_from_any(self, call: "LoggedCall") -> bool:
        """Whether the call receives from any rank."""
        key = self._key(call)
        return key is not None and key[2] == ANY

    def took(self, counts: Iterable[ChannelProgress], source: object) -> None:
        """Record that receives from any rank got their messages from ``source``, if that is a rank."""
        if not isinstance(source, int) or source < 0:
            return
        with self._lock:
            for count in counts:
                count.taken[source] = count.taken.get(source, 0) + 1

    def read(self, pending: Iterable["LoggedCall"]) -> tuple[Channel, ...]:
        """All channels; ``pending`` are the messages that are not known to have arrived."""
        in_flight: dict[_Key | None, int] = {}
        for call in pending:
            key = self._key(call)
            in_flight[key] = in_flight.get(key, 0) + 1
        with self._lock:
            return tuple(
                Channel(*key, count.begun, in_flight.get(key, 0), tuple(sorted(count.taken.items())))
                for key, count in self._counts.items()
            )

    def _key(self, call: "LoggedCall") -> _Key | None:
        given = call.op, call.args[1:]
        if given not in self._keys:
            self._keys[given] = self._resolved(call)
        return self._keys[given]

    @staticmethod
    def _resolved(call: "LoggedCall") -> _Key | None:
        arguments = call.arguments
        group = arguments.get("group")
        name = torch_compat.world_name() if group is None else getattr(group, "name", None)
        if name is None:
            return None
        ranks = {found: members for _, found, members in torch_compat.groups()}
        return name, call.op == "isend", peer(arguments, ranks.get(name, ())), arguments.get("tag") or 0


def peer(arguments: Mapping[str, Any], members: tuple[int, ...]) -> int:
    """The global rank of the send's or receive's other end; ``members`` are the group's ranks in its own order."""
    ends = (global_rank(arguments, end, members) for end in ("src", "dst") if end in arguments)
    return next((rank for rank in ends if rank is not None), ANY)


def global_rank(arguments: Mapping[str, Any], end: str, members: tuple[int, ...]) -> int | None:
    """The global rank of ``src`` or ``dst``, also where the rank in the group was given."""
    inside = arguments.get(f"group_{end}")
    if inside is None:
        return arguments.get(end)
    return members[inside] if 0 <= inside < len(members) else None


OWN_FILES = {__file__}  # Files of the frames that stand between a caller and torch; tracebacks leave them out.
SCRIPTS: set[str] = set()  # File names of scripts that have made a call.
KEPT = 4000  # Calls that are kept, and functions that call collectives in C++.
COLLECTIVES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"),
    *("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all_single", "all_reduce_coalesced", "all_gather_coalesced", "barrier", "monitored_barrier"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
TRANSFERS = frozenset({"send", "recv", "isend", "irecv", "send_object_list", "recv_object_list"})
_RECORDED = [op for op in (*COLLECTIVES, *TRANSFERS) if hasattr(dist, op)]
_BACKWARD = "backward"
# Functions in whose course C++ calls collectives, which only the flight recorder sees, by the module they are in:
# autograd's pass backward, in which DDP reduces gradients, and the functional collectives.
_CALLERS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch.autograd, (_BACKWARD,)),
    (torch_compat.functional_collectives, torch_compat.names_of_functional_collectives()),
)
# Replaced in distributed_c10d as well, which compares a P2POp's function with its own; send and recv call them.
_INSIDE_TOO = ("isend", "irecv")  # Each is one message.
# Parameters by whose shape a call is described: the first of them that the function has.
_TENSORS = ("tensor", "input_tensor", "input", "tensors", "input_tensor_list", "input_list", "output", "output_tensor")
# Further parameters that are recorded.
_OTHERS = (
    *("src", "dst", "group_src", "group_dst", "tag", "op", "group", "input_split_sizes", "output_split_sizes"),
    "output_tensor_list",  # What an all_to_all takes, as against what it gives.
)
_DEPTH = 40  # Frames above the call that are searched for a cell's.
_LISTED = 64  # Tensors of a list that are described.
_ALL_THREADS: Any = range(sys.maxsize)  # As a set of their identifiers.
_NEWEST = 256  # How many recent calls (of all threads) are searched for one that has not returned.
_ASKED = (
    "by a value that is being pulled or inspected, outside of a cell, so no other rank would join the call. "
    "Call it in a cell, and pull the result"
)

TensorMeta = tuple[torch.Size, torch.dtype]  # What is recorded of a tensor. No other tuple is among a call's arguments.


class GroupName(Struct, frozen=True, gc=False):
    """What is recorded of a process group: torch's name of it."""

    name: str


class LoggedCall(Struct, eq=False, gc=False):
    """One call. Times are nanoseconds of the wall clock."""

    op: str
    code: CodeType | None  # The code of a cell, or of a script that it runs, that led to the call; None: none did.
    instruction: int  # Offset in `code`.
    thread: int
    started: int
    args: tuple[Any, ...]  # What is recorded of the arguments, in the order of `_recorded_names`.
    ended: int = 0  # 0: it has not returned.
    has_failed: bool = False  # It raised.
    work_ref: weakref.ref[Any] | None = None  # Of the Work that it returned.
    nth: int = 0  # Of a send or receive: its number in its channel, or that of the last message within it.

    @property
    def arguments(self) -> dict[str, Any]:
        """The recorded arguments, defaults included; first the one by whose shape the call is described, if any."""
        return dict(zip(_recorded_names(self.op), self.args, strict=True))

    @property
    def line(self) -> int | None:
        """Line of the cell or script."""
        lines = self.code.co_lines() if self.code is not None else ()
        return next((line for begin, end, line in lines if begin <= self.instruction < end), None)

    @property
    def file(self) -> str:
        """Name of the script; "" if a cell led to the call."""
        name = self.code.co_filename if self.code is not None else ""
        return os.path.basename(name) if name in SCRIPTS else ""

    @property
    def is_done(self) -> bool:
        """Whether it has returned and its Work, if any, is completed or gone."""
        work = self.work_ref() if self.ended and self.work_ref is not None else None
        return bool(self.ended) and (work is None or bool(work.is_completed()))


class _OpenCall(Struct, gc=False):
    """A send or receive that is under way around its messages."""

    call: LoggedCall
    from_any: list[ChannelProgress] = []  # The channels of its messages from any rank.


class _Ring(deque[LoggedCall]):
    """The newest calls, and how many there have been."""

    added = 0


class CallLog:
    """The last calls of this process, in the order in which they began."""

    def __init__(self) -> None:
        self.cells: Container[str] = ()  # File names of cells.
        self.askers: set[int] = set()  # Threads that answer questions about values: they may call no collective.
        self.transfers = 0  # Changes when a send or receive begins or returns; a group's counter counts them.
        self.formed_at = 0  # Wall clock in ns when the world was formed; earlier calls do not count.
        self.channels = Channels()
        self.has_broken_group = False  # A call or a wait failed since the world was formed, and its group with it.
        # Called by a thread that is about to begin a call, with whether C++ will call the collectives in its course.
        self.on_call: Callable[[LoggedCall, bool], None] | None = None
        self.on_return: Callable[[FrameType], None] | None = None  # Called once a call has returned, in its frame.
        self._calls = _Ring(maxlen=KEPT)
        self._callers = _Ring(maxlen=KEPT)
        self._transfers: deque[LoggedCall] = deque(maxlen=KEPT)
        self._outer: dict[int, _OpenCall] = {}  # By thread: the call around messages that it is in.

    def world_formed(self) -> None:
        """Start the counts of sends and receives anew; unfinished messages of an earlier world never arrive."""
        self.formed_at = time.time_ns()
        self.channels = Channels()
        self.has_broken_group = False
        self._transfers.clear()

    def record_failure(self, error: BaseException) -> None:
        """Record that a call of torch.distributed, or the wait for it, raised ``error``."""
        self.has_broken_group = self.has_broken_group or torch_compat.breaks_group(error)

    def refuse_inherited(self) -> None:
        """In a forked child: refuse what would wait for the connections and threads of its rank, which it lacks."""
        self.askers = _ALL_THREADS

    def forget_inherited(self) -> None:
        """In a forked child, whose groups are now its own: refuse nothing."""
        self.askers = set()

    def check(self, op: str) -> None:
        """Raise UsageError if this thread, or any in this process, may call no collective."""
        if self.askers is _ALL_THREADS and op != _BACKWARD:  # which has collectives only in modules of DDP
            raise UsageError(f"{op} {FORKED}")
        if self.askers is not _ALL_THREADS and threading.get_ident() in self.askers:
            raise UsageError(f"{op} was called {_ASKED}")

    def install(self) -> None:
        """Put functions that record their calls in place of the public ones, once a process, before user code runs."""
        for op in _RECORDED:
            function = self._logged(getattr(dist, op), op, self._calls)
            function.__module__ = dist.__name__  # where it is found under its name, by which it is pickled
            setattr(dist, op, function)
            if op in _INSIDE_TOO:
                setattr(c10d, op, function)
        for module, names in _CALLERS:
            for name in names:
                setattr(module, name, self._logged(getattr(module, name), name, self._callers))

    def _logged(self, original: Callable[..., Any], op: str, ring: _Ring) -> Callable[..., Any]:
        public = getattr(dist, op) if ring is self._calls else original
        logged: Any = _maker(public, op, _recorded_names(op) if ring is self._calls else ())(self, original, op, ring)
        given = [p for p in inspect.signature(public).parameters.values() if p.default is not p.empty]
        logged.__defaults__ = tuple(p.default for p in given if p.kind is not p.KEYWORD_ONLY)
        logged.__kwdefaults__ = {p.name: p.default for p in given if p.kind is p.KEYWORD_ONLY}
        functools.update_wrapper(logged, original)
        torch_compat.compile_as(logged, original)
        return logged  # type: ignore[no-any-return]

    def _transfer(self, call: LoggedCall, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a logged call that sends or receives: a single message, or a call that consists of several."""
        __tracebackhide__ = True
        is_message, channels = call.op in _INSIDE_TOO, self.channels
        count = channels.begin(call) if is_message else None
        outer = self._outer.get(call.thread)
        if is_message:
            self.transfers += 1
            self._transfers.append(call)
            if outer is not None:
                outer.call.nth = call.nth
        else:
            own = self._outer[call.thread] = _OpenCall(call)
        result = None
        try:
            result = original(*args, **kwargs)
            if isinstance(result, dist.Work):
                call.work_ref = weakref.ref(result)
        except BaseException:
            call.has_failed = True
            raise
        finally:
            call.ended = time.time_ns()
            if is_message:
                self.transfers += 1
                if count is not None and result is None:
                    channels.take_back(count)
                elif count is not None and outer is not None and channels.is_from_any(call):
                    outer.from_any.append(count)
            else:
                channels.took(own.from_any, result)
                self._outer.pop(call.thread)
                if outer is not None:
                    self._outer[call.thread] = outer
        return result

    def cell_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of a cell, or of a script that it runs, from ``frame`` outwards."""
        in_script = process.is_script_running()
        for _ in range(_DEPTH):
            if frame is None or frame.f_code.co_filename in self.cells:
                return frame
            if in_script and frame.f_globals.get("__name__") == "__main__":
                SCRIPTS.add(frame.f_code.co_filename)
                return frame
            frame = frame.f_back
        return None

    def all(self) -> list[LoggedCall]:
        """Oldest first."""
        return list(self._calls)

    @property
    def newest(self) -> int:
        """When the newest call, or function that calls collectives in C++, began; 0: there was none."""
        return max((ring[-1].started for ring in (self._calls, self._callers) if ring), default=0)

    def callers(self) -> list[LoggedCall]:
        """The calls of functions that call collectives in C++, oldest first."""
        return list(self._callers)

    def since(self, began: int) -> list[LoggedCall] | None:
        """The calls that began then or later, oldest first; None if not all of them are kept."""
        if not self._calls or self._calls[-1].started < began:
            return []
        kept = list(self._calls)
        first = next((i for i in range(len(kept) - 1, -1, -1) if kept[i].started < began), -1)
        return None if first < 0 and self.left_out else kept[first + 1 :]

    @property
    def left_out(self) -> int:
        """Number of calls that are not kept any more."""
        return self._calls.added - len(self._calls)

    def open(self, thread: int) -> LoggedCall | None:
        """The outermost call from which this thread has not returned."""
        newest = list(self._calls)[-_NEWEST:]
        return next((c for c in newest if c.thread == thread and not c.ended), None)

    def pending(self) -> list[LoggedCall]:
        """Sends and receives that have returned a Work which is not completed, oldest first."""
        found = [c for c in list(self._transfers) if c.ended and not c.is_done]
        while self._transfers and self._transfers[0].is_done:
            self._transfers.popleft()
        return found

    def read_channels(self) -> tuple[Channel, ...]:
        """How many messages there have been in each channel since the world was formed."""
        return self.channels.read(c for c in list(self._transfers) if not c.is_done)

    def find(self, work: object) -> LoggedCall | None:
        """The call that returned this Work."""
        newest_first = reversed(list(self._calls))
        return next((c for c in newest_first if c.work_ref is not None and c.work_ref() is work), None)


@functools.cache
def _recorded_names(op: str) -> tuple[str, ...]:
    """The parameters that are recorded of a public function; first the one by whose shape a call is described."""
    known = inspect.signature(getattr(dist, op)).parameters
    return *[name for name in _TENSORS if name in known][:1], *(name for name in _OTHERS if name in known)


# The wrapper that records a call. It has the parameters of the function that it wraps, since to pack arguments, match
# them with names and unpack them takes longer than all the rest. It is compiled as if it stood at these very lines,
# where tracebacks and debuggers find it.
_LINE = sys._getframe().f_lineno
_WRAPPER = """
def _make(_log, _original, _op, _ring, _thread_id=threading.get_ident, _now=time.time_ns):
    _is_transfer = _op in TRANSFERS

    def {name}{parameters}:
        __tracebackhide__ = True
        if (_thread := _thread_id()) in _log.askers:
            _log.check(_op)
        _frame = sys._getframe(1)
        if _frame.f_code.co_filename not in _log.cells:
            _frame = _log.cell_frame(_frame)
        _code, _instruction = (_frame.f_code, _frame.f_lasti) if _frame is not None else (None, 0)
        _call = LoggedCall(_op, _code, _instruction, _thread, _now(), ({recorded}))
        if _log.on_call is not None:
            _log.on_call(_call, _ring is _log._callers)
            _call.args = ({recorded})  # They may have been changed in place.
            _call.started = _now()
        _ring.append(_call)
        _ring.added += 1
        if _is_transfer:
            _result = _log._transfer(_call, _original, {passed})
        else:
            try:
                _result = _original({passed})
                if _result is not None and isinstance(_result, dist.Work):
                    _call.work_ref = weakref.ref(_result)
            except BaseException as _error:
                _call.has_failed = True
                _log.record_failure(_error)
                raise
            finally:
                _call.ended = _now()
        if _log.on_return is not None:
            _log.on_return(sys._getframe())
        return _result
    return {name}
"""


_PASSED: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.KEYWORD_ONLY: "{}=", Parameter.VAR_KEYWORD: "**"}


@functools.cache
def _maker(public: Callable[..., Any], op: str, recorded: tuple[str, ...]) -> Callable[..., Any]:
    """Compile the wrapper of a public function, with that function's parameters; the result makes one for a log."""
    parameters = inspect.signature(public).parameters.values()
    bare = [p.replace(annotation=p.empty, default=p.default if p.default is p.empty else None) for p in parameters]
    source = _WRAPPER.format(
        name=op,
        parameters=inspect.Signature(bare),
        passed=", ".join(_PASSED.get(p.kind, "").format(p.name) + p.name for p in parameters),
        recorded="".join(f"{name} if type({name}) in _PLAIN else _kept({name}), " for name in recorded),
    )
    made: dict[str, Any] = {}
    exec(compile("\n" * _LINE + source, __file__, "exec"), globals(), made)  # noqa: S102 - as dataclasses does it
    return made["_make"]  # type: ignore[no-any-return]


_PLAIN = frozenset({int, bool, str, type(None), type(dist.ReduceOp.SUM)})


def _kept(value: Any) -> Any:
    """What is recorded of an argument: enough to describe the call, and nothing that holds memory."""
    kind = type(value)
    if kind is torch.Tensor:
        return _meta(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [_kept(v) for v in value[:_LISTED]]
    if isinstance(value, dist.ProcessGroup):
        return GroupName(torch_compat.group_name(value))
    if isinstance(value, torch.Tensor):
        with torch_compat.plain_tensors():
            return _meta(value)
    return value.op if isinstance(value, dist.ReduceOp) else None  # type: ignore[attr-defined]


def _meta(tensor: torch.Tensor) -> TensorMeta | None:
    try:
        return tensor.shape, tensor.dtype
    except RuntimeError:  # a nested tensor has no shape; the call itself will say whether it minds
        return None


# When this is imported, which is before workers are forked.
for _name in _RECORDED:
    _maker(getattr(dist, _name), _name, _recorded_names(_name))
for _module, _names in _CALLERS:
    for _name in _names:
        _maker(getattr(_module, _name), _name, ())
