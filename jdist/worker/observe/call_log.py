"""Notes: each call that a cell makes of torch.distributed's public functions, as the calling thread writes it down.

torch's flight recorder knows no send, no recv and no root; it has no end of a call either. So functions that note
each call stand in for the public names, at about a microsecond a call (their text is made in call_log_codegen.py):
nothing is worked out then that can be worked out when somebody asks. A note holds no tensor and no Work alive.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed import distributed_c10d as c10d

from jdist.worker.observe import call_log_codegen
from jdist.worker.observe.call_log_codegen import AT, CODE, ENDED, FILE, LEFT, OP, STARTED, THREAD, WHAT

KEPT = 4000
"""Calls that are kept, and backward passes."""
BACKWARD = "backward"
"""torch.autograd's: DDP's collectives are called within it, in C++."""
COLLECTIVES = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"),
    *("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"),
    *("all_to_all_single", "all_reduce_coalesced", "all_gather_coalesced", "barrier", "monitored_barrier"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
TRANSFERS = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list")
_INSIDE_TOO = ("isend", "irecv")
"""Replaced in distributed_c10d as well, which compares a P2POp's function with its own; also a send goes through it."""
_STACK = 40
"""Frames above a cell's that are looked through for it."""
_LISTED = 64
"""Tensors of a list that are described."""
_NEWEST = 256
"""Of all threads' last calls, those among which one that is open is looked for."""


Seen = tuple[torch.Size, torch.dtype]
"""What is kept of a tensor. No other tuple is among a note's arguments."""
Record = list[Any]
"""A call as it is written down: see jdist/worker/observe/call_log_codegen.py."""


class Named(Struct, frozen=True, gc=False):
    """What is kept of a process group: torch's name of it."""

    name: str


class Note:
    """One call, as it is now. Times are nanoseconds of the wall clock; ``ended`` 0: it has not returned."""

    __slots__ = ("_record",)

    def __init__(self, record: Record):
        self._record = record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and other._record is self._record

    def __hash__(self) -> int:
        return id(self._record)

    @property
    def op(self) -> str:
        return str(self._record[OP])

    @property
    def asked(self) -> dict[str, Any]:
        """What is kept of the arguments, defaults included: tensors as Seen, groups as Named, lists as lists."""
        names, is_first_two = _described(self.op)
        kept = self._record[WHAT:]
        if is_first_two:
            shape, dtype, *others = kept
            kept = [shape if dtype is None else (shape, dtype), *others]
        return dict(zip(names, kept, strict=True))

    @property
    def line(self) -> int | None:
        """Of the cell; None for a call that no cell's line led to."""
        return _line(self._record[CODE], self._record[AT])

    @property
    def thread(self) -> int:
        return int(self._record[THREAD])

    @property
    def started(self) -> int:
        return int(self._record[STARTED])

    @property
    def ended(self) -> int:
        return int(self._record[ENDED])

    @property
    def has_failed(self) -> bool:
        """It raised."""
        return self._record[LEFT] is True

    @property
    def is_async(self) -> bool:
        """Whether it left a Work to be waited for."""
        return self._record[LEFT] is not None and not self.has_failed

    @property
    def work(self) -> object:
        """The Work that it left; None where it left none, or that is gone."""
        return self._record[LEFT]() if self.is_async else None

    @property
    def is_done(self) -> bool:
        """Whether it has returned and, where that left a Work to be waited for, whether that is over or given up."""
        if not self.ended or not self.is_async:
            return bool(self.ended)
        work: Any = self.work
        return work is None or bool(work.is_completed())


