"""Stack: where the main thread is, frame by frame, read from another thread."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Container

from jdist.worker.observe.call_log_codegen import FILE


def main_stack(cells: Container[str]) -> str:
    """As Python prints a stack, the innermost frame last; from the cell on, where one of ``cells`` (files) runs.

    jdist's wrappers around torch's functions are left out.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = [f for f in traceback.extract_stack(frame) if f.filename != FILE]
    begun = next((i for i, f in enumerate(frames) if f.filename in cells), 0)
    return "".join(traceback.format_list(frames[begun:]))
