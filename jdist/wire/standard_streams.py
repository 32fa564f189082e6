"""Standard streams: those of jdist's own processes take any text, whatever their encoding."""

import io
import os
import sys

_FAILING = ("strict", "surrogateescape", "surrogatepass")  # Error handlers that raise for a character or another.


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
