"""Show a run on a screen until it is over, with the chart of its metrics below it.

The run has one display, which is replaced as it grows; the larger it is, the less often, so that what is sent again
stays in proportion to what is new. The chart is drawn again at most twice a second. Only the thread that follows the
run touches the screen.
"""

import asyncio
import contextlib
import contextvars
import math
import queue
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from jdist.client.cluster import Cluster
from jdist.client.run import CellRun
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, RanksResumed
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.runs import (
    Clear,
    CommSent,
    Display,
    InputRequest,
    MetricsLogged,
    Output,
    OutputItem,
    RankDone,
    RunEnded,
    RunStarted,
    Tail,
    Text,
)
from jdist.core.messages.status import Notice, Stopped
from jdist.core.outcome import WIDGET_VIEW, OutputLine
from jdist.core.ranks import RankSet
from jdist.notebook.output import missing_names
from jdist.notebook.output.render import render
from jdist.notebook.output.run_view import RunView, verdict_of, verdict_text
from jdist.notebook.output.screen import NotebookScreen, OutputPlace, Replaceable, Screen, plain, weight
from jdist.notebook.output.terminal_emulator import LineStream
from jdist.notebook.output.transcript import Transcript
from jdist.notebook.text import remedy_text

_LEAST_CHART = 0.5
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
        self._next = now + max(_LEAST_CHART, weight(bundle) / _BYTES_PER_SECOND, (now - began) / _SHARE)


_FIRST = 0.15  # Seconds before a run that is not over is shown at all.
_LEAST = 0.1
_PATIENCE = 3  # The user's interrupts after which the notebook is free again, even if the controller does not answer.
_GATHER = 0.5  # Seconds from the first rank's pause until the run counts as paused, although others have not paused.
_IDLE = 60.0  # Seconds between two looks at a paused run, of which nothing is heard.
_LATE = 0.5  # Seconds between two drawings of output that comes after a run's end.
_TOGETHER = 0.1  # Seconds for which a terminal's line waits for the same line of other ranks.
_CALM_BYTES_PER_SECOND = 20_000  # The rate while nothing but the clock changed.


class WidgetScreen(Protocol):
    """Shows widgets of ranks (see notebook/widgets)."""

    def show(self, run: int, display: Display, place: OutputPlace) -> None:
        """Show a widget that ranks have displayed in a run."""

    def clear(self, run: int, item: Clear) -> None:
        """Ranks have cleared the output of their cells."""

    def finish(self, ranks: Collection[int]) -> None:
        """A run of these ranks is over: show all that they have displayed before its cell ends."""

    def capture(self, item: Text | Display | Clear) -> bool:
        """Whether it is shown by the output widgets that have captured it."""


