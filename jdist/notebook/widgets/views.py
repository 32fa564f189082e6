"""Views: what ranks display with ipywidgets, in the output of the cell that displayed it.

A view stands in one place for one display of each rank of a run. Ranks whose widgets are the same share a twin, whose
events go to all of them; if there are several such sets of ranks, each has a tab. While widgets change, ranks may
differ for a moment, as one is ahead of another, so that a view is divided only when it has been at rest.

States of a view: *shown*; *waiting* (it says which change its ranks have not taken yet); *gone* (its ranks no longer
have the widgets, or there is no cluster: it is disabled, and says so). All is changed by one thread, which reads a
queue; the client's loop, cells and pages only put something there.
"""

import functools
import html
import logging
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jdist.client.cluster import Cluster
from jdist.client.comms import CommReceived, EventOutput, EventsPending, Heard, RankComms
from jdist.client.threads import bridge
from jdist.core.errors import JdistError
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Clear, CommSent, Display, OutputItem, Tail, Text
from jdist.core.messages.status import ClusterFacts, Stopped
from jdist.core.outcome import WIDGET_VIEW
from jdist.core.ranks import RankSet, describe_ranks, ranks_by
from jdist.notebook.output.screen import OutputPlace, Update, line
from jdist.notebook.text import markup
from jdist.notebook.widgets.context import ParentlessContext
from jdist.notebook.widgets.models import Change, Name, RankModels, references, renamed

if TYPE_CHECKING:
    from jdist.notebook.widgets.twins import Event, Twin

_log = logging.getLogger(__name__)

_FIRST = 0.3  # Seconds in which other ranks may display the same before a view is drawn, unless the cell ends.
_GATHER = 0.05  # Seconds in which more of a view may change before it is drawn again.
_REST = 1.0  # Seconds without a change after which ranks that differ get tabs of their own.
_MOST_UPDATES = 500  # A second, of all twins together: a Jupyter server drops messages of a kernel that are too many.
_LONGEST_FINISH = 10.0  # Seconds for which the end of a cell waits at most until its widgets are shown.
_LONGEST_WRITTEN = 4000  # Characters of what ranks write while they take events.
_MOST_TITLE = 60  # Characters of a tab's title.

Class = tuple[Name, ...]  # The same widget of several ranks, in the order of the ranks.


class View:
    """One place in a cell's output."""

    def __init__(self, run: int, place: OutputPlace):
        self.run = run
        self.place = place
        self.roots: dict[int, str] = {}  # By rank.
        self.handles: set[tuple[int, str]] = set()  # Ranks, and the ids by which they can replace their displays.
        self.classes: list[Class] = []  # As shown.
        self.due = math.inf  # When to draw it again.
        self.changed = 0.0  # When one of its widgets changed last.
        self.names: set[Name] = set()  # All widgets in it.
        self.columns: set[Class] = set()  # The classes in it, at all levels, for which there is a twin.
        self.note = ""
        self.written = ""  # What ranks have written while they took the last events.
        self.is_old = False  # `written` is from events before the last ones.
        self.is_gone = False
        self.is_cleared = False  # All its ranks have cleared their output.
        self.is_saved = False  # A cell's messages have its newest state, for programs that execute notebooks.
        self.named = ""  # The ranks that its text names.
        self.update: Update | None = None
        self.box: Any = None
        self.content: Any = None  # A twin, or tabs of several.
        self.words: Any = None  # Made for the first note.

    def covers(self, ranks: Sequence[int]) -> bool:
        """Whether these are exactly the ranks of a widget in it."""
        return any(tuple(rank for rank, _ in each) == tuple(ranks) for each in self.classes)


