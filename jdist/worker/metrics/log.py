"""``jdist.log``: the numbers of a training, from a cell to the chart below it."""

from typing import Any, Protocol


class MetricSink(Protocol):
    """Takes what is logged."""

    def add(self, step: Any, numbers: dict[str, Any]) -> None: ...


_sinks: list[MetricSink] = []  # That of this process, if it is a rank.


def log(step: int | None = None, **numbers: Any) -> None:
    """Log numbers under their names, such as ``jdist.log(loss=loss, lr=lr, step=i)``; the cell's output charts them.

    A number is a Python or NumPy number, or a tensor of one element. Without ``step``, the calls with the same names
    are counted from 0 in each cell. A call costs about a microsecond and never waits for a GPU, and does nothing
    outside of a cluster. Raises UsageError, naming the argument, for anything that is not one real number.
    """
    for sink in _sinks:
        sink.add(step, numbers)


def connect(sink: MetricSink) -> None:
    """Have :func:`log` call ``sink``, and nothing else."""
    _sinks[:] = [sink]


def disconnect() -> None:
    """In a forked child, which is no rank: log nothing."""
    _sinks.clear()
