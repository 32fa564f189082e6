"""Standard streams: those of jdist's own processes take any text, whatever their encoding."""

import contextlib
import io
import os
import sys

_FAILING = ("strict", "surrogateescape", "surrogatepass")  # Error handlers that raise for a character or another.


def say(text: str) -> None:
    """Write a line to standard error, if anybody can read it there; what is done must not depend on that."""
    with contextlib.suppress(OSError, ValueError):  # a pipe whose reader has gone, a full disk, a stream that is closed
        print(text, file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Have standard output and error replace what their encoding lacks, instead of raising UnicodeEncodeError.

    What is written to a closed stream is lost. Streams that are not Python's own, such as a kernel's, and those
    for which the user has chosen another error handler stay as they are.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
            stream.reconfigure(errors="replace")