class RankWidgets:
    """The widgets of one cluster's ranks, in the page of the notebook with this kernel."""

    def __init__(self, cluster: Cluster, kernel: Any):
        self._cluster = cluster
        self._comms: RankComms = cluster.asynchronous.part(RankComms)
        self._kernel = kernel
        self._parentless = ParentlessContext(kernel)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._known: set[Name] = set()  # Written on the client's loop only.
        self._models = RankModels()
        self._twins: dict[Class, Twin] = {}
        self._twins_of: dict[Name, list[Twin]] = {}
        self._ids: dict[Class, str] = {}  # Of models in the page, also before they are made.
        self._views: list[View] = []
        self._changed: dict[Twin, None] = {}  # Twins of which the page does not have the newest state.
        self._flush_due = 0.0
        self._pids: dict[int, int] = {}
        self._generation = 0
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._comms.listen(self._hear)
        cluster.asynchronous.watch(self._watch)

    # ------------------------------------------------------------ any thread

    def show(self, run: int, display: Display, place: OutputPlace) -> None:
        """Show a widget that ranks have displayed in a run."""
        view = display.data[WIDGET_VIEW]
        if model_id := str(view.get("model_id", "")):
            for rank in display.ranks:
                self._put(functools.partial(self._show, run, (rank, model_id), place, display))

    def clear(self, run: int, item: Clear) -> None:
        """Ranks have cleared the output of their cells, or will with the next that they show."""
        self._put(functools.partial(self._clear, run, set(item.ranks)))

    def finish(self, ranks: Collection[int]) -> None:
        """A run of these ranks is over: have all that they have displayed shown before the cell ends.

        A program that executes the notebook reads only messages that say that this cell has caused them.
        """
        if self._thread is None:
            return
        is_finished = threading.Event()
        self._put(functools.partial(self._finish, set(ranks), self._kernel.get_parent(), is_finished))
        is_finished.wait(_LONGEST_FINISH)

    def capture(self, item: Text | Display | Clear) -> bool:
        """Whether all ranks' output widgets are known that have captured this; then they show it."""
        if not all((rank, item.area) in self._known for rank in item.ranks):
            return False
        self._put(functools.partial(self._capture, item))
        return True

    def _put(self, event: Callable[[], None]) -> None:
        self._events.put(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._parentless.wrap(self._main), name="jdist-widgets", daemon=True)
            self._thread.start()

    def _hear(self, heard: Heard) -> None:
        """On the client's loop."""
        if isinstance(heard, CommReceived):
            names = {(rank, heard.comm_id) for rank in heard.ranks}
            change = self._known.difference_update if heard.content.kind == "close" else self._known.update
            change(names)
        self._put(functools.partial(self._handle, heard))

    def _watch(self, message: Message) -> None:
        """On the client's loop."""
        if isinstance(message, ClusterFacts) and message.generation != self._generation and self._thread is not None:
            self._generation = message.generation
            self._put(self._look_for_new_processes)

    def _send(self, twin: "Twin", event: "Event", buffers: tuple[bytes, ...]) -> None:
        bridge().loop.call_soon_threadsafe(self._comms.send, twin.comm_ids, event, buffers)

    # ------------------------------------------------------------ the thread of this class

    def _main(self) -> None:
        while not self._is_over:
            due = min((view.due for view in self._views), default=math.inf)
            due = min(due, self._flush_due) if self._changed else due
            timeout = None if due == math.inf else max(0.0, due - time.monotonic())
            try:
                self._events.get(timeout=timeout)()
            except queue.Empty:
                pass
            except Exception:
                _log.exception("a widget of ranks could not be shown")
            for view in [view for view in self._views if view.due <= time.monotonic()]:
                view.due = math.inf
                try:
                    self._draw(view)
                except Exception:
                    _log.exception("a widget of ranks could not be drawn")
            if self._changed and self._flush_due <= time.monotonic():
                self._flush()

    def _flush(self) -> None:
        """Have the page show the newest state of all twins."""
        self._flush_due = time.monotonic() + len(self._changed) / _MOST_UPDATES
        changed, self._changed = self._changed, {}
        for twin in changed:
            twin.flush()

    def _handle(self, heard: Heard) -> None:
        match heard:
            case CommReceived():
                for rank in heard.ranks:
                    if (change := self._models.feed(rank, heard.comm_id, heard.content)) is not None:
                        self._apply(change)
            case EventOutput(item):
                self._show_output(item)
            case EventsPending(gone=gone) if gone:
                self._set_gone(set(gone), "run the cell again that shows it")
            case EventsPending():
                for view in self._views:
                    if view.covers(heard.ranks) and not view.is_gone:
                        is_taken = not heard.text
                        self._say(view, heard.text, "" if is_taken and view.is_old else view.written)
                        view.is_old = view.is_old or is_taken
                        view.due = min(view.due, time.monotonic() + _REST)
            case Stopped():
                for view in self._views:
                    self._disable(view, f"not connected any more: {heard.reason}")
                self._flush()
                self._is_over = True

    def _show_output(self, item: OutputItem) -> None:
        """Show what ranks have written while they took events: in what captured it, or below the view."""
        if isinstance(item, Tail | CommSent):
            return
        if item.area:
            self._capture(item)
        elif isinstance(item, Text):
            for view in self._views:
                if not view.is_gone and view.roots and set(item.ranks) <= set(view.roots):
                    whose = "" if set(item.ranks) == set(view.roots) else f"[{RankSet(item.ranks)}] "
                    before = "" if view.is_old else view.written
                    view.is_old = False
                    self._say(view, view.note, (before + whose + item.text)[-_LONGEST_WRITTEN:])

    def _look_for_new_processes(self) -> None:
        """Find the ranks whose processes have been replaced since the last look."""
        try:
            pids = {row.rank: row.pid for row in self._cluster.status().ranks}
        except JdistError:
            return  # it is heard of in another way, or looked for with the next generation
        for rank, pid in pids.items():
            if pid and self._pids.get(rank, pid) != pid:
                self._set_gone({name for name in self._models if name[0] == rank}, "run the cell again that shows it")
                self._models.forget(rank)
        self._pids |= {rank: pid for rank, pid in pids.items() if pid}

    def _show(self, run: int, name: Name, place: OutputPlace, display: Display) -> None:
        handle = name[0], display.display_id
        updated = (view for view in self._views if display.is_update and handle in view.handles)
        view = next(updated, None) or self._find_view(run, name) or View(run, place)
        view.handles.add(handle)
        if view not in self._views:
            self._views.append(view)
        view.roots[name[0]] = name[1]
        view.due = time.monotonic() + (_FIRST if view.box is None else _GATHER)
        if not self._pids:
            self._look_for_new_processes()

    def _find_view(self, run: int, name: Name) -> View | None:
        """Where the rank's display belongs, behind its last one of the run: to an equal one, or to the next place."""
        own = [view for view in self._views if view.run == run and not view.is_cleared]
        last = max((place for place, view in enumerate(own) if name[0] in view.roots), default=-1)
        later, print_of = own[last + 1 :], self._models.fingerprint
        same = (view for view in later if any(print_of(root) == print_of(name) for root in view.roots.items()))
        return next(same, None) or next(iter(later), None)

    def _clear(self, run: int, ranks: set[int]) -> None:
        for view in self._views:
            if view.run == run and not ranks.isdisjoint(view.roots):
                view.roots = {rank: root for rank, root in view.roots.items() if rank not in ranks}
                view.is_cleared = not view.roots
                view.due = time.monotonic() + _GATHER  # what they show next often takes its place

    def _finish(self, ranks: set[int], parent: Any, is_finished: threading.Event) -> None:
        try:
            for view in [view for view in self._views if view.roots.keys() <= ranks]:
                if view.due < math.inf:
                    view.due, view.changed = math.inf, -math.inf  # its ranks are at rest
                    self._draw(view)
                self._save(view, parent)
            self._flush()
        finally:
            is_finished.set()

    def _capture(self, item: Text | Display | Clear) -> None:
        for rank in item.ranks:
            if (change := self._models.capture(rank, item)) is not None:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        """Have the twins of a widget show what has changed of it."""
        now = time.monotonic()
        if change.is_closed:
            self._close(change.name)
        for view in self._views:
            if change.name in view.names:
                view.changed, view.due = now, min(view.due, now + _REST)
        for twin in self._twins_of.get(change.name, ()):
            if twin.leader != change.name[0]:
                continue
            if change.custom is not None:
                content, buffers = change.custom
                twin.flush()
                twin.send(content, list(buffers))
            elif not change.is_echo:
                page_id = functools.partial(self._page_id, tuple(twin.comm_ids))
                state = {k: v for k, v in change.state.items() if all(map(page_id, references(v)))}
                if twin.change(renamed(state, page_id)):
                    self._changed[twin] = None
                if len(state) < len(change.state):  # it refers to widgets that are new in the view
                    self._draw_soon(change.name)
        if change.is_new and change.state.get("_view_name") is None:
            for comm_id in references(change.state):
                self._draw_soon((change.name[0], comm_id))

    def _close(self, name: Name) -> None:
        """A rank has closed a widget."""
        rank, comm_id = name
        for view in self._views:
            if view.roots.get(rank) == comm_id:
                del view.roots[rank]
                view.is_cleared = not view.roots
                self._draw_soon(name)
        for twin in [twin for twin in self._twins_of.get(name, ()) if twin.leader == rank]:
            self._close_twin(tuple(twin.comm_ids.items()))

    def _close_twin(self, column: Class) -> None:
        self._ids.pop(column, None)
        if (twin := self._twins.pop(column, None)) is not None:
            self._changed.pop(twin, None)
            for name in column:
                self._twins_of[name].remove(twin)
            twin.close()

    def _draw_soon(self, name: Name) -> None:
        for view in self._views:
            if name in view.names:
                view.due = min(view.due, time.monotonic() + _GATHER)

    def _page_id(self, ranks: tuple[int, ...], comm_id: str) -> str | None:
        """The model in the page that stands for a widget of these ranks, of which the first has this comm."""
        twins = self._twins_of.get((min(ranks), comm_id), ())
        return next((twin.model_id for twin in twins if tuple(twin.comm_ids) == ranks), None)

    # ------------------------------------------------------------ drawing

    def _draw(self, view: View) -> None:
        """Show the view's widgets as they are grouped now."""
        if view.is_gone:
            return
        if view.is_cleared:
            self._views.remove(view)
            self._publish(view)
            return
        roots = [*sorted(view.roots.items())]
        values = self._group(roots, self._models.fingerprint)
        is_at_rest = time.monotonic() - view.changed >= _REST
        shown = {rank for each in view.classes for rank, _ in each}
        shape = functools.partial(self._models.fingerprint, has_values=False)
        is_whole = all(len({shape(name) for name in each}) == 1 for each in view.classes)
        if not is_at_rest and is_whole and shown == set(view.roots):
            if values != view.classes:
                view.due = min(view.due, view.changed + _REST)
            values = view.classes
        replaced, view.columns = view.columns, set()
        twins = [twin for each in values if (twin := self._tree(view, each)) is not None]
        view.classes = values
        self._arrange(view, twins)
        for column in replaced.difference(*(each.columns for each in self._views)):
            self._close_twin(column)

    @staticmethod
    def _group(roots: Sequence[Name], print_of: Callable[[Name], bytes]) -> list[Class]:
        by_rank = dict(roots)
        groups = ranks_by((rank, print_of((rank, comm_id))) for rank, comm_id in roots)
        return [tuple((rank, by_rank[rank]) for rank in ranks) for ranks in groups.values()]

    def _tree(self, view: View, roots: Class) -> "Twin | None":
        """The twin of a widget of several ranks, with those of all below it; None if its state is not known."""
        trees = [self._models.tree(root) for root in roots]
        trees = [tree + self._models.attached_to(tree) for tree in trees]
        view.names.update(name for tree in trees for name in tree)
        columns = [*zip(*trees, strict=False)]
        ids = {column[0][1]: self._ids.setdefault(column, uuid.uuid4().hex) for column in columns}
        view.columns.update(columns)
        for column in reversed(columns[: len(self._models.tree(roots[0]))]):  # the page makes a widget after its parts
            self._twin(column, ids)
        for column in columns[len(self._models.tree(roots[0])) :]:
            self._twin(column, ids)
        return self._twins.get(roots)

    def _twin(self, column: Class, ids: Mapping[str, str]) -> None:
        """Make the twin of these widgets, or have it show their state."""
        from jdist.notebook.widgets.twins import Twin  # only here: it imports ipywidgets

        if column[0] not in self._models:
            return
        ranks, state = tuple(rank for rank, _ in column), self._models.state(column[0])

        def page_id(comm_id: str) -> str | None:
            return ids.get(comm_id) or self._page_id(ranks, comm_id)

        if not all(map(page_id, references(state))):
            return  # the link to a widget that is not shown, or not yet
        state = renamed(dict(state), page_id)
        if (known := self._twins.get(column)) is not None:
            if known.follow(state, is_settled=not self._comms.is_sending(ranks)):
                self._changed[known] = None
            return
        twin = self._twins[column] = Twin(dict(column), self._ids[column], state, self._send)
        for name in column:
            self._twins_of.setdefault(name, []).append(twin)

    def _arrange(self, view: View, twins: Sequence["Twin"]) -> None:
        """Put the twins into the view's box: one by itself, several as tabs, and below them what is to be said."""
        from ipywidgets import Tab, VBox  # only here: it takes a while to import

        if len(twins) > 1:
            titles = [_title(twin.comm_ids) for twin in twins]
            view.content = view.content if isinstance(view.content, Tab) else Tab()
            view.content.children, view.content.titles = tuple(twins), tuple(titles)
        else:
            view.content = twins[0] if twins else None
        view.box = view.box or VBox()
        if not twins:
            self._say(view, "its state is not known here: run the cell again that shows it")
        self._fill(view)
        view.is_saved = False
        if view.named != describe_ranks(view.roots):
            self._publish(view)

    def _publish(self, view: View) -> None:
        bundle: dict[str, Any] = {"text/plain": ""}
        if not view.is_cleared:
            view.named = describe_ranks(view.roots)
            bundle = {**line(f"widget of {view.named}"), WIDGET_VIEW: view.box.get_view_spec()}
        if view.update is None:
            view.update = view.place.show(bundle)
        else:
            view.update(bundle)

    def _save(self, view: View, parent: Any) -> None:
        """Tell again what is new of a view's widgets, as what a cell has caused."""
        from jdist.notebook.widgets.twins import update_message

        widgets = [twin for name in view.names for twin in self._twins_of.get(name, ()) if not twin.is_saved]
        for twin in widgets:
            twin.is_saved = True
        if view.box is not None and not view.is_saved:
            own = [view.box, *(each for each in view.box.children if hasattr(each, "layout"))]
            widgets += [part for each in own for part in (each, each.layout, getattr(each, "style", None)) if part]
            view.is_saved = True
        kernel = self._kernel
        for widget in widgets:
            data, buffers = update_message("update", widget.get_state())
            content = {"comm_id": widget.model_id, "data": data}
            kernel.session.send(kernel.iopub_socket, "comm_msg", content, parent=parent, buffers=list(buffers))

    def _say(self, view: View, note: str, written: str = "") -> None:
        """Show this below the view; "" for nothing."""
        if (view.note, view.written) == (note, written) or view.box is None:
            return
        from ipywidgets import HTML

        view.note, view.written, view.is_saved = note, written, False
        parts = [f'<div role="status" style="opacity:.75">{html.escape(note)}</div>'] if note else []
        parts += [markup.pre(markup.to_html(written.rstrip("\n")))] if written.strip() else []
        view.words = view.words or HTML()
        view.words.value = "".join(parts)
        self._fill(view)

    @staticmethod
    def _fill(view: View) -> None:
        has_words = view.note or view.written.strip()
        view.box.children = tuple(part for part in (view.content, has_words and view.words) if part)

    def _set_gone(self, names: set[Name], advice: str) -> None:
        """Disable the views that show one of these widgets, which do not exist any more."""
        names = {name for name in names if name in self._models}  # not those that were closed since
        for view in self._views:
            if gone := {rank for rank, comm_id in names & view.names}:
                has = "no longer has" if len(gone) == 1 else "no longer have"
                self._disable(view, f"{describe_ranks(gone)} {has} this widget; {advice}")

    def _disable(self, view: View, why: str) -> None:
        if view.is_gone:
            return
        for name in view.names:
            for twin in self._twins_of.get(name, ()):
                twin.disable()
        self._say(view, why)
        view.is_gone = True


def _title(ranks: Sequence[int] | Mapping[int, str]) -> str:
    text = str(RankSet(ranks))
    text = text if len(text) <= _MOST_TITLE else f"{text[:_MOST_TITLE]}…"
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
