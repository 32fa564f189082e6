"""What jdist uses of torch's profiler beyond its public interface: events without the tree that torch makes of them.

Checked on torch 2.13.0. Two of its properties matter here. It writes into freed memory, and crashes, when a scope that
began while it recorded ends after it was stopped and started again; so open scopes are counted. And it reports its
starts and stops on standard error unless its log level is set before the first start.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.autograd import profiler
from torch.autograd.profiler_util import EventList

from jdist.worker.compat.features import Feature

_PROFILER = Feature(
    "profiling cells",
    {
        "torch.autograd": "_profiler_enabled",
        "torch._C._autograd:_KinetoEvent": "start_thread_id is_user_annotation is_async device_resource_id",
    },
)

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "99"
_CODE = os.path.dirname(torch.__file__)
_OPTIM = os.path.join(_CODE, "optim")
_MOST_ROWS, _NAME_WIDTH = 10, 40  # Of the table of operators.

RawEvent = tuple[str, int, int, int, bool, bool, int]  # name, start and duration in ns, thread, scope, async, stream


@_PROFILER.needed_by
def start(activities: tuple[str, ...]) -> Any:
    """Record on this thread from now on. Raises RuntimeError if a profiler of the user's own does."""
    if torch.autograd._profiler_enabled():
        raise RuntimeError("a profiler of the cell's own is recording already")
    silent = _LOG_LEVEL in os.environ
    os.environ.setdefault(_LOG_LEVEL, _SILENT)
    uses_gpu = "cuda" in activities and torch.cuda.is_available()
    recording = profiler.profile(use_cpu="cpu" in activities, use_device="cuda" if uses_gpu else None)
    try:
        recording.__enter__()
    finally:
        if not silent:
            del os.environ[_LOG_LEVEL]
    return recording


def stop(recording: Any) -> list[RawEvent]:
    """Stop, and return the events; takes some 10 µs for each. A stream is -1 for an event of the host."""
    recording.__exit__(None, None, None)
    host = torch.autograd.DeviceType.CPU
    return [
        (
            event.name(),
            event.start_ns(),
            event.duration_ns(),
            event.start_thread_id(),
            event.is_user_annotation(),
            event.is_async(),
            -1 if event.device_type() == host else event.device_resource_id(),
        )
        for event in recording.kineto_results.events()
    ]


def operator_table(recordings: Sequence[Any]) -> str:
    """torch's own table of the operators that took longest; some 70 µs for each event that was recorded."""
    if not recordings:
        return ""
    device = recordings[0].use_device
    totals: dict[tuple[object, ...], Any] = {}
    for recording in recordings:
        for average in recording.key_averages():
            key = average.key, average.device_type, average.is_user_annotation
            totals[key] = totals[key].add(average) if key in totals else average
    found: Any = EventList(totals.values(), use_device=device)
    sort_by = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    table = found.table(sort_by=sort_by, row_limit=_MOST_ROWS, max_name_column_width=_NAME_WIDTH)
    return "\n".join(line.rstrip() for line in table.strip("\n").split("\n"))


class OpenScopes:
    """Counts the scopes (``record_function``) that the main thread has opened while it was recorded."""

    def __init__(self, on_end: Callable[[FrameType | None], None]) -> None:
        """``on_end`` is called when a scope has ended, with the innermost frame outside of torch's optimizers."""
        self._on_end = on_end
        self._is_recording = False
        self._begun = 0
        self._open: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._open)

    def note_recording(self, is_on: bool) -> None:
        """The main thread is recorded from now on, or not any more."""
        self._is_recording = is_on
        self._begun += is_on

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count them within this block."""
        scope: Any = profiler.record_function
        enter, leave = scope.__enter__, scope.__exit__
        main = threading.get_ident()

        def counting_enter(own: Any) -> Any:
            if threading.get_ident() != main:
                return enter(own)
            self._open.add(id(own))  # first: nothing must begin before it is counted
            begun = self._begun
            result = enter(own)
            if not self._is_recording and self._begun == begun:
                self._open.discard(id(own))
            return result

        def counting_leave(own: Any, *error: Any) -> Any:
            try:
                return leave(own, *error)
            finally:
                if threading.get_ident() == main:
                    self._open.discard(id(own))
                    self._on_end(_beyond_optimizers(sys._getframe(1)))

        scope.__enter__, scope.__exit__ = counting_enter, counting_leave
        try:
            yield
        finally:
            scope.__enter__, scope.__exit__ = enter, leave


def may_have_scopes(frame: FrameType | None) -> bool:
    """Whether a frame on this stack is torch's, or is called by it, so that one of its own scopes may be open."""
    while frame is not None:
        if _is_of_torch(frame):
            return True
        frame = frame.f_back
    return False


def _beyond_optimizers(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename.startswith(_OPTIM):
        frame = frame.f_back
    return frame


def _is_of_torch(frame: FrameType) -> bool:
    """Whether a frame is torch's own, or one of those that torch calls while an operator is on."""
    return frame.f_code.co_filename.startswith(_CODE) or frame.f_code.co_name.startswith("__torch_")
