"""ClusterPanel: shows a cluster, with buttons that act on its ranks, also while a cell runs; and its follower."""

import asyncio
from collections.abc import Callable
from typing import Any

from ipywidgets import Combobox, Text
from msgspec import structs

from jdist.client.blocking import Cluster, bridge
from jdist.client.cluster import AsyncCluster
from jdist.client.follow import ANSWER_TIMEOUT, RETRY_AFTER, ClusterFollower, Observations, watched_pause
from jdist.core.errors import UsageError
from jdist.core.messages.status import Notice, StatusReport
from jdist.core.observation import Verdict
from jdist.core.ranks import describe_fresh_ranks, describe_ranks
from jdist.core.remedy import Remedy
from jdist.core.stacks import StepKind
from jdist.notebook.output.recorded import recorded_bundle
from jdist.notebook.panel import html, widgets
from jdist.notebook.panel.html import Sight
from jdist.notebook.panel.part import LATE, PanelPart, Visibility
from jdist.notebook.text.limits import cut
from jdist.notebook.text.remedy_text import command, typed, worded
from jdist.wire.transport.keys import Connection

_HINT = "all, 0-3,7, node=1, dp=0, !2"
_UNSEEN_PAUSE = 10.0  # Seconds until it is asked again whether a browser shows the panel, while cells run.
_MOST_OUTPUT = 2000  # Characters that are shown of a cell that was run by a button.
_UNSEEN = "no browser has shown this for a while; it resumes when one does"


class PanelFollower(ClusterFollower):
    """Calls ``show(sight)`` on the client's loop, at most twice a second. Pauses if cells run and no browser looks."""

    def __init__(self, cluster: AsyncCluster, show: Callable[[Sight], None], visibility: Visibility):
        self._cluster = cluster
        self._show = show
        self._visibility = visibility
        self._sight = Sight("connecting", f"connecting to cluster {cluster.name}")
        self._state = "watching"
        super().__init__()
        self.add_done_callback(self._handle_end)

    @property
    def connection(self) -> Connection:
        return self._cluster.link.connection

    def wants_observations(self, report: StatusReport) -> bool:
        if not report.runs:
            self._visibility.end()
            self._state = "watching"
            return True
        if self._state == "watching":
            self._visibility.begin()
        self._state = "live" if self._visibility.is_visible() else "paused"
        return self._state == "live"

    def handle_report(self, report: StatusReport, observations: Observations) -> None:
        self._set(Sight(self._state, _UNSEEN if self._state == "paused" else "", report, observations))

    def handle_silence(self, error: Exception) -> None:
        is_late = isinstance(error, TimeoutError) and self.observer is not None
        late = f"its controller has not answered for {ANSWER_TIMEOUT:.0f} s"
        self._keep("silent", late if is_late else str(error) or "its controller does not answer")

    def handle_notice(self, notice: Notice) -> None:
        """The session shows notices."""

    async def attaches_again(self) -> bool:
        await self._cluster.revived()
        link = self._cluster.link
        if link.lost:
            self._keep("gone", worded(link.loss()))
        return not link.lost

    def pause(self) -> float | None:
        if self._sight.state == "silent":
            return RETRY_AFTER
        if self._state == "paused":
            self._visibility.probe()
            return _UNSEEN_PAUSE
        if self._state == "live" and self._sight.found is not None:
            return watched_pause(len(self._sight.found.ranks))
        return None

    def _handle_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._keep("gone", f"the panel failed ({type(error).__name__}: {error}); {typed('panel')} opens another")

    def _keep(self, state: str, note: str) -> None:
        """Show a state in which nothing new is known, with what was known last."""
        self._set(Sight(state, note, self._sight.found, self._sight.looked))

    def _set(self, sight: Sight) -> None:
        if sight != self._sight:
            self._sight = sight
            self._show(sight)