class Notes:
    """The last calls of this process, in the order in which they began."""

    def __init__(self) -> None:
        self._ring: deque[Record] = deque(maxlen=KEPT)
        self._pending: deque[Record] = deque(maxlen=KEPT)
        self._spans: deque[Record] = deque(maxlen=KEPT)
        self.formed_at = 0
        """When the world was formed, in nanoseconds of the wall clock: earlier calls were another generation's."""
        # What each call needs is a global name of its function's: looked up on an object it would cost as much again.
        self._names: dict[str, Any] = {
            "__name__": __name__,
            "_begun": 0,
            "_transfers": 0,
            "_cells": (),
            "_outwards": self._outwards,
            "_add": self._ring.append,
            "_add_span": self._spans.append,
            "_pending": self._pending,
            "_caller": sys._getframe,
            "_ident": threading.get_ident,
            "_now": time.time_ns,
            "_tensor": torch.Tensor,
            "_plain": _PLAIN,
            "_operation": type(dist.ReduceOp.SUM),
            "_kept": _kept,
            "_left": _left,
        }

    @property
    def cells(self) -> Container[str]:
        """File names of cells."""
        return self._names["_cells"]  # type: ignore[no-any-return]

    @cells.setter
    def cells(self, cells: Container[str]) -> None:
        self._names["_cells"] = cells

    @property
    def transfers(self) -> int:
        """Changes whenever a send or receive begins or returns: a group's own counter counts those, too."""
        return int(self._names["_transfers"])

    def install(self) -> None:
        """Put the functions in place of the public names, once a process, before user code runs."""
        exec(_code(), self._names)  # noqa: S102 - made of the signatures of torch's own functions
        for op in _signatures():
            function = self.noting(getattr(dist, op), op)
            setattr(dist, op, function)
            if op in _INSIDE_TOO:
                setattr(c10d, op, function)
        torch.autograd.backward = self.noting(torch.autograd.backward, BACKWARD)

    def all(self) -> list[Note]:
        """Oldest first."""
        return [Note(record) for record in list(self._ring)]

    def spans(self) -> list[Note]:
        """Backward passes, oldest first."""
        return [Note(record) for record in list(self._spans)]

    def since(self, began: int) -> list[Record] | None:
        """What was written down of the calls that began then or later, oldest first; None if not all of it is kept."""
        if not self._ring or self._ring[-1][STARTED] < began:
            return []
        kept = list(self._ring)
        first = next((i for i in range(len(kept) - 1, -1, -1) if kept[i][STARTED] < began), -1)
        return None if first < 0 and self.left_out else kept[first + 1 :]

    @property
    def left_out(self) -> int:
        """Calls that are not kept any more."""
        return int(self._names["_begun"]) - len(self._ring)

    def open(self, thread: int) -> Note | None:
        """The outermost call from which this thread has not returned."""
        newest = list(self._ring)[-_NEWEST:]
        return next((Note(r) for r in newest if r[THREAD] == thread and not r[ENDED]), None)

    def pending(self) -> list[Note]:
        """Sends and receives that have returned a Work which is still to be waited for, oldest first."""
        found = [n for n in map(Note, list(self._pending)) if not n.is_done]
        while self._pending and Note(self._pending[0]).is_done:
            self._pending.popleft()
        return [n for n in found if n.ended]

    def find(self, work: object) -> Note | None:
        """The call that returned this Work."""
        return next((n for n in map(Note, reversed(list(self._ring))) if n.is_async and n.work is work), None)

    def noting(self, original: Callable[..., Any], op: str) -> Callable[..., Any]:
        """The function that notes calls of ``original``, by the name of ``op``; ``install`` has made it."""
        function: FunctionType = self._names[op]
        signature = inspect.signature(original)
        optional = [p for p in signature.parameters.values() if p.default is not p.empty]
        function.__defaults__ = tuple(p.default for p in optional if p.kind is not p.KEYWORD_ONLY)
        function.__kwdefaults__ = {p.name: p.default for p in optional if p.kind is p.KEYWORD_ONLY}
        self._names[f"_original_{op}"] = original
        functools.update_wrapper(function, original)
        if op != BACKWARD:
            function.__module__ = dist.__name__  # where it is found under its name, by which it is pickled
        # torch.compile looks through it, and puts its own function in the original's place.
        function._torchdynamo_inline = original  # type: ignore[attr-defined]
        return function

    def _outwards(self, frame: FrameType | None) -> FrameType | type[_Nowhere]:
        """The innermost frame of a cell."""
        cells = self.cells
        for _ in range(_STACK):
            if frame is None:
                break
            if frame.f_code.co_filename in cells:
                return frame
            frame = frame.f_back
        return _Nowhere


class _Nowhere:
    """Stands for a cell's frame where there is none."""

    f_code = None
    f_lasti = 0


_PLAIN = frozenset({int, bool, str, type(None), type(dist.ReduceOp.SUM)})


def _kept(value: Any) -> Any:
    """What may be kept of an argument: enough to describe the call, and nothing that holds memory."""
    kind = type(value)
    if kind is torch.Tensor:
        return _seen(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [_kept(v) for v in value[:_LISTED]]
    if isinstance(value, dist.ProcessGroup):
        return Named(c10d._world.pg_names.get(value, ""))
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return _seen(value)
    return value.op if isinstance(value, dist.ReduceOp) else None  # type: ignore[attr-defined]


def _seen(tensor: torch.Tensor) -> Seen | None:
    try:
        return tensor.shape, tensor.dtype
    except RuntimeError:  # a nested tensor has no shape; the call itself will say whether it minds
        return None


def _left(result: object) -> weakref.ref[Any] | None:
    return weakref.ref(result) if isinstance(result, dist.Work) else None


def _line(code: CodeType | None, at: int) -> int | None:
    """Of the instruction at that offset."""
    if code is None:
        return None
    return next((line for begin, end, line in code.co_lines() if begin <= at < end), None)


@functools.cache
def _signatures() -> dict[str, inspect.Signature]:
    """Of torch's functions by name, but for those that this torch has not."""
    originals = {op: getattr(dist, op, None) for op in (*COLLECTIVES, *TRANSFERS)}
    return {op: inspect.signature(original) for op, original in originals.items() if original is not None}


@functools.cache
def _described(op: str) -> tuple[tuple[str, ...], bool]:
    """Names of the arguments that are kept, and whether the first takes two places."""
    signature = _signatures()[op]
    return call_log_codegen.described(signature), bool(call_log_codegen.tensor_of(signature))


@functools.cache
def _code() -> CodeType:
    """Of all the functions; their text is kept for tracebacks."""
    functions = (call_log_codegen.function(op, s, is_counted=op in _INSIDE_TOO) for op, s in _signatures().items())
    backward = call_log_codegen.span(BACKWARD, inspect.signature(torch.autograd.backward))
    text = "\n\n".join((*functions, backward))
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    return compile(text, FILE, "exec")


_code()  # when this is imported, which is before workers are forked
