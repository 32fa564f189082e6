"""Views: one place in a cell's output for one display of each rank's widgets."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jdist.core.outcome import WIDGET_VIEW
from jdist.core.ranks import RankSet, describe_ranks
from jdist.notebook.output.screen import OutputPlace, Update, line
from jdist.notebook.text import markup
from jdist.notebook.widgets.models import Name
from jdist.notebook.widgets.twin_set import Class

if TYPE_CHECKING:
    from jdist.notebook.widgets.twins import Twin

_MOST_TITLE = 60  # Characters of a tab's title.


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

    def arrange(self, twins: Sequence["Twin"]) -> None:
        """Put the twins into the box: one by itself, several as tabs, and below them what is to be said."""
        from ipywidgets import Tab, VBox  # only here: it takes a while to import

        if len(twins) > 1:
            titles = [_title(twin.comm_ids) for twin in twins]
            self.content = self.content if isinstance(self.content, Tab) else Tab()
            self.content.children, self.content.titles = tuple(twins), tuple(titles)
        else:
            self.content = twins[0] if twins else None
        self.box = self.box or VBox()
        if not twins:
            self.say("its state is not known here: run the cell again that shows it")
        self._fill()
        self.is_saved = False
        if self.named != describe_ranks(self.roots):
            self.publish()

    def publish(self) -> None:
        """Show it, or what has become of it, in its place."""
        bundle: dict[str, Any] = {"text/plain": ""}
        if not self.is_cleared:
            self.named = describe_ranks(self.roots)
            bundle = {**line(f"widget of {self.named}"), WIDGET_VIEW: self.box.get_view_spec()}
        if self.update is None:
            self.update = self.place.show(bundle)
        else:
            self.update(bundle)

    def take_unsaved(self) -> list[Any]:
        """The widgets of its own that have changed since the last call."""
        if self.box is None or self.is_saved:
            return []
        self.is_saved = True
        own = [self.box, *(each for each in self.box.children if hasattr(each, "layout"))]
        return [part for each in own for part in (each, each.layout, getattr(each, "style", None)) if part]

    def say(self, note: str, written: str = "") -> None:
        """Show this below the widgets; "" for nothing."""
        if (self.note, self.written) == (note, written) or self.box is None:
            return
        from ipywidgets import HTML

        self.note, self.written, self.is_saved = note, written, False
        parts = [f'<div role="status" style="opacity:.75">{html.escape(note)}</div>'] if note else []
        parts += [markup.pre(markup.to_html(written.rstrip("\n")))] if written.strip() else []
        self.words = self.words or HTML()
        self.words.value = "".join(parts)
        self._fill()

    def _fill(self) -> None:
        has_words = self.note or self.written.strip()
        self.box.children = tuple(part for part in (self.content, has_words and self.words) if part)


def _title(ranks: Sequence[int] | Mapping[int, str]) -> str:
    text = str(RankSet(ranks))
    text = text if len(text) <= _MOST_TITLE else f"{text[:_MOST_TITLE]}…"
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"
