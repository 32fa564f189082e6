"""Breakpoints: every call that would stop in a debugger pauses the rank at that place, in any thread.

This does not include debuggers that prompt for input, such as `%debug`: see :mod:`jdist.worker.cells.shell`.
"""

import bdb
import os
import pdb  # noqa: T100 — for processes that are not ranks
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from jdist.core.ranks import RankSet
from jdist.core.topology import Topology
from jdist.worker import process

Pause = Callable[[FrameType], None]  # Pauses the calling thread in this frame, or in its innermost caller in user code.

_hook: Callable[[FrameType], None] | None = None  # What pauses this process; None if it is not a rank.
_passed: Counter[tuple[CodeType, int]] = Counter()  # How often each dist.breakpoint() was skipped.


def breakpoint(when: object = True, ranks: str | int | Iterable[int] | None = None) -> None:  # noqa: A001
    """Pause this rank here if ``when`` is true and the rank is in ``ranks``, such as "0,2-3" or 1 (default: any).

    ``when`` is a value, such as ``torch.isnan(loss)``. Outside a cluster, this calls Python's own breakpoint().
    """
    __tracebackhide__ = True
    if not when or (ranks is not None and _rank() not in _chosen(ranks)):
        return
    frame = sys._getframe(1)
    if _hook is not None:
        _hook(frame)
    elif sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        pdb.Pdb().set_trace(frame)  # as the hook does, in this frame instead of its own
    else:
        sys.breakpointhook()  # noqa: T100 — the user's call


def install(kernel: Any, pause: Pause) -> None:
    """Make every breakpoint in this process call ``pause``. Call this once, before user code runs."""
    global _hook
    import torch.distributed as dist  # here, as jdist.breakpoint is also for processes without torch

    from jdist.worker.debug.frames import UserCode
    from jdist.worker.observe.call_log import OWN_FILES

    OWN_FILES.add(__file__)
    attached, own = sys.breakpointhook, os.getpid()
    is_user_code = UserCode(kernel.shell, lambda count: count)

    def stop(frame: FrameType) -> None:
        if os.environ.get("PYTHONBREAKPOINT") == "0":
            return
        if os.getpid() != own:
            _report_in_child(is_user_code.describe(frame, frame.f_lineno).place)
        elif kernel.debugger is not None and kernel.debugger.is_started:
            attached()  # debugpy's, which does nothing without a front end
        else:
            pause(frame)

    def stop_at_caller(*_: object, **__: object) -> None:
        stop(sys._getframe(1))

    def stop_on_rank(rank: int = 0, skip: int = 0, **_: object) -> None:
        """Pause one rank; the others run until they wait for it. The timeouts of groups are long enough for that."""
        frame = sys._getframe(1)
        place = frame.f_code, frame.f_lasti
        _passed[place] += 1
        if _passed[place] > skip and _rank() == rank:
            stop(frame)

    _hook, sys.breakpointhook = stop, stop_at_caller
    debuggers: Any = bdb.Bdb  # The base class of pdb, IPython's debugger and others.
    debuggers.set_trace = lambda _, frame=None, **__: stop(frame or sys._getframe(1))
    distributed: Any = dist
    distributed.breakpoint = stop_on_rank


def _rank() -> int:
    own = process.rank()
    return int(os.environ.get("RANK", "0")) if own is None else own


def _chosen(ranks: str | int | Iterable[int]) -> RankSet:
    if isinstance(ranks, str):
        return RankSet.parse(ranks, Topology((int(os.environ.get("WORLD_SIZE", "1")),)))
    return RankSet([ranks] if isinstance(ranks, int) else ranks)


def _report_in_child(at: str) -> None:
    """The line names no rank: the output does, and identical lines from children of all ranks are shown once."""
    print(f"jdist: ignored the breakpoint at {at} in a child process: only ranks can be paused", file=sys.stderr)
