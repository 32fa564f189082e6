"""The widget panel: a cluster looked at and steered in a notebook, with ipywidgets only, also while a cell runs.

It is HTML that is readable without any style; colours are Jupyter's, with fallbacks that suit light and dark. A state
is a sign and a word, never a colour alone.

A front end that can sends a widget's messages to a subshell of the kernel, a thread beside the one in which cells run
(JupyterLab since 4.4, ipykernel since 7.0). But ipykernel (7.4) delivers them where the widget was last written from,
so one that was made by a cell receives clicks only after the cell. Written without a parent message, it receives them
where the front end says, hence `ParentlessContext`.
"""

import asyncio
import html
import math
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import ipywidgets
from ipywidgets import Layout
from msgspec import Struct, structs

from jdist.client.cluster import AsyncCluster, Cluster
from jdist.client.follow import ANSWER_TIMEOUT, RETRY_AFTER, ClusterFollower, Observations, watched_pause
from jdist.client.threads import bridge
from jdist.core.errors import JdistError, sentence
from jdist.core.messages.observation import Observation
from jdist.core.messages.status import Notice, RankFacts, StatusReport
from jdist.core.outcome import WIDGET_VIEW
from jdist.core.quantities import format_count
from jdist.core.ranks import RankSet, describe_fresh_ranks, describe_ranks
from jdist.core.topology import Mesh
from jdist.notebook.session import Session
from jdist.notebook.text import remedy_text
from jdist.notebook.text.cluster_text import PAUSE_SIGN, group_rows, rank_row, status_bundle
from jdist.notebook.text.remedy_text import typed, worded
from jdist.notebook.widgets.context import ParentlessContext
from jdist.wire.transport.keys import Connection

_SIGNS = {"running": "▶", "idle": "○", "starting": "◔", "unreachable": "⚠", "gone": "✕"}
_NO_WIDGETS = "this front end shows no widgets, so here is the cluster as it was when the panel was opened"
_LINE = "1px solid var(--jp-border-color2,rgba(128,128,128,.35))"
_CELL = f"padding:2px 12px 2px 0;text-align:left;vertical-align:top;border-bottom:{_LINE}"
_NUMBER = _CELL.replace("text-align:left", "text-align:right") + ";font-variant-numeric:tabular-nums"
_MUTED = "opacity:.75"
_FONT = "font-size:var(--jp-ui-font-size1,13px);line-height:1.5;color:var(--jp-ui-font-color1,inherit)"
_BAR = "border-left:4px solid {};padding:2px 0 2px 10px;margin:6px 0"
_WARN = _BAR.format("var(--jp-warn-color1,#e08600)")
_ERROR = _BAR.format("var(--jp-error-color1,#d32f2f)")
_WORDS = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
_PRE = f"margin:0;{_WORDS};background:none;color:inherit;font-family:var(--jp-code-font-family,monospace)"


class Sight(Struct, frozen=True):
    """The panel's knowledge of its cluster at a moment."""

    state: str  # connecting, live, watching (nothing runs, so nothing is asked), silent (no answer) or gone.
    note: str = ""  # The reason for the state.
    found: StatusReport | None = None
    looked: Mapping[int, Observation] = {}  # The ranks' observations of themselves.


def draw_header(sight: Sight) -> str:
    """Name, ranks, nodes, backend, generation and state; and how many ranks do what."""
    if sight.found is None:
        return _box(f"<strong>{html.escape(sight.note or sight.state)}</strong>")
    facts, runs = sight.found.facts, sight.found.runs
    phase = ("a cell runs" if runs else "idle") if facts.phase == "ready" else facts.phase
    state = {"silent": "does not answer", "gone": "gone"}.get(sight.state, phase)
    words = [f"{facts.topology.world_size} ranks", format_count(facts.topology.nnodes, "node"), facts.backend]
    words += [f"generation {facts.generation}", f"<strong>{html.escape(state)}</strong>"]
    lines = [f"<strong>cluster {html.escape(facts.name)}</strong> · {' · '.join(words)}"]
    reason = sentence(facts.reason, facts.remedies, remedy_text.command)
    lines += [html.escape(text) for text in (reason, *sight.found.silences) if text]
    lines += [_run(sight.found.ranks, *run) for run in runs]
    return _box("".join(f"<div>{line}</div>" for line in lines))


