"""Tracebacks: warm before the first error, and short for an interrupt.

IPython's own rendering parses each source file that a frame is in, which takes most of a second for torch's largest.
It has a fast way for long files that looks the same, which is taken here for all. An interrupt needs only the cell's
lines. And what was rendered to be shown need not be rendered again for IPython's own record. The frames of jdist's
wrappers around torch's functions are nobody's business.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from types import TracebackType
from typing import Any

from IPython.core import ultratb

from jdist.worker.observe.call_log_codegen import FILE


def warm() -> None:
    """Render one traceback, in the process from which workers are forked, so that theirs come at once."""
    ultratb.FAST_THRESHOLD = 0
    _hide_wrappers()
    formatter: Any = ultratb.AutoFormattedTB
    formatter = formatter(mode="Context", theme_name="linux")
    try:
        int("an error to render")
    except ValueError:
        formatter.structured_traceback(*sys.exc_info())


def _hide_wrappers() -> None:
    """Take the wrappers' frames out of what is rendered; IPython would say how many it has left out."""
    formatter: Any = ultratb.VerboseTB
    original = formatter.get_records

    def get_records(self: Any, etb: TracebackType, *args: Any) -> Any:
        tb: TracebackType | None = etb
        while tb is not None:
            while tb.tb_next is not None and tb.tb_next.tb_frame.f_code.co_filename == FILE:
                tb.tb_next = tb.tb_next.tb_next
            tb = tb.tb_next
        return original(self, etb, *args)

    formatter.get_records = get_records


def shorten_interrupts(shell: Any) -> None:
    """Have a KeyboardInterrupt shown by the cell's lines it came through, and where in a library it was."""

    def show(
        shell: Any, kind: type[BaseException], error: BaseException, tb: TracebackType | None, **_offset: Any
    ) -> list[str]:
        lines = _cell_frames(shell, tb)
        text = [*lines, f"{kind.__name__}: {error}" if str(error) else kind.__name__]
        shell._showtraceback(kind, error, text)
        return text

    shell.set_custom_exc((KeyboardInterrupt,), show)


def render_once(shell: Any) -> None:
    """Have IPython's record of a failed cell take the traceback that was shown; it would render it a second time."""

    def recorded(error: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        return {"ename": type(error).__name__, "evalue": str(error), "traceback": list(shell._last_traceback or ())}

    shell._format_exception_for_storage = recorded


def _cell_frames(shell: Any, tb: TracebackType | None) -> list[str]:
    cells = getattr(shell.compile, "_filename_map", {})
    frames = traceback.extract_tb(tb)
    lines = []
    for frame in frames:
        if frame.filename in cells:
            source = linecache.getline(frame.filename, frame.lineno or 0).rstrip()
            lines.append(f"Cell In[{cells[frame.filename]}], line {frame.lineno}\n----> {frame.lineno} {source}")
    if frames and frames[-1].filename not in cells:
        last = frames[-1]
        lines.append(f"File {last.filename}:{last.lineno}, in {last.name}")
    return lines


warm()
