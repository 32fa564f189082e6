"""Past output: what is kept of a run for those who watch it later; displays that were replaced or cleared are not."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from jdist.core.messages.base import Message
from jdist.core.messages.runs import Clear, Display, Output, OutputItem, Tail


class PastOutput:
    """Messages of one run in their order. Of a capped stream's tails, sent at each flush, only the newest is kept."""

    def __init__(self, run: int):
        self._run = run
        self._next = 0
        self._kept: dict[int, Message] = {}  # By serial number; of output, each item by itself.
        self._tails: dict[tuple[int, str], Tail] = {}
        self._shown: defaultdict[int, list[int]] = defaultdict(list)  # Displays, by the area that shows them.
        self._by_id: defaultdict[str, list[int]] = defaultdict(list)  # Displays, and updates of others, by their ids.
        self._cleared: set[tuple[int, int]] = set()  # Areas and ranks whose next output clears what they show.

    def __iter__(self) -> Iterator[Message]:
        """The messages, as if each item of output had come by itself."""
        for kept in (*self._kept.values(), *self._tails.values()):
            yield Output(self._run, (kept,)) if isinstance(kept, OutputItem) else kept

    def add(self, message: Message) -> None:
        """Keep a message that belongs to the run."""
        if isinstance(message, Output):
            for item in message.items:
                self._add_item(item)
        else:
            self._keep(message)

    def _add_item(self, item: OutputItem) -> None:
        if isinstance(item, Tail):
            self._tails[item.rank, item.stream] = item
            return
        of = {(item.area, rank) for rank in item.ranks}
        if isinstance(item, Display) and item.is_update:  # it clears nothing
            if self._update(item):
                return
        elif isinstance(item, Clear) and item.wait:
            self._cleared |= of
        else:
            self._drop_displays(item.area, item.ranks if isinstance(item, Clear) else self._due(of))
            self._cleared -= of
        self._keep(item)

    def _due(self, of: set[tuple[int, int]]) -> tuple[int, ...]:
        """The ranks of these whose displays are cleared by what they write next."""
        return tuple(rank for _, rank in self._cleared & of)

    def _keep(self, what: Message) -> None:
        self._kept[self._next] = what
        if isinstance(what, Display):
            if not what.is_update:
                self._shown[what.area].append(self._next)
            if what.display_id:
                self._by_id[what.display_id].append(self._next)
        self._next += 1

    def _drop_displays(self, area: int, ranks: Collection[int]) -> None:
        for number in list(self._shown.get(area, ())) if ranks else ():
            shown = self._display(number)
            if left := tuple(rank for rank in shown.ranks if rank not in ranks):
                self._kept[number] = replace(shown, ranks=left)
                continue
            del self._kept[number]
            self._shown[area].remove(number)
            if shown.display_id:
                self._by_id[shown.display_id].remove(number)

    def _update(self, update: Display) -> bool:
        """Put an update into the displays of its ranks that it changes; False if it has to be kept itself."""
        ranks = set(update.ranks)
        changed = [(n, d) for n in self._by_id.get(update.display_id, ()) if ranks & set((d := self._display(n)).ranks)]
        if not changed or any(not ranks.issuperset(shown.ranks) for _, shown in changed):
            return False
        for number, shown in changed:
            self._kept[number] = replace(shown, data=update.data, metadata=update.metadata)
        return ranks.issubset(rank for _, shown in changed for rank in shown.ranks)

    def _display(self, number: int) -> Display:
        shown = self._kept[number]
        assert isinstance(shown, Display)
        return shown