def _run(rows: Sequence[RankFacts], number: int, state: str, ranks: tuple[int, ...], seconds: float) -> str:
    name = f"run {number} on ranks {RankSet(ranks)}"
    if state == "queued":
        return f"◔ {name}: queued"
    done = len(ranks) - sum(row.run == number for row in rows)
    if paused := [row.rank for row in rows if row.paused is not None and row.paused.run == number]:
        return f"{PAUSE_SIGN} {name}: {describe_ranks(paused, 'is')} paused"
    return f"▶ {name}: {html.escape(state)}, {done} of {len(ranks)} done, {seconds:.0f} s"


def draw_footer(sight: Sight) -> str:
    """How up to date the panel is."""
    text = {
        "connecting": "connecting",
        "live": "live: up to date within a second or so",
        "watching": "nothing runs, so nothing is asked; whatever changes is shown",
        "silent": "not up to date",
        "gone": "not up to date any more",
    }[sight.state]
    if sight.note and sight.found is not None:
        text += f": {sight.note}"
    return _box(html.escape(text), f"{_MUTED};margin-top:6px", 'role="status" ')


# ---------------------------------------------------------------- ranks


_HEADS = ("rank", "node", "device", "state", "doing", "CPU", "memory", "GPU", "GPU memory", "last line", "lost")
_ALWAYS = ("rank", "node", "state")
_NUMERIC = {"rank", "CPU", "memory", "GPU", "GPU memory"}


def draw_ranks(sight: Sight) -> str:
    """A row for each rank; columns that are empty are left out."""
    if sight.found is None or not sight.found.ranks:
        return ""
    rows = []
    for facts in sight.found.ranks:
        seen = sight.looked.get(facts.rank)
        cells = rank_row(facts, seen)
        sign = _SIGNS.get(facts.state, "·") if facts.paused is None else PAUSE_SIGN
        state = f"{sign} {cells['state']}"
        rows.append({**cells, "state": state, "device": seen.device if seen else "", "lost": facts.death})
    heads = [head for head in _HEADS if head in _ALWAYS or any(row.get(head) for row in rows)]
    states = ", ".join(f"{n} {state}" for state, n in Counter(map(_state, sight.found.ranks)).most_common())
    caption = f"Ranks {RankSet(row.rank for row in sight.found.ranks)}: {states}"
    styles = [_NUMBER if head in _NUMERIC else _CELL for head in heads]
    return _table(caption, heads, [[row.get(head, "") for head in heads] for row in rows], styles, has_caption=True)


def _state(row: RankFacts) -> str:
    return row.state if row.paused is None else "paused"


def draw_groups(found: StatusReport | None) -> str:
    """The groups, and the mesh as a grid of ranks."""
    if found is None:
        return ""
    grid = "" if found.facts.mesh is None else draw_mesh(Mesh(*found.facts.mesh))
    return _table("Groups", (), group_rows(found), (_CELL, _CELL, f"{_CELL};{_MUTED}")) + grid


def draw_mesh(mesh: Mesh) -> str:
    """Ranks in rows and columns: the last dimension is the columns, all before it are the rows."""
    *outer, last = mesh.names
    columns = mesh.sizes[-1]
    heads = ["", *(f"{last}={i}" for i in range(columns))]
    rows = []
    for first in range(0, math.prod(mesh.sizes), columns):
        label = " ".join(f"{name}={mesh.coordinate(first, name)}" for name in outer)
        rows.append([label, *map(str, range(first, first + columns))])
    return _table(f"Mesh {mesh}", heads, rows, [f"{_CELL};{_MUTED}", *[_NUMBER] * columns])


def _table(
    label: str, heads: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str], *, has_caption: bool = False
) -> str:
    """A table whose first column heads its rows; ``label`` names it for assistive technology."""
    caption = f'<caption style="text-align:left;{_MUTED};caption-side:top">{html.escape(label)}</caption>'
    top = "".join(f'<th scope="col" style="{s}">{html.escape(h)}</th>' for h, s in zip(heads, styles, strict=False))
    body = ""
    for first, *rest in rows:
        cells = "".join(f'<td style="{s}">{html.escape(c)}</td>' for c, s in zip(rest, styles[1:], strict=True))
        body += f'<tr><th scope="row" style="{styles[0]};font-weight:normal">{html.escape(first)}</th>{cells}</tr>'
    return (
        f'<table aria-label="{html.escape(label)}" style="{_FONT};border-collapse:collapse;margin:4px 0">'
        f"{caption if has_caption else ''}{f'<thead><tr>{top}</tr></thead>' if heads else ''}"
        f"<tbody>{body}</tbody></table>"
    )


