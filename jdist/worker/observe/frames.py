"""Python frames of a thread, read from another thread: the torch.distributed function and the store wait it is in."""

import sys
from types import CodeType, FrameType
from typing import Any

from jdist.worker.compat import torch as torch_compat

# Code of the Python functions that are on the stack while a store is waited for; filled by worker/groups/patches.
STORE_WAITS: set[CodeType] = set()
_NEAR = 3  # Innermost frames that are searched for a wait at a store.


def frames_of(thread: int) -> list[FrameType]:
    """The frames of a thread (``threading.get_ident``), innermost first; empty once it has ended."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


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
    for frame in frames[:_NEAR]:
        if frame.f_code in STORE_WAITS or frame.f_code.co_name == torch_compat.STORE_BARRIER:
            return frame
    # Group construction in C++ waits for the peers' addresses in the store.
    is_helper = bool(frames) and frames[0].f_code.co_name == torch_compat.GROUP_HELPER
    return frames[0] if is_helper and frames[0].f_code.co_filename.endswith(torch_compat.C10D_FILE) else None


def store_port(wait: FrameType) -> int | None:
    """Port of the TCPStore at which this frame waits, where the cell waits for it by name."""
    store: Any = wait.f_locals.get("store")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    port = getattr(store, "port", None)
    return int(port) if isinstance(port, int) else None
