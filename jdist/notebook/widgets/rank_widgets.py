"""Rank widgets: what ranks display with ipywidgets, in the output of the cell that displayed it.

A view (views.py) stands in one place for one display of each rank of a run. Ranks whose widgets are the same share a
twin (twin_set.py), whose events go to all of them; if there are several such sets of ranks, each has a tab. While
widgets change, ranks may differ for a moment, as one is ahead of another, so that a view is divided only when it has
been at rest.

States of a view: *shown*; *waiting* (it says which change its ranks have not taken yet); *gone* (its ranks no longer
have the widgets, or there is no cluster: it is disabled, and says so). All is changed by one thread, which reads a
queue; the client's loop, cells and pages only put something there.
"""

import functools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from jdist.client.cluster import Cluster
from jdist.client.comms import CommReceived, EventOutput, EventsPending, Heard, RankComms
from jdist.core.errors import JdistError
from jdist.core.messages.base import Message
from jdist.core.messages.runs import Clear, CommSent, Display, OutputItem, Tail, Text
from jdist.core.messages.status import ClusterFacts, Stopped
from jdist.core.outcome import WIDGET_VIEW
from jdist.core.ranks import RankSet, describe_ranks, ranks_by
from jdist.notebook.output.screen import OutputPlace
from jdist.notebook.widgets.context import ParentlessContext
from jdist.notebook.widgets.models import Change, Name, RankModels, references
from jdist.notebook.widgets.twin_set import Class, TwinSet
from jdist.notebook.widgets.views import View

_log = logging.getLogger(__name__)

_FIRST = 0.3  # Seconds in which other ranks may display the same before a view is drawn, unless the cell ends.
_GATHER = 0.05  # Seconds in which more of a view may change before it is drawn again.
_REST = 1.0  # Seconds without a change after which ranks that differ get tabs of their own.
_LONGEST_FINISH = 10.0  # Seconds for which the end of a cell waits at most until its widgets are shown.
_LONGEST_WRITTEN = 4000  # Characters of what ranks write while they take events.


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
        self._twins = TwinSet(self._models, self._comms)
        self._views: list[View] = []
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

    # ------------------------------------------------------------ the thread of this class

    def _main(self) -> None:
        while not self._is_over:
            due = min((view.due for view in self._views), default=math.inf)
            due = min(due, self._twins.due)
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
            if self._twins.due <= time.monotonic():
                self._twins.flush()

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
                        view.say(heard.text, "" if is_taken and view.is_old else view.written)
                        view.is_old = view.is_old or is_taken
                        view.due = min(view.due, time.monotonic() + _REST)
            case Stopped():
                for view in self._views:
                    self._disable(view, f"not connected any more: {heard.reason}")
                self._twins.flush()
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
                    view.say(view.note, (before + whose + item.text)[-_LONGEST_WRITTEN:])

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
                    view.due = math.inf
                    self._draw(view, is_final=True)
                self._save(view, parent)
            self._twins.flush()
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
        if self._twins.change(change):
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
        self._twins.close_led(name)

    def _draw_soon(self, name: Name) -> None:
        for view in self._views:
            if name in view.names:
                view.due = min(view.due, time.monotonic() + _GATHER)

    # ------------------------------------------------------------ drawing

    def _draw(self, view: View, *, is_final: bool = False) -> None:
        """Show the view's widgets as they are grouped now. ``is_final``: its ranks are at rest."""
        if view.is_gone:
            return
        if view.is_cleared:
            self._views.remove(view)
            view.publish()
            return
        roots = [*sorted(view.roots.items())]
        values = self._group(roots, self._models.fingerprint)
        now = time.monotonic()
        is_at_rest = is_final or (now - view.changed >= _REST and self._events.empty())
        shown = {rank for each in view.classes for rank, _ in each}
        shape = functools.partial(self._models.fingerprint, has_values=False)
        is_whole = all(len({shape(name) for name in each}) == 1 for each in view.classes)
        if not is_at_rest and is_whole and shown == set(view.roots):
            if values != view.classes:
                view.due = min(view.due, max(view.changed + _REST, now + _GATHER))
            values = view.classes
        replaced, trees = view.columns, [self._twins.make(each) for each in values]
        view.columns = {each for tree in trees for each in tree.classes}
        view.names.update(name for tree in trees for name in tree.names)
        view.classes = values
        view.arrange([tree.twin for tree in trees if tree.twin is not None])
        for each in replaced.difference(*(view.columns for view in self._views)):
            self._twins.close(each)

    @staticmethod
    def _group(roots: Sequence[Name], print_of: Callable[[Name], bytes]) -> list[Class]:
        by_rank = dict(roots)
        groups = ranks_by((rank, print_of((rank, comm_id))) for rank, comm_id in roots)
        return [tuple((rank, by_rank[rank]) for rank in ranks) for ranks in groups.values()]

    def _save(self, view: View, parent: Any) -> None:
        """Tell again what is new of a view's widgets, as what a cell has caused."""
        from jdist.notebook.widgets.twins import update_message

        twins = [twin for twin in self._twins.of(view.names) if not twin.is_saved]
        for twin in twins:
            twin.is_saved = True
        kernel = self._kernel
        for widget in (*twins, *view.take_unsaved()):
            data, buffers = update_message("update", widget.get_state())
            content = {"comm_id": widget.model_id, "data": data}
            kernel.session.send(kernel.iopub_socket, "comm_msg", content, parent=parent, buffers=list(buffers))

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
        for twin in self._twins.of(view.names):
            twin.disable()
        view.say(why)
        view.is_gone = True