class ClusterPanel(PanelPart):
    """``widget`` is shown. ``on_gone`` is called when the connection to the cluster is lost for good."""

    def __init__(self, cluster: Cluster, kernel: Any, on_gone: Callable[[], None]):
        super().__init__(kernel)
        self._cluster = cluster
        self._on_gone = on_gone
        self._sight = Sight("connecting", f"connecting to cluster {cluster.name}")
        self._page = 0
        self._remedies: tuple[object, ...] = ()
        self._follower: PanelFollower | None = None
        self._is_closed = False
        self._runs: set[int] = set()
        self._to_restart: tuple[int, ...] = ()  # The ranks whose restart the user has to confirm.
        self._make()
        self._draw(self._sight)

    def _make(self) -> None:
        self._header, self._warning, self._table, self._groups, self._footer = (widgets.markup() for _ in range(5))
        self._visibility = Visibility(lambda: not self._delivery.is_late, self._refresh_soon, self._parentless)
        self._verdicts = widgets.column()
        tooltip = f"ranks that the buttons act on: {_HINT}"
        self._ranks = widgets.field(Combobox, "on ranks", tooltip, placeholder=_HINT, options=("all",))
        self._ranks.style.description_width = "auto"
        stops = "interrupt cells that run there; all variables are kept"
        replaces = "replace the ranks' processes; their variables are lost"
        self._pause: Any = self._button(
            "Pause", "stop ranks at their next line; cells then run in their frames", self._stop_there
        )
        self._controls = widgets.row(
            self._ranks,
            self._button("Interrupt", stops, lambda: self._interrupt(self._chosen()), "stop"),
            self._button("Restart …", replaces, self._confirm_restart, "refresh"),
            self._pause,
        )
        self._steps = widgets.row(
            self._button("Continue", "resume paused ranks", lambda: self._resume("continue"), "play"),
            self._button("Step", "run to the next line", lambda: self._resume("step"), "step-forward"),
            self._button(
                "Next call",
                "resume until each rank is about to begin a collective",
                lambda: self._resume("next_call"),
                "forward",
            ),
            self._button("Where", "the paused stacks as one tree", self._where),
        )
        self._question = widgets.markup()
        self._confirmation = widgets.row(
            self._question,
            self._button("Restart them", "replace the processes now", self._restart, "refresh", "danger"),
            self._button("Keep them", "do nothing", self._cancel_restart),
        )
        widgets.set_visible(self._confirmation, is_visible=False)
        self._pager = widgets.row(
            self._button("Previous", "the ranks before these", lambda: self._turn(-1), "arrow-left"),
            self._button("Next", "the ranks after these", lambda: self._turn(1), "arrow-right"),
        )
        ranks_head, groups_head = (widgets.markup(html.draw_heading(words)) for words in ("Ranks", "Groups"))
        above = (
            self._header,
            self._warning,
            self._verdicts,
            self._controls,
            self._steps,
            self._confirmation,
            self._message,
        )
        tables = ranks_head, self._table, self._pager, groups_head, self._groups
        self.widget = widgets.column(*above, *tables, self._footer, self._visibility.widget)

    # ------------------------------------------------------------ following the cluster

    def open(self) -> None:
        """Begin to follow the cluster; from any thread, and without waiting."""

        async def begin() -> None:
            if not self._is_closed:
                draw = self._parentless.wrap(self._draw)
                self._follower = PanelFollower(self._cluster.asynchronous, draw, self._visibility)

        bridge().begin(begin())

    def close(self) -> None:
        """Stop following the cluster; from any thread, and without waiting."""
        self._is_closed = True

        async def end() -> None:
            follower, self._follower = self._follower, None
            if follower is not None:
                await follower.close()

        bridge().begin(end())

    # ------------------------------------------------------------ drawing

    def _draw(self, sight: Sight) -> None:
        self._sight = sight
        found = sight.found
        self._header.value = html.draw_header(sight)
        self._footer.value = html.draw_footer(sight)
        self._groups.value = html.draw_groups(found)
        self._after_click()
        self._draw_table()
        verdicts = found.verdicts if found is not None else ()
        if sight.state in ("silent", "gone"):  # then suggested actions would have no effect
            verdicts = tuple(structs.replace(verdict, remedies=()) for verdict in verdicts)
        self._draw_verdicts(verdicts)
        widgets.set_visible(self._controls, sight.state != "gone")
        widgets.set_visible(self._pause, found is not None and bool(found.runs))
        widgets.set_visible(self._steps, found is not None and any(row.paused is not None for row in found.ranks))
        if found is not None:
            names = ["all", *found.facts.groups, *(f"node={n}" for n in range(found.facts.topology.nnodes))]
            self._ranks.options = tuple(names)
            runs = {number for number, _, _, _ in found.runs}
            if runs - self._runs:
                self._show_message("")  # it is older than the cell that began to run
            self._runs = runs
        if sight.state == "gone":
            self._on_gone()

    def _after_click(self) -> None:
        is_late = self._delivery.is_late and self._sight.state not in ("connecting", "gone")
        self._warning.value = html.draw_warning(LATE) if is_late else ""

    def _draw_table(self) -> None:
        count = len(self._sight.found.ranks) if self._sight.found is not None else 0
        self._page = min(self._page, html.pages(count) - 1)
        self._table.value = html.draw_ranks(self._sight, self._page)
        widgets.set_visible(self._pager, html.pages(count) > 1)
        previous, following = self._pager.children
        previous.disabled = self._page == 0
        following.disabled = self._page == html.pages(count) - 1

    def _turn(self, by: int) -> None:
        self._page = max(0, self._page + by)
        self._draw_table()

    def _draw_verdicts(self, verdicts: tuple[Verdict, ...]) -> None:
        """Draw the verdicts. Their buttons are made anew only when they change: a replaced one cannot be pressed."""
        remedies = tuple((verdict.run, verdict.kind, verdict.remedies) for verdict in verdicts)
        if remedies != self._remedies:
            self._remedies = remedies
            self._verdicts.children = [
                widgets.column(widgets.markup(), *map(self._remedy, verdict.remedies)) for verdict in verdicts
            ]
        for verdict, shown in zip(verdicts, self._verdicts.children, strict=True):
            shown.children[0].value = html.draw_verdict(verdict)

    def _remedy(self, remedy: Remedy) -> Any:
        """A button for a suggested action; one that runs a cell has a field for the cell beside it."""
        label = f"{command(remedy)}: {remedy.effect}"
        if remedy.action == "interrupt":
            chosen, run = remedy.ranks or None, remedy.run
            return self._button(label, remedy.effect, lambda: self._interrupt(self._cluster.select(chosen), run))
        if remedy.action != "run_cell":
            return widgets.markup(html.draw_message(f"→ {label}", is_error=False))
        code = widgets.field(Text, "cell", f"the cell for {label}", placeholder="such as dist.barrier()")
        code.style.description_width = "auto"
        return widgets.row(self._button(label, remedy.effect, lambda: self._run(code.value, remedy.ranks)), code)

    # ------------------------------------------------------------ actions

    def _chosen(self) -> tuple[int, ...]:
        return self._cluster.select(self._ranks.value.strip() or None)

    def _interrupt(self, ranks: tuple[int, ...], run: int = 0) -> None:
        """Interrupt what runs on these ranks, or of that one run only."""

        async def interrupt(cluster: AsyncCluster) -> str:
            runs = [(n, on) for n, _, on, _ in (await cluster.status()).runs if run in (0, n)]
            running = [f"run {n}" for n, on in runs if set(ranks) & set(on)]
            await cluster.interrupt(ranks, run=run)
            if not running:
                return f"nothing is running on {describe_ranks(ranks)}"
            kept = "every namespace is kept, the group is re-formed before the next cell"
            return f"interrupting {', '.join(running)}; {kept}"

        what = f"run {run}" if run else describe_ranks(ranks)
        self._submit(f"interrupting {what}", interrupt(self._cluster.asynchronous))

    def _stop_there(self) -> None:
        async def pause(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            return str(await cluster.pause(ranks)) or f"nothing is running on {describe_ranks(ranks)}"

        chosen = self._chosen()
        self._submit(f"pausing {describe_ranks(chosen)}", pause(self._cluster.asynchronous, chosen))

    def _resume(self, how: StepKind) -> None:
        async def resume(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            return str(await cluster.resume(how, ranks))

        chosen = self._chosen()
        self._submit(f"continuing {describe_ranks(chosen)}", resume(self._cluster.asynchronous, chosen))

    def _where(self) -> None:
        async def where(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            return str(await cluster.where(ranks))

        self._submit("asking where they are", where(self._cluster.asynchronous, self._chosen()))

    def _confirm_restart(self) -> None:
        """Ask for a second click, which counts for these ranks only: their variables are lost for good."""
        self._to_restart = self._chosen()
        self._question.value = html.draw_warning(f"What {describe_ranks(self._to_restart, 'holds')} will be lost.")
        widgets.set_visible(self._confirmation, is_visible=True)

    def _restart(self) -> None:
        async def restart(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            await cluster.restart(ranks)
            return f"{describe_fresh_ranks(ranks)}; the world is re-formed"

        self._cancel_restart()
        work = restart(self._cluster.asynchronous, self._to_restart)
        self._submit(f"restarting {describe_ranks(self._to_restart)}", work)

    def _cancel_restart(self) -> None:
        widgets.set_visible(self._confirmation, is_visible=False)

    def _run(self, code: str, ranks: str) -> None:
        async def run(cluster: AsyncCluster, chosen: tuple[int, ...]) -> str:
            done = await cluster.run(code, chosen)
            bundle = await asyncio.to_thread(recorded_bundle, cluster, await cluster.read_run(done.number))
            return cut(bundle["text/plain"], _MOST_OUTPUT)

        if not code.strip():
            raise UsageError("write the call that the ranks should make beside the button first")
        chosen = self._cluster.select(ranks)
        self._submit(f"running it on {describe_ranks(chosen)}", run(self._cluster.asynchronous, chosen))

    def _after_work(self, text: str, *, is_error: bool = False) -> None:
        super()._after_work(text, is_error=is_error)
        self._refresh_soon()

    def _refresh_soon(self) -> None:
        """Refresh now; from any thread."""
        if self._follower is not None:
            bridge().loop.call_soon_threadsafe(self._follower.poll_now)