# ---------------------------------------------------------------- messages


def draw_verdicts(sight: Sight) -> str:
    """Why runs make no progress; suggested actions are left out where they would have no effect."""
    verdicts = sight.found.verdicts if sight.found is not None else ()
    if sight.state in ("silent", "gone"):
        verdicts = tuple(structs.replace(verdict, remedies=()) for verdict in verdicts)
    texts = [html.escape(verdict.text(remedy_text.command)) for verdict in verdicts]
    return "".join(_box(f'<pre style="{_PRE}">{text}</pre>', _WARN, 'role="alert" ') for text in texts)


def draw_message(text: str, is_error: bool) -> str:
    """The result of the user's last action."""
    sign, style = ("✕ ", f"{_ERROR};{_WORDS}") if is_error else ("", _WORDS)
    return _box(sign + html.escape(text), style, 'role="status" ') if text else ""


def draw_warning(text: str) -> str:
    """A warning above the controls."""
    return _box(f"⚠ {html.escape(text)}", _WARN, 'role="note" ') if text else ""


def draw_heading(text: str) -> str:
    """A heading over a part of the panel."""
    return _box(html.escape(text), "font-weight:600;margin-top:6px", 'role="heading" aria-level="4" ')


def draw_snapshot(sight: Sight) -> dict[str, str]:
    """The cluster as it is now, as text and HTML, for where no widget can be shown."""
    if sight.found is None:
        return {"text/plain": sight.note, "text/html": draw_header(sight)}
    return status_bundle(sight.found, sight.looked, f"({_NO_WIDGETS})")


def _box(markup: str, style: str = "", attributes: str = "") -> str:
    return f'<div {attributes}style="{";".join(filter(None, (_FONT, style)))}">{markup}</div>'


_HINT = "all, 0-3,7, node=1, dp=0, !2"
LATE = (  # The panel's warning where clicks are late.
    "Here the buttons work only between cells: this front end does not hand clicks to the kernel while a cell runs. "
    "Until then, the Stop button of the notebook interrupts the ranks, and so does `jdist interrupt` in a terminal."
)


class Panel:
    """Shows itself as the last expression of a cell. ``close`` ends it; so does closing its widgets.

    With a session it shows whatever cluster that uses, else the one it was made for.
    """

    def __init__(self, kernel: Any, cluster: Cluster | None, session: Session | None = None):
        self._kernel = kernel
        self._cluster = cluster
        self._cluster_panel: ClusterPanel | None = None
        self._parentless = ParentlessContext(kernel)
        self._is_closed = False
        self._lock = threading.RLock()  # A cell and the client's loop may both change the cluster.
        self._parentless.run(self._make)
        self._unfollow = session.follow(self._parentless.wrap(self._use)) if session is not None else lambda: None

    def _make(self) -> None:
        self.widget = _column()
        self.widget.layout.padding = "4px"
        self.widget.comm.on_close(lambda _: self.close())
        self.widget.observe(lambda change: self.close() if change["new"] is None else None, "comm")
        self._use(self._cluster)

    def _use(self, cluster: Cluster | None) -> None:
        """Show this cluster from now on, or none."""
        with self._lock:
            if self._is_closed:
                return
            if self._cluster_panel is not None:
                self._cluster_panel.close()
            self._cluster, self._cluster_panel = cluster, None
            if cluster is None:
                self.widget.children = [_markup(draw_header(_no_cluster()))]
                return
            self._cluster_panel = ClusterPanel(cluster, self._kernel)
            self.widget.children = [self._cluster_panel.widget]
            self._cluster_panel.open()

    def close(self) -> None:
        """Stop following the cluster, and remove the widgets."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._unfollow()
            if self._cluster_panel is not None:
                self._cluster_panel.close()
            self._parentless.run(self.widget.close)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The widget; and for a front end without widgets, the cluster as it is now."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        sight = _no_cluster()
        if self._cluster is not None:
            try:
                sight = Sight("live", "", self._cluster.status())
            except JdistError as e:
                sight = Sight("gone", worded(e))
        return {**draw_snapshot(sight), WIDGET_VIEW: view}


class PanelFollower(ClusterFollower):
    """Calls ``show(sight)`` on the client's loop, at most twice a second."""

    def __init__(self, cluster: AsyncCluster, show: Callable[[Sight], None]):
        self._cluster = cluster
        self._show = show
        self._sight = Sight("connecting", f"connecting to cluster {cluster.name}")
        super().__init__()
        self.add_done_callback(self._handle_end)

    @property
    def connection(self) -> Connection:
        return self._cluster.link.connection

    def wants_observations(self, _: StatusReport) -> bool:
        return True

    def handle_report(self, report: StatusReport, observations: Observations) -> None:
        self._set(Sight("live" if report.runs else "watching", "", report, observations))

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
        if self._sight.state == "live" and self._sight.found is not None:
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


