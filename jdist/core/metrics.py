"""The series of a run: what ranks have logged, by name and rank, in bounded memory.

A series holds every point, or every ``stride``-th: those whose index is divisible by it, so that series of ranks that
log alike have the same steps.
"""

import threading
from array import array
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from jdist.core.messages.runs import MetricPoints, MetricsLogged

_POINT = 24  # Bytes.
_MOST_OF_ONE = 10_000
_MOST_OF_ALL = 1_000_000  # Points of a run.
_LEAST_OF_ONE = 500
_MOST_NAMES = 200


class MetricSeries(Struct, frozen=True):
    """One name on one rank. The columns are as long as each other; steps are in the order in which they were logged."""

    steps: "array[int]"
    values: "array[float]"
    times: "array[float]"  # Seconds of the rank's wall clock.
    first: int  # The index of the first point in the columns.
    stride: int
    count: int  # Number of points that were logged.
    newest: tuple[int, float, float]  # Step, value and time of the newest, which may not be among the columns.
    nonfinite: int  # How many points were NaN or infinite.
    first_nonfinite: int  # The step of the first of them.
    nonfinite_since: int | None  # The step from which on all were; None if the newest is finite.


class RunMetrics:
    """What the ranks of one run have logged. Fed on one thread, and read from any.

    A series has at least ``least`` points, and all of them have ``most`` if there are not too many of them.
    """

    def __init__(self, run: int, most: int = _MOST_OF_ALL, least: int = _LEAST_OF_ONE) -> None:
        self.run = run
        self._most = most
        self._least = least
        self.version = 0  # Grows with each message.
        self._series: dict[str, dict[int, MetricSeries]] = {}
        self._lock = threading.Lock()

    def feed(self, message: MetricsLogged) -> int:
        """Add points; by how many bytes this has grown, or shrunk."""
        grown = 0
        with self._lock:
            for points in message.points:
                ranks = self._series.get(points.name)
                if ranks is None and len(self._series) >= _MOST_NAMES:
                    continue  # ranks limit their names to as many, but may have different ones
                ranks = self._series.setdefault(points.name, {})
                before = ranks.get(points.rank)
                grown -= 0 if before is None else len(before.steps)
                ranks[points.rank] = joined = _joined(before, points, self._limit())
                grown += len(joined.steps)
            self.version += 1
        return grown * _POINT

    def _limit(self) -> int:
        """The most points of a series."""
        count = sum(len(ranks) for ranks in self._series.values()) + 1
        return min(_MOST_OF_ONE, max(self._least, self._most // count))

    def message(self) -> MetricsLogged:
        """All of it as one message."""
        with self._lock:
            series = [(name, rank, s) for name, ranks in self._series.items() for rank, s in ranks.items()]
            return MetricsLogged(self.run, tuple(_points(*each) for each in series))

    def snapshot(self) -> dict[str, dict[int, MetricSeries]]:
        """``{name: {rank: series}}``, names in the order in which they came, ranks in order."""
        with self._lock:
            found = {}
            for name, ranks in self._series.items():
                stride = max(series.stride for series in ranks.values())
                found[name] = {rank: _copied(_thinned(ranks[rank], stride)) for rank in sorted(ranks)}
            return found


def _joined(old: MetricSeries | None, points: MetricPoints, limit: int) -> MetricSeries:
    """The series with further points. Columns are changed in place unless they are thinned.

    Points that it already has are left out: an agent sends the newest again to another controller.
    """
    times = array("d", points.times)
    is_again = old is not None and points.first < old.count
    if old is None or (is_again and times and times[0] > old.newest[2]):  # another process has the rank's place
        empty = array("q"), array("d"), array("d")
        old = MetricSeries(*empty, points.first, points.stride, 0, points.newest, 0, 0, None)
    if points.count <= old.count:
        return old
    stride = max(old.stride, points.stride)
    old = _thinned(old, stride)
    first = points.first + max(0, -(-(old.count - points.first) // points.stride)) * points.stride
    skipped = (first - points.first + -first % stride) // points.stride
    step = stride // points.stride
    is_empty = not old.steps
    columns: tuple[tuple[array[Any], bytes], ...]
    columns = (old.steps, points.steps), (old.values, points.values), (old.times, points.times)
    for column, data in columns:
        column.extend(array(column.typecode, data)[skipped::step])
    series = replace(
        old,
        first=first + -first % stride if is_empty else old.first,
        count=points.count,
        newest=points.newest,
        nonfinite=points.nonfinite,
        first_nonfinite=points.first_nonfinite,
        nonfinite_since=points.nonfinite_since,
    )
    while len(series.steps) > limit:
        series = _thinned(series, series.stride * 2)
    return series


def _points(name: str, rank: int, s: MetricSeries) -> MetricPoints:
    columns = s.steps.tobytes(), s.values.tobytes(), s.times.tobytes()
    nonfinite = s.nonfinite, s.first_nonfinite, s.nonfinite_since
    return MetricPoints(rank, name, *columns, s.first, s.stride, s.count, s.newest, *nonfinite)


def _thinned(series: MetricSeries, stride: int) -> MetricSeries:
    """A copy in which only the points remain whose index is divisible by ``stride``; the series itself if all are."""
    step = stride // series.stride
    if step == 1:
        return series
    skipped = -series.first % stride // series.stride
    return replace(
        series,
        steps=series.steps[skipped::step],
        values=series.values[skipped::step],
        times=series.times[skipped::step],
        first=series.first + skipped * series.stride,
        stride=stride,
    )


def _copied(series: MetricSeries) -> MetricSeries:
    return replace(series, steps=series.steps[:], values=series.values[:], times=series.times[:])
