"""History: samples of what was used during the last hour, in a bounded amount of memory. Safe for use by threads."""

import bisect
import math
import threading
from array import array
from collections.abc import Sequence

from jdist.agent.resources.usage import Usage
from jdist.core.messages.resources import Series

_NODE = -1  # The key of the node's own series.
_PEAKS = ("memory", "gpu_memory")  # Quantities of which a point is the highest sample; of others it is the mean.


class UsageHistory:
    """The last samples, ``capacity`` at least and less than twice as many. A sample takes 4 bytes for each quantity."""

    def __init__(self, capacity: int = 3600):
        self._capacity = capacity
        self._lock = threading.Lock()
        self._times = array("d")
        self._series: dict[tuple[int, str], array[float]] = {}

    def add(self, at: float, usage: Usage) -> None:
        """Add a sample that was taken at the time ``at``, later than all others."""
        with self._lock:
            values = {(_NODE, name): value for name, value in usage.node.items()}
            for key, quantities in usage.processes.items():
                values |= {(key, name): value for name, value in quantities.items()}
            for place in values.keys() - self._series.keys():
                self._series[place] = array("f", [math.nan]) * len(self._times)
            self._times.append(at)
            for place, series in self._series.items():
                series.append(values.get(place, math.nan))
            if len(self._times) >= 2 * self._capacity:
                self._drop_older_half()

    def _drop_older_half(self) -> None:
        del self._times[: self._capacity]
        for series in self._series.values():
            del series[: self._capacity]
        self._series = {place: s for place, s in self._series.items() if any(map(math.isfinite, s))}

    def read(self, now: float, seconds: float, points: int) -> tuple[tuple[float, ...], Series, dict[int, Series]]:
        """The last ``seconds`` as ``points`` at most: their ages, the node's series and those of each process.

        The limits between points stay where they are as time passes, so that a chart does not change its shape.
        """
        width = seconds / points
        with self._lock:
            first = bisect.bisect_left(self._times, now - seconds)
            times = self._times[first:]
            chosen = {place: series[first:] for place, series in self._series.items()}
        ends = [i for i in range(1, len(times)) if times[i] // width != times[i - 1] // width]
        spans = list(zip([0, *ends], [*ends, len(times)], strict=True))[-points:] if times else []
        node: Series = {}
        processes: dict[int, Series] = {}
        for (key, name), series in chosen.items():
            values = tuple(_merged(series[start:end], name in _PEAKS) for start, end in spans)
            if any(map(math.isfinite, values)):
                (node if key == _NODE else processes.setdefault(key, {}))[name] = values
        return tuple(max(0.0, now - times[end - 1]) for _, end in spans), node, processes


def _merged(samples: "array[float]", is_peak: bool) -> float:
    """One number for these samples; those that are unknown do not count."""
    known: Sequence[float] = samples
    total = sum(samples)
    if math.isnan(total):
        known = [value for value in samples if not math.isnan(value)]
        total = sum(known)
    if not known:
        return math.nan
    return max(known) if is_peak else total / len(known)
