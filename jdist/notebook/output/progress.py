"""Progress of starts and transfers: one line with a bar, in one place on the screen."""

import html
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from jdist.client.lifecycle.start import describe_missing
from jdist.core.messages.status import ClusterFacts
from jdist.core.quantities import format_bytes, format_count, format_rate, format_whole_seconds
from jdist.notebook.output.screen import Replaceable, Screen, line, plain

_WIDTH = 24
_FROM = 0.5  # Seconds before a transfer is shown at all.
_EVERY = 0.5  # Seconds between two changes.
_RECENT = 3.0  # Seconds of the past that count for the rate.
_NODES, _RANKS, _FORMING = 0.2, 0.7, 0.95  # A start's bar: the nodes' share, the ranks' share, and while forming.


def bar(part: float) -> str:
    """``━━━━━━╌╌╌╌`` for a part of 0 to 1."""
    full = round(min(1.0, max(0.0, part)) * _WIDTH)
    return "━" * full + "╌" * (_WIDTH - full)


def draw(what: str, part: float, words: str) -> dict[str, str]:
    """``{"text/plain", "text/html"}`` of a line with a bar."""
    percent = int(min(1.0, max(0.0, part)) * 100)
    label = html.escape(what)
    meter = f'<progress value="{percent}" max="100" aria-label="{label}" style="vertical-align:middle"></progress>'
    return {
        "text/plain": f"{what} {bar(part)} {words}",
        "text/html": f"<div>{label} {meter} {html.escape(words)}</div>",
    }


class TransferProgress:
    """Shows a transfer after half a second, and at most twice a second; where nothing can be replaced, only its end."""

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock()
        self._next = self._began + _FROM
        self._output = Replaceable(screen)
        self._lock = threading.Lock()
        self._is_over = False
        self._last = (0, 0)  # Bytes done and in total, as last reported.
        self._moved = 0  # Bytes of all parts, where parts are moved one after the other.
        self._past: list[tuple[float, int]] = [(self._began, 0)]

    def update(self, what: str, done: int, total: int) -> None:
        """Report the bytes moved so far; called from the client's threads. Fewer than before: a new part has begun."""
        with self._lock:
            now = self._clock()
            self._moved += done - self._last[0] if done >= self._last[0] else done
            self._last = (done, total)
            if self._is_over or not self._output.is_live or now < self._next:
                return
            self._next = now + _EVERY
            if not total:
                self._output.show(line(f"{what} …"))
                return
            part = done / total if total else 1.0
            words = [f"{int(part * 100)} %", f"{format_bytes(done)} of {format_bytes(total)}"]
            self._past = [(at, moved) for at, moved in self._past if at > now - _RECENT] or self._past[-1:]
            at, moved = self._past[0]
            self._past.append((now, self._moved))
            if now > at and (rate := (self._moved - moved) / (now - at)):
                words += [format_rate(rate), f"{format_whole_seconds((total - done) / rate)} left"]
            self._output.show(draw(what, part, " · ".join(words)))

    def finish(self, text: str) -> None:
        """Show ``text`` in the end, with the total where progress was shown."""
        with self._lock:
            self._is_over = True
            if not self._output.is_shown or not self._moved:
                self._output.show(line(text) if self._output.is_shown else plain(text))
                return
            seconds = self._clock() - self._began
            rate = f" · {format_rate(self._moved / seconds)}" if seconds > 0 else ""
            self._output.show(line(f"{text} · {format_bytes(self._moved)} in {seconds:.1f} s{rate}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Show how far a transfer came that did not finish."""
        with self._lock:
            if not self._is_over and self._output.is_shown:
                done, total = self._last
                at = f" at {format_bytes(done)} of {format_bytes(total)}" if total else ""
                self._output.show(line(f"stopped{at}"))
            self._is_over = True


def start_part(facts: ClusterFacts) -> float:
    """How much of a start is done, 0 to 1. A missing node is assumed to bring as many ranks as the others."""
    if facts.phase == "ready":
        return 1.0
    if facts.phase == "forming":
        return _FORMING
    here = sum(bool(host) for host in facts.hostnames)
    missing = facts.nnodes - here
    ranks = sum(facts.nproc_per_node) + missing * max([1, *facts.nproc_per_node])
    return _NODES * here / max(1, facts.nnodes) + _RANKS * facts.ready / max(1, ranks)


def describe_start(facts: ClusterFacts, seconds: float) -> str:
    """The line that is shown while a cluster starts, ``seconds`` after that began."""
    if facts.phase != "ready":
        return f"cluster {facts.name}: {describe_missing(facts)} · {seconds:.0f} s"
    nodes = format_count(facts.topology.nnodes, "node")
    hosts = ", ".join(sorted(set(facts.hostnames)))
    ranks = format_count(sum(facts.nproc_per_node), "rank")
    return f"cluster {facts.name}: {ranks} on {nodes} ({hosts}) · {facts.backend} · ready in {seconds:.1f} s"


class StartProgress:
    """Shows a start, changed at most twice a second; ends as the line that describes the started cluster."""

    def __init__(self, screen: Screen, timeout: float | None, clock: Callable[[], float] = time.monotonic):
        self._output = Replaceable(screen)
        self._until = f", waiting up to {timeout:.0f} s" if timeout else ", waiting as long as it takes"
        self._clock = clock
        self._began = clock()
        self._next = self._began

    def update(self, facts: ClusterFacts | None, waiting: str) -> None:
        """Show the cluster as it is now; ``waiting`` says what its launcher waits for.

        There are no ``facts`` of a cluster that is being started on another host.
        """
        now = self._clock()
        if not self._output.is_live or now < self._next:
            return
        self._next = now + _EVERY
        if facts is None:
            drawn = draw("starting", 0.0, format_whole_seconds(now - self._began))
        else:
            more = self._until if "" in facts.hostnames else ""
            drawn = draw("starting", start_part(facts), describe_start(facts, now - self._began) + more)
        if waiting:
            drawn["text/plain"] += f"\n{waiting}"
            drawn["text/html"] += f"<div>{html.escape(waiting)}</div>"
        self._output.show(drawn)

    def finish(self, facts: ClusterFacts, seconds: float) -> None:
        """Show that the cluster is ready, ``seconds`` after the start began."""
        text = describe_start(facts, seconds)
        self._output.show(line(text) if self._output.is_shown else plain(text))
