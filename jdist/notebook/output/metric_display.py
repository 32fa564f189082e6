"""The display of a run's metrics: a chart below the run's output, drawn again as ranks log, at most twice a second."""

import math
import time

from jdist.client.run import CellRun
from jdist.notebook.output.screen import Replaceable, Screen, plain, weight

_LEAST = 0.5
_BYTES_PER_SECOND = 400_000  # The rate at which the chart may be sent again and again.
_SHARE = 0.1  # The most of the time that is spent on making charts.


class MetricDisplay:
    """The metrics of one run on a screen. Nothing is shown for a run that logs nothing."""

    def __init__(self, run: CellRun, screen: Screen):
        self._run = run
        self._screen = screen
        self._place = Replaceable(screen)
        self._drawn = 0  # The version that is shown.
        self._next = 0.0

    @property
    def due(self) -> float:
        """When to draw: infinite while there is nothing new, or, on a screen that takes only lines, until the end."""
        is_new = self._run.logged.version != self._drawn
        return self._next if is_new and (self._place.is_live or self._run.is_done) else math.inf

    def draw(self) -> None:
        """Draw what is new, if it is due or the run is over."""
        began = time.monotonic()
        due = self.due
        if due == math.inf or (began < due and not self._run.is_done):
            return
        self._drawn = self._run.logged.version
        bundle = self._run.metrics.bundle()
        self._place.show(bundle if self._screen.is_live else plain(bundle["text/plain"]))
        now = time.monotonic()
        self._next = now + max(_LEAST, weight(bundle) / _BYTES_PER_SECOND, (now - began) / _SHARE)
