"""Stack dumps: where a process is whose Python cannot run, because C code holds the interpreter's lock.

faulthandler needs no lock: upon a signal, a worker's main thread writes its stack to a file that its agent reads.
"""

import asyncio
import contextlib
import re
import signal
from collections.abc import Callable
from pathlib import Path

SIGNAL = signal.SIGRTMAX - 4  # Neither Python, nor torch, nor the debugger uses it.
_ARRIVAL = 0.3  # Seconds for the stack to be written.
_STEP = 0.01
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_CELL = re.compile(r"/ipykernel_\d+/\d+\.py$")  # The files under which ipykernel compiles cells.


async def read_place(path: Path, ask: Callable[[], None]) -> str:
    """Have the process write its stack to ``path``, by ``ask``; where it is, in words, "" if it did not write it."""
    deadline = asyncio.get_running_loop().time() + _ARRIVAL
    text, before = "", None
    with contextlib.suppress(OSError):  # the process may end meanwhile, and its files with it
        _empty(path)
        ask()
        while (not text or text != before) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_STEP)  # a change of the file triggers no event here
            before, text = text, _read(path)
    return describe_place(text)


def _empty(path: Path) -> None:
    path.write_text("")


def _read(path: Path) -> str:
    return path.read_text(errors="replace")


def describe_place(dump: str) -> str:
    """``cell line 3``, or ``f (train.py, line 5)`` where no cell is on the stack; "" for an empty dump."""
    frames = _FRAME.findall(dump)
    line = next((line for file, line, _ in frames if _CELL.search(file)), "")
    if line:
        return f"cell line {line}"
    return next((f"{name} ({file.rpartition('/')[2]}, line {line})" for file, line, name in frames), "")