class RunDisplay:
    """One run on a screen. ``notices`` come first: what the user should know, such as a rank that died since. Names
    that ranks lack are sought in ``namespace``, the user's own.
    """

    def __init__(  # noqa: PLR0913 — options, by name
        self,
        cluster: Cluster,
        run: CellRun,
        screen: Screen,
        *,
        lead: int | None = None,
        timeout: float | None = None,
        notices: Sequence[str] = (),
        namespace: Mapping[str, object] | None = None,
        frames: str = "",
        widgets: WidgetScreen | None = None,
    ):
        self._cluster = cluster
        self._run = run
        self._screen = screen
        self._lead = lead
        self._timeout = timeout
        self._transcript = Transcript(run.ranks)
        self._lines = LineStream()
        self._held = Transcript(run.ranks)  # Lines that wait for the same of other ranks, until `_held_until`.
        self._held_until: float | None = None
        self._notices = list(notices)
        self._namespace = namespace or {}
        self._frames = frames
        self._events: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._output = Replaceable(screen)
        self._widgets = widgets if isinstance(screen, NotebookScreen) and screen.is_live else None
        self._metrics = MetricDisplay(run, screen)
        self._began = time.monotonic() - run.seconds
        self._next = time.monotonic() + _FIRST
        self._is_dirty = False
        self._will_redraw = False
        self._interrupts = 0
        self._paused_at: float | None = None  # When the first of the ranks paused that are paused now.
        self._is_background = self._is_watching = False
        self._pauses_shown = ""
        self._is_waiting = bool(run.behind) or (run.seconds > 0 and run.state == "queued")
        if run.behind:
            self._notices.append(f"waits for run {', '.join(map(str, run.behind))}, which holds its ranks")

    def follow(self, *, until_paused: bool = False) -> bool:
        """Show the run until it is over. A KeyboardInterrupt interrupts the run on its ranks and goes on showing; it is
        raised at the end if the run came to a good end all the same, and at once when it is the third.

        With ``until_paused``, return False as soon as the run is paused; it is then shown in the background.
        """

        def on_cluster(message: Message) -> None:
            if isinstance(message, Notice):
                self._events.put(message)

        unwatch = self._cluster.asynchronous.watch(on_cluster)
        try:
            if not self._is_watching:
                self._is_watching = True
                self._run.watch(self._events.put)
            is_over = self._follow(until_paused)
        except KeyboardInterrupt:  # perhaps between two steps: then the ranks were not interrupted yet
            self._run.cancel()
            raise
        finally:
            unwatch()
            if isinstance(self._screen, NotebookScreen):
                self._screen.end_status()
        if not is_over:
            self._draw(is_needed=True)
            self.follow_in_background()
            return False
        if self._widgets is not None:
            self._widgets.finish(self._run.ranks)
        with contextlib.suppress(KeyboardInterrupt):
            missing_names.advise(self._cluster, self._run, self._namespace)
        self._draw()
        self._run.on_late = self._show_late
        if self._interrupts and all(o.ok for o in self._run.outcomes.values()):
            raise KeyboardInterrupt
        return True

    def follow_in_background(self) -> None:
        """Show the run in a thread of its own until it is over, where the present cell's output is."""
        self._is_background = True
        follow, name = contextvars.copy_context().run, f"jdist-run-{self._run.number}"
        threading.Thread(target=follow, args=(self.follow,), name=name, daemon=True).start()

    def _follow(self, until_paused: bool) -> bool:
        """Show the run until it is over, or paused; whether it is over."""
        while True:
            try:
                if self._step():
                    return True
                if until_paused and self._is_paused():
                    return False
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._interrupts >= _PATIENCE:
                    raise
                text = "interrupting every rank; namespaces are kept"
                if self._interrupts > 1:
                    text = "interrupting again, including the cell's own `finally` and `except` blocks"
                self._notices = [*(n for n in self._notices if n != text), text]
                self._is_dirty = True
                self._run.cancel()

    def _show_late(self, message: Message) -> None:
        """Show, in the run's place, what the cell's threads and children write after its end; on the client's loop."""
        self._handle(message)
        self._release_lines()
        if not self._will_redraw:
            self._will_redraw = True
            asyncio.get_running_loop().call_later(max(_LATE, self._next - time.monotonic()), self._draw)

    def _step(self) -> bool:
        """Handle what has come, or draw when it is time to; True when the run is over."""
        due = self._next
        if self._run.paused:  # nothing changes but by an event, or when the ranks have had their time to pause
            since = self._paused_at or time.monotonic()
            due = self._next if self._is_dirty else time.monotonic() + _IDLE
            due = min(due, since + _GATHER) if not self._is_paused() else due
        due = min(due, self._metrics.due, self._held_until or due)
        timeout = max(0.0, due - time.monotonic())
        with contextlib.suppress(queue.Empty):
            while (event := self._events.get(timeout=timeout)) is not None:
                self._handle(event)
                self._release_lines(time.monotonic())
                timeout = 0.0
            return True
        self._release_lines(time.monotonic())
        if time.monotonic() >= self._next and (self._is_dirty or not self._run.paused):
            self._draw()
        elif self._output.is_shown:  # the chart stands below the output
            self._metrics.draw()
        if not self._screen.is_live and self._is_paused():
            self._show_pauses()
        return False

    def _is_paused(self) -> bool:
        """Whether each rank that is in the run is paused, or those that are not had their time."""
        if not self._run.paused or self._paused_at is None:
            return False
        is_whole = len(self._run.paused) + len(self._run.outcomes) >= len(self._run.ranks)
        return is_whole or time.monotonic() >= self._paused_at + _GATHER

    def _show_pauses(self) -> None:
        """On a screen that takes only lines, say where the run is paused, unless a verb has said so."""
        text = self.view().paused_text
        is_told = self._is_background and all(p.reason in ("step", "next_call") for p in self._run.paused.values())
        self._release_lines()
        if text != self._pauses_shown and not is_told:
            self._screen.show(plain(text))
        self._pauses_shown = text

    def _handle(self, event: Message) -> None:
        if isinstance(event, MetricsLogged):
            return  # the output does not change; the chart is drawn when it is due
        self._is_dirty = True
        match event:
            case Output() if self._screen.is_live:
                for item in event.items:
                    if not self._show_widget(item):
                        self._transcript.feed(item)
            case Output():
                for item in event.items:
                    self._hold_lines(self._lines.whole(item))
            case RankDone():
                self._transcript.close([event.rank])
            case RankPaused():
                self._paused_at = self._paused_at or time.monotonic()
            case RanksResumed():
                self._paused_at = time.monotonic() if self._run.paused else None
            case RunStarted():
                self._is_waiting = False
                self._notices = [n for n in self._notices if not n.startswith("waits for run")]
                self._began = time.monotonic()
            case Notice():
                self._notices.append(remedy_text.worded(event))
            case VerdictChanged(_, verdict) if verdict is not None and not self._screen.is_live:
                self._release_lines()
                self._screen.show(plain(verdict_text(verdict, not self._is_background)))
            case Stopped():
                self._notices.append(f"the connection to the cluster has ended: {remedy_text.worded(event)}")
            case InputRequest():
                self._release_lines()
                self._draw(is_needed=True)
                self._answer(event)
            case RunEnded():
                self._transcript.close()
                self._hold_lines(self._lines.rest())
                self._release_lines()

    def _show_widget(self, item: OutputItem) -> bool:
        """Whether it is a widget, or captured by one, that is shown by itself, below the output."""
        widgets = self._widgets
        if widgets is None or isinstance(item, Tail | CommSent):
            return False
        if item.area:
            return widgets.capture(item)
        if isinstance(item, Clear):
            widgets.clear(self._run.number, item)
        if not isinstance(item, Display) or WIDGET_VIEW not in item.data:
            return False
        if not self._output.is_shown:
            self._draw(is_needed=True)
        widgets.show(self._run.number, item, self._output.place)
        return True

    def _hold_lines(self, found: Iterable[tuple[Sequence[int], Sequence[str]]]) -> None:
        """Keep whole lines for a moment: ranks that print the same do not do so at once."""
        for ranks, lines in found:
            for line in lines:
                self._held.feed(Text(tuple(ranks), "stdout", f"{line}\n"))
                self._held_until = self._held_until or time.monotonic() + _TOGETHER

    def _release_lines(self, now: float = math.inf) -> None:
        """Show the lines that have been kept, if it is time."""
        if self._held_until is None or now < self._held_until:
            return
        for block in self._held.blocks():
            for part in block.parts:
                if isinstance(part.item, OutputLine):
                    self._screen.show(plain(f"[{RankSet(part.ranks)}] {part.item.text}"))
        self._held, self._held_until = Transcript(self._run.ranks), None

    def _answer(self, request: InputRequest) -> None:
        """Pass the rank's question on to the user; a run that asks where no user can answer is stopped."""
        try:
            if self._is_background:
                raise RuntimeError("the run is shown in the background")
            text = self._screen.ask(request.prompt, request.is_password)
        except (EOFError, OSError, RuntimeError, NotImplementedError) as e:
            self._notices.append(f"rank {request.rank} asked for input, which this front end cannot give ({e})")
            self._run.cancel()
            return
        self._cluster.answer_input(request.run, request.rank, text)

    def view(self) -> RunView:
        """The run as it stands."""
        run = self._run
        return RunView(
            run=run.number,
            ranks=tuple(run.ranks),
            state="done" if run.is_done else "waiting" if self._is_waiting else "running",
            elapsed=run.seconds if run.is_done else time.monotonic() - self._began,
            blocks=self._transcript.blocks(),
            outcomes=dict(run.outcomes),
            notices=tuple(self._notices),
            topology=self._cluster.topology,
            lead=self._lead,
            timeout=self._timeout,
            first_failed=run.first_failure,
            verdict=verdict_of(run),
            cluster=self._cluster.name,
            cluster_id=self._cluster.id,
            is_blocking=not self._is_background,
            paused=dict(run.paused),
            frames=self._frames,
        )

    def _draw(self, *, is_needed: bool = False) -> None:
        """Show the run as it stands; where that cannot be replaced, only if it is over or ``is_needed``."""
        now = time.monotonic()
        wait, pace = (_LEAST, _BYTES_PER_SECOND) if self._is_dirty else (1.0, _CALM_BYTES_PER_SECOND)
        if self._output.is_live or self._run.is_done or (is_needed and self._screen.is_live):
            bundle = render(self.view())
            self._output.show(bundle)
            wait = max(wait, weight(bundle) / pace)
            self._metrics.draw()
        if isinstance(self._screen, NotebookScreen) and not (self._run.is_done or self._is_background):
            self._screen.show_status(lambda: [*self._lines.open_lines(), self.view().footer])
        self._is_dirty = self._will_redraw = False
        self._next = now + wait