class ClusterPanel:
    """``widget`` shows one cluster, and acts on it."""

    def __init__(self, cluster: Cluster, kernel: Any):
        self._cluster = cluster
        self._parentless = ParentlessContext(kernel)
        self._delivery = ClickDelivery(kernel)
        self._sight = Sight("connecting", f"connecting to cluster {cluster.name}")
        self._follower: PanelFollower | None = None
        self._is_closed = False
        self._runs: set[int] = set()
        self._to_restart: tuple[int, ...] = ()  # The ranks whose restart the user has to confirm.
        self._make()
        self._draw(self._sight)

    def _make(self) -> None:
        self._header, self._warning, self._verdicts, self._message = (_markup() for _ in range(4))
        self._table, self._groups, self._footer, self._question = (_markup() for _ in range(4))
        self._table.layout.max_height = "480px"
        self._ranks = ipywidgets.Combobox(
            description="on ranks",
            tooltip=f"ranks that the buttons act on: {_HINT}",
            placeholder=_HINT,
            options=("all",),
            style={"description_width": "auto"},
            layout=Layout(width="300px"),
        )
        stops = "interrupt cells that run there; all variables are kept"
        replaces = "replace the ranks' processes; their variables are lost"
        pauses = "stop ranks at their next line; cells then run in their frames"
        self._pause = self._button("Pause", pauses, self._stop_there, "pause")
        self._continue = self._button("Continue", "resume paused ranks", self._resume, "play")
        self._controls = _row(
            self._ranks,
            self._button("Interrupt", stops, self._interrupt, "stop"),
            self._button("Restart …", replaces, self._confirm_restart, "refresh"),
            self._pause,
            self._continue,
        )
        self._confirmation = _row(
            self._question,
            self._button("Restart them", "replace the processes now", self._restart, "refresh", "danger"),
            self._button("Keep them", "do nothing", self._cancel_restart),
        )
        _set_visible(self._confirmation, is_visible=False)
        ranks_head, groups_head = (_markup(draw_heading(words)) for words in ("Ranks", "Groups"))
        above = self._header, self._warning, self._verdicts, self._controls, self._confirmation, self._message
        self.widget = _column(*above, ranks_head, self._table, groups_head, self._groups, self._footer)

    # ------------------------------------------------------------ following the cluster

    def open(self) -> None:
        """Begin to follow the cluster; from any thread, and without waiting."""

        async def begin() -> None:
            if not self._is_closed:
                self._follower = PanelFollower(self._cluster.asynchronous, self._parentless.wrap(self._draw))

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
        self._header.value = draw_header(sight)
        self._verdicts.value = draw_verdicts(sight)
        self._table.value = draw_ranks(sight)
        self._groups.value = draw_groups(found)
        self._footer.value = draw_footer(sight)
        self._draw_warning()
        _set_visible(self._controls, sight.state != "gone")
        _set_visible(self._pause, found is not None and bool(found.runs))
        _set_visible(self._continue, found is not None and any(row.paused is not None for row in found.ranks))
        if found is not None:
            names = ["all", *found.facts.groups, *(f"node={n}" for n in range(found.facts.topology.nnodes))]
            self._ranks.options = tuple(names)
            runs = {number for number, _, _, _ in found.runs}
            if runs - self._runs:
                self._show_message("")  # it is older than the cell that began to run
            self._runs = runs

    def _draw_warning(self) -> None:
        is_late = self._delivery.is_late and self._sight.state not in ("connecting", "gone")
        self._warning.value = draw_warning(LATE) if is_late else ""

    def _show_message(self, text: str, *, is_error: bool = False) -> None:
        self._message.value = draw_message(text, is_error)

    # ------------------------------------------------------------ actions

    def _chosen(self) -> tuple[int, ...]:
        return self._cluster.select(self._ranks.value.strip() or None)

    def _interrupt(self) -> None:
        async def interrupt(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            running = [f"run {n}" for n, _, on, _ in (await cluster.status()).runs if set(ranks) & set(on)]
            await cluster.interrupt(ranks)
            if not running:
                return f"nothing is running on {describe_ranks(ranks)}"
            kept = "every namespace is kept, the group is re-formed before the next cell"
            return f"interrupting {', '.join(running)}; {kept}"

        chosen = self._chosen()
        self._submit(f"interrupting {describe_ranks(chosen)}", interrupt(self._cluster.asynchronous, chosen))

    def _stop_there(self) -> None:
        async def pause(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            return str(await cluster.pause(ranks)) or f"nothing is running on {describe_ranks(ranks)}"

        chosen = self._chosen()
        self._submit(f"pausing {describe_ranks(chosen)}", pause(self._cluster.asynchronous, chosen))

    def _resume(self) -> None:
        async def resume(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            return str(await cluster.resume("continue", ranks))

        chosen = self._chosen()
        self._submit(f"continuing {describe_ranks(chosen)}", resume(self._cluster.asynchronous, chosen))

    def _confirm_restart(self) -> None:
        """Ask for a second click, which counts for these ranks only: their variables are lost for good."""
        self._to_restart = self._chosen()
        self._question.value = draw_warning(f"What {describe_ranks(self._to_restart, 'holds')} will be lost.")
        _set_visible(self._confirmation, is_visible=True)

    def _restart(self) -> None:
        async def restart(cluster: AsyncCluster, ranks: tuple[int, ...]) -> str:
            await cluster.restart(ranks)
            return f"{describe_fresh_ranks(ranks)}; the world is re-formed"

        self._cancel_restart()
        work = restart(self._cluster.asynchronous, self._to_restart)
        self._submit(f"restarting {describe_ranks(self._to_restart)}", work)

    def _cancel_restart(self) -> None:
        _set_visible(self._confirmation, is_visible=False)

    def _button(self, text: str, tooltip: str, on_click: Callable[[], object], icon: str = "", style: str = "") -> Any:
        """A button as wide as its words, whose errors are shown in the message."""

        def click(_: object) -> None:
            self._delivery.record_click()
            try:
                on_click()
            except JdistError as e:
                self._show_message(worded(e), is_error=True)
            self._draw_warning()

        layout = Layout(width="auto", max_width="100%", align_self="flex-start")
        made = ipywidgets.Button(description=text, tooltip=tooltip, icon=icon, button_style=style, layout=layout)
        made.on_click(self._parentless.wrap(click))
        return made

    def _submit(self, text: str, work: Coroutine[Any, Any, str]) -> None:
        """Do it without waiting, as this thread may be the one that the next click needs; show ``work``'s result."""
        self._show_message(f"{text} …")

        async def work_and_report() -> None:
            try:
                self._parentless.run(self._show_message, await work)
            except (JdistError, OSError) as e:  # TimeoutError is an OSError
                text = worded(e) if isinstance(e, JdistError) else str(e)
                self._parentless.run(self._show_message, text, is_error=True)
            if self._follower is not None:
                self._follower.poll_now()

        bridge().begin(work_and_report())


# ---------------------------------------------------------------- clicks while a cell runs


class ClickDelivery:
    """Whether clicks arrive while a cell runs, as far as is known."""

    def __init__(self, kernel: Any):
        self._kernel = kernel
        self._is_late: bool | None = None

    def record_click(self) -> None:
        """Record that a click has arrived in this thread."""
        self._is_late = threading.current_thread() is threading.main_thread()

    @property
    def is_late(self) -> bool:
        """Whether clicks arrive between cells only. Before the first click: whether no front end made a subshell."""
        if self._is_late is not None:
            return self._is_late
        if not getattr(self._kernel, "_supports_kernel_subshells", False):
            return True
        manager = getattr(getattr(self._kernel, "shell_channel_thread", None), "manager", None)
        return not (manager is not None and manager.list_subshell())


# ---------------------------------------------------------------- widgets


def _no_cluster() -> Sight:
    return Sight("gone", f"no cluster is in use; {typed('start')} to make one")


def _markup(text: str = "") -> Any:
    return ipywidgets.HTML(text, layout=Layout(margin="0", overflow="auto"))


def _row(*parts: Any) -> Any:
    """Widgets side by side, and below each other where there is no room."""
    return ipywidgets.HBox(parts, layout=Layout(flex_flow="row wrap", align_items="center", grid_gap="4px"))


def _column(*parts: Any) -> Any:
    return ipywidgets.VBox(parts)


def _set_visible(widget: Any, is_visible: bool) -> None:
    display = None if is_visible else "none"
    if widget.layout.display != display:
        widget.layout.display = display
