"""The step mark: how a cell marks the end of a step in its profile."""

from collections.abc import Callable

_markers: list[Callable[[], None]] = []  # That of the process's profiler, if the process is a rank.


def profile_step() -> None:
    """Mark the end of a training step, for a profile. Does nothing if the cell is not being profiled.

    Without it, the steps of the first optimizer are counted.
    """
    for marker in _markers:
        marker()


def connect(marker: Callable[[], None]) -> None:
    """Make :func:`profile_step` call ``marker``, and nothing else."""
    _markers[:] = [marker]
