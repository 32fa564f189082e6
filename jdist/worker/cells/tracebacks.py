"""Tracebacks: rendered fast from the first error on, and short for an interrupt, which needs only the cell's lines.

IPython's rendering parses each frame's source file, most of a second for torch's largest. Its way for long files looks
the same, and is taken for all, with the like frames of a recursion folded. Nothing is rendered twice; frames of jdist's
functions around torch's are left out.
"""

import linecache
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any

import stack_data.core
from IPython.core import interactiveshell, ultratb
from stack_data.utils import collapse_repeated

from jdist.worker import process
from jdist.worker.cells.shell import InputRefused
from jdist.worker.cells.user_code import described, text_of
from jdist.worker.compat.ipykernel import cell_numbers, reuse_shown_traceback, show_traceback, show_unless
from jdist.worker.observe.call_log import OWN_FILES

_RUNS_CELLS = interactiveshell.__file__  # IPython's own frames; it leaves them out of other tracebacks.


def warm() -> None:
    """Render one traceback, in the process from which workers are forked, so that theirs come at once."""
    ultratb.FAST_THRESHOLD = 0  # lines of a file above which IPython takes its fast way
    _hide_own_frames()
    formatter: Any = ultratb.AutoFormattedTB
    formatter = formatter(mode="Context", theme_name="linux")
    try:
        int("an error to render")
    except ValueError:
        formatter.structured_traceback(*sys.exc_info())


def _hide_own_frames() -> None:
    """Take jdist's frames around torch's functions out of what is rendered; IPython alone would write how many."""
    formatter: Any = ultratb.VerboseTB
    original = formatter.get_records

    def get_records(self: Any, etb: TracebackType, *args: Any) -> Any:
        etb = _within_script(etb)
        tb: TracebackType | None = etb
        while tb is not None:
            while tb.tb_next is not None and tb.tb_next.tb_frame.f_code.co_filename in OWN_FILES:
                tb.tb_next = tb.tb_next.tb_next
            tb = tb.tb_next
        return _short_records(partial(original, self), etb, *args)

    formatter.get_records = get_records
    syntax: Any = ultratb.SyntaxTB
    structured = syntax.structured_traceback

    def structured_traceback(self: Any, kind: type, error: Any, frames: Any, *args: Any, **options: Any) -> list[str]:
        if isinstance(frames, list):  # of an error in code that the cell compiles or imports
            inside = process.script_frames(frames)
            frames = [f for f in frames if f.filename != _RUNS_CELLS] if inside is None else inside
        return list(structured(self, kind, error, frames, *args, **options))

    syntax.structured_traceback = structured_traceback


def _within_script(etb: TracebackType) -> TracebackType:
    """The part of a traceback within the script that the cell runs; all of it for any other cell."""
    runs = [tb for tb in _chain(etb) if tb.tb_frame.f_code.co_filename == process.__file__]
    return (runs[-1].tb_next if runs else None) or etb


def _short_records(records_of: Callable[..., list[Any]], etb: TracebackType, *args: Any) -> list[Any]:
    """The records of a traceback, where the many like frames of a recursion are one: IPython's fast way has each."""
    found: list[Any] = []
    frames = [(tb.tb_frame, tb.tb_lasti, tb.tb_lineno) for tb in _chain(etb)]
    shown: list[tuple[FrameType, int, int]] = []

    def add_shown() -> None:
        link: TracebackType | None = None
        for frame in reversed(shown):
            link = TracebackType(link, *frame)
        if link is not None:
            found.extend(records_of(link, *args))
        shown.clear()

    collapse: Any = collapse_repeated
    for piece in collapse(frames, key=lambda f: (f[0].f_code, f[2]), collapser=_repeated):
        if isinstance(piece, tuple):
            shown.append(piece)
        else:
            add_shown()
            found.append(piece)
    add_shown()
    return found


def _chain(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _repeated(frames: list[Any], keys: list[tuple[CodeType, int]]) -> Any:
    """The record of frames that are left out, described without a look into their source files."""
    found = stack_data.core.RepeatedFrames(frames, keys)
    counts = Counter(keys).most_common()
    text = ", ".join(f"{code.co_qualname} at line {line} ({count} times)" for (code, line), count in counts)
    module: Any = ultratb
    return module.FrameInfo(text, None, None, None, None, sd=found)


def adapt(shell: Any) -> None:
    """Show a KeyboardInterrupt by the cell's lines it came through and where in a library it was; render once."""

    def show(
        shell: Any, kind: type[BaseException], error: BaseException, tb: TracebackType | None, **_offset: Any
    ) -> list[str]:
        if isinstance(error, InputRefused):
            show_traceback(shell, kind, error, [])  # its message says it all
            return []
        cells, lines = cell_numbers(shell), []
        frames = [f for f in traceback.extract_tb(tb) if f.filename not in OWN_FILES]
        for frame in frames:
            if frame.filename in cells:
                source = linecache.getline(frame.filename, frame.lineno or 0).rstrip()
                lines.append(f"Cell In[{cells[frame.filename]}], line {frame.lineno}\n----> {frame.lineno} {source}")
        if frames and frames[-1].filename not in cells:
            last = frames[-1]
            lines.append(f"File {last.filename}:{last.lineno}, in {last.name}")
        lines.append(f"{kind.__name__}: {error}" if str(error) else kind.__name__)
        show_traceback(shell, kind, error, lines)
        return lines

    def show_without_text(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> bool:
        """Show an error whose text cannot be had, which IPython would ask for; False if it can be."""
        if text_of(error)[0] is not None:
            return False
        lines = traceback.format_tb(tb and _within_script(tb))
        text = described(error)
        show_traceback(shell, kind, Exception(text), ["".join(lines), text])  # the shell asks for its text
        return True

    shell.set_custom_exc((KeyboardInterrupt, InputRefused), show)
    show_unless(shell, show_without_text)
    reuse_shown_traceback(shell, lambda error: text_of(error)[0] or "")


warm()
