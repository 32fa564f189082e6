"""Twin set: the twins of one cluster's widgets, and what of their state the page does not have yet.

Ranks whose widgets are the same share a twin. One thread changes it, that of `RankWidgets`.
"""

import functools
import math
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from jdist.client.comms import RankComms
from jdist.client.threads import bridge
from jdist.notebook.widgets.models import Change, Name, RankModels, references, renamed

if TYPE_CHECKING:
    from jdist.notebook.widgets.twins import Event, Twin

_MOST_UPDATES = 500  # A second, of all twins together: a Jupyter server drops messages of a kernel that are too many.

Class = tuple[Name, ...]  # The same widget of several ranks, in the order of the ranks.


class Tree(NamedTuple):
    """A widget of several ranks, with all below it."""

    twin: "Twin | None"  # None if the state of its root is not known.
    classes: Collection[Class]  # At all levels.
    names: Collection[Name]


class TwinSet:
    """The twins, by the widgets that they stand for."""

    def __init__(self, models: RankModels, comms: RankComms):
        self._models = models
        self._comms = comms
        self._twins: dict[Class, Twin] = {}
        self._twins_of: dict[Name, list[Twin]] = {}
        self._ids: dict[Class, str] = {}  # Of models in the page, also before they are made.
        self._changed: dict[Twin, None] = {}  # Twins of which the page does not have the newest state.
        self._flush_due = 0.0

    def of(self, names: Iterable[Name]) -> "list[Twin]":
        """The twins of these widgets."""
        return [twin for name in names for twin in self._twins_of.get(name, ())]

    @property
    def due(self) -> float:
        """When to call `flush` (`time.monotonic`); infinite if the page has the newest state."""
        return self._flush_due if self._changed else math.inf

    def flush(self) -> None:
        """Have the page show the newest state of all."""
        self._flush_due = time.monotonic() + len(self._changed) / _MOST_UPDATES
        changed, self._changed = self._changed, {}
        for twin in changed:
            twin.flush()

    def make(self, roots: Class) -> Tree:
        """Make the twin of a widget of several ranks and those of all below it, or have them show its state."""
        own = len(self._models.tree(roots[0]))
        trees = [self._models.tree(root) for root in roots]
        trees = [tree + self._models.attached_to(tree) for tree in trees]
        classes = [*zip(*trees, strict=False)]
        ids = {each[0][1]: self._ids.setdefault(each, uuid.uuid4().hex) for each in classes}
        for each in (*reversed(classes[:own]), *classes[own:]):  # the page makes a widget after its parts
            self._make_one(each, ids)
        return Tree(self._twins.get(roots), classes, {name for tree in trees for name in tree})

    def _make_one(self, widgets: Class, ids: Mapping[str, str]) -> None:
        from jdist.notebook.widgets.twins import Twin  # only here: it imports ipywidgets

        if widgets[0] not in self._models:
            return
        ranks, state = tuple(rank for rank, _ in widgets), self._models.state(widgets[0])

        def page_id(comm_id: str) -> str | None:
            return ids.get(comm_id) or self._page_id(ranks, comm_id)

        if not all(map(page_id, references(state))):
            return  # the link to a widget that is not shown, or not yet
        state = renamed(dict(state), page_id)
        if (known := self._twins.get(widgets)) is not None:
            if known.follow(state, is_settled=not self._comms.is_sending(ranks)):
                self._changed[known] = None
            return
        twin = self._twins[widgets] = Twin(dict(widgets), self._ids[widgets], state, self._send)
        for name in widgets:
            self._twins_of.setdefault(name, []).append(twin)

    def _send(self, twin: "Twin", event: "Event", buffers: tuple[bytes, ...]) -> None:
        """On any thread."""
        bridge().loop.call_soon_threadsafe(self._comms.send, twin.comm_ids, event, buffers)

    def change(self, change: Change) -> bool:
        """Have the twins show what has changed of a rank's widget; whether it refers to widgets that have none yet."""
        is_whole = True
        for twin in self.of([change.name]):
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
                is_whole = is_whole and len(state) == len(change.state)
        return not is_whole

    def close_led(self, name: Name) -> None:
        """A rank has closed a widget: close the twins that show it."""
        for twin in [twin for twin in self.of([name]) if twin.leader == name[0]]:
            self.close(tuple(twin.comm_ids.items()))

    def close(self, widgets: Class) -> None:
        """Have no twin of these any more."""
        self._ids.pop(widgets, None)
        if (twin := self._twins.pop(widgets, None)) is not None:
            self._changed.pop(twin, None)
            for name in widgets:
                self._twins_of[name].remove(twin)
            twin.close()

    def _page_id(self, ranks: tuple[int, ...], comm_id: str) -> str | None:
        """The model in the page that stands for a widget of these ranks, of which the first has this comm."""
        twins = self.of([(min(ranks), comm_id)])
        return next((twin.model_id for twin in twins if tuple(twin.comm_ids) == ranks), None)
