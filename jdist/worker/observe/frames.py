"""Python frames of a thread, read from another thread: the torch.distributed function and the store wait it is in."""

import sys
import threading
import traceback
from collections.abc import Container, Iterator
from types import CodeType, FrameType
from typing import Any

from jdist.worker.compat import torch as torch_compat
from jdist.worker.observe import call_log

# Code of the Python functions that are on the stack while a store is waited for; filled by worker/groups/patches.
STORE_WAITS: set[CodeType] = set()
_NEAR = 3  # Innermost frames that are searched for a wait at a store.


def frames_of(thread: int) -> list[FrameType]:
    """The frames of a thread (``threading.get_ident``), innermost first; empty once it has ended."""
    return list(_outwards(sys._current_frames().get(thread)))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def operation(frames: list[FrameType]) -> str | None:
    """The outermost public function of torch.distributed's API: what was called, not what it calls inside."""
    name = None
    for code in (f.f_code for f in frames):
        if code.co_filename.endswith(torch_compat.C10D_FILE) and not code.co_name.startswith(("_", "wrapper", "<")):
            name = code.co_name
    if name is None and frames and frames[0].f_code in STORE_WAITS:
        name = f"store.{frames[0].f_code.co_name}"
    return name


def store_wait(frames: list[FrameType]) -> FrameType | None:
    """The frame that waits for a key of a rendezvous store: new_group half entered, or store.wait."""
    return next((f for f in frames[:_NEAR] if _waits_for_store(f, is_innermost=f is frames[0])), None)


def _waits_for_store(frame: FrameType, *, is_innermost: bool) -> bool:
    code = frame.f_code
    if code in STORE_WAITS or code.co_name == torch_compat.STORE_BARRIER:
        return True
    # Group construction in C++ waits for the peers' addresses in the store.
    is_helper = code.co_filename.endswith(torch_compat.C10D_FILE) and code.co_name == torch_compat.GROUP_HELPER
    return is_innermost and is_helper


def store_port(wait: FrameType) -> int | None:
    """Port of the TCPStore at which this frame waits, where the cell waits for it by name."""
    store: Any = wait.f_locals.get("store")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return int(port) if isinstance(port, int) else None


def main_stack(cells: Container[str]) -> str:
    """The main thread's stack as Python prints it, from the cell on, where one of ``cells`` (files) runs.

    jdist's own functions around torch's are left out.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = [f for f in traceback.extract_stack(frame) if f.filename not in call_log.OWN_FILES]
    begun = next((i for i, f in enumerate(frames) if f.filename in cells), 0)
    return "".join(traceback.format_list(frames[begun:]))
