"""The step mark: how a cell says where a step of its profile ends."""

from collections.abc import Callable

_markers: list[Callable[[], None]] = []  # Of the process's profiler, if it is a rank.


def profile_step() -> None:
    """Say that a step of the loop has ended, for a profile with a schedule; without effect if none is made.

    Without it, the steps of the first optimizer are counted.
    """
    for marker in _markers:
        marker()


def connect(marker: Callable[[], None]) -> None:
    """Have ``marker`` called by :func:`profile_step`, alone."""
    _markers[:] = [marker]
