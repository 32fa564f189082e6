"""Forked children of a rank, such as those of ``multiprocessing`` and data loaders: copies that are not ranks.

A child has everything that jdist installed in the rank, but none of its threads. Whatever could answer for the rank, or
change its world, is disabled there, so that the child behaves like one forked from any script: it writes to the rank's
output, Ctrl-C ends it, and it may form a world of its own. `dist.get_rank()` still works, since samplers in data
loaders call it.
"""

import builtins
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jdist.wire.processes import set_name
from jdist.worker.compat import ipykernel as ipykernel_compat
from jdist.worker.kernel import sigint

_input = builtins.input  # Python's own: ipykernel puts another in its place before each cell.


def disable_in_children(kernel: Any, parts: Sequence[Callable[[], None]]) -> None:
    """From now on, call ``parts`` in each forked child before anything else; once, on the main thread."""

    def after_fork() -> None:
        set_name("jdist-child")
        signal.set_wakeup_fd(-1)  # else the rank's event loop would take the child's signals for the rank's
        if getattr(signal.getsignal(signal.SIGINT), "__module__", "") == sigint.__name__:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        builtins.input = _input
        ipykernel_compat.be_silent(kernel)
        for part in parts:
            part()

    os.register_at_fork(after_in_child=after_fork)


def end_with_cell(result: Any) -> NoReturn:
    """End a child that has come to the end of the cell, as a script's child ends with the script.

    ``result`` is IPython's ExecutionResult, or None when there is none.
    """
    error = result and (result.error_before_exec or result.error_in_exec)
    code = 1 if error else 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's own stream
            stream.flush()
    os._exit(code & 0xFF)
