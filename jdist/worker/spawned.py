"""A worker without a forkserver: what to run is the argument, its specification one line on standard input."""

import importlib
import sys

from jdist.wire.processes import die_with_parent


def main() -> None:
    """Call the function that the command line names with the line."""
    die_with_parent()
    module, _, function = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), function)(sys.stdin.buffer.readline())
