"""Output that waits to be sent on, without what is replaced or cleared by what comes after it. Pure."""

from collections.abc import Callable

from msgspec.structs import replace

from jdist.core.messages.runs import Clear, CommSent, Display, OutputItem, Tail

Arrived = tuple[float, OutputItem]  # When the item arrived, as its number among all that wait, and the item.


class WaitingOutput:
    """Items of one run, all of the same ranks, in the order in which they arrived."""

    def __init__(self) -> None:
        self.items: list[Arrived] = []
        self._replaceable: set[str] = set()  # What comms' messages that wait can be replaced by.

    def add(self, arrived: float, item: OutputItem) -> None:
        """Have an item wait, in place of those that need not be sent any more because of it."""
        end = len(self.items)
        if isinstance(item, Clear):
            self._drop_displays(0 if item.wait else end, item.area)
        elif isinstance(item, Display) and item.is_update:
            self._drop_update(item.display_id)
        elif isinstance(item, Tail):
            end_of = item.rank, item.stream
            self._drop(end, lambda each: isinstance(each, Tail) and (each.rank, each.stream) == end_of)
        elif isinstance(item, CommSent):
            if item.replaces in self._replaceable:  # there may be thousands of other items: it is sought from the end
                alike = (at for at in reversed(range(end)) if _replaces(self.items[at][1]) == item.replaces)
                del self.items[next(alike)]
            elif item.replaces:
                self._replaceable.add(item.replaces)
        elif end and isinstance(last := self.items[-1][1], Clear) and last.area == item.area:
            self._drop_displays(end - 1, item.area)
        self._append(self.items, (arrived, item))

    def _drop_displays(self, before: int, area: str) -> None:
        """Drop what is cleared; an update may be that of a display in another place."""
        self._drop(before, lambda each: isinstance(each, Display) and not each.is_update and each.area == area)

    def _drop_update(self, display_id: str) -> None:
        """Drop the last update of a display, unless the display has been shown again since."""
        shown = (
            each for _, each in reversed(self.items) if isinstance(each, Display) and each.display_id == display_id
        )
        last = next(shown, None)
        if last is not None and last.is_update:
            self._drop(len(self.items), lambda each: each is last)

    def _drop(self, before: int, is_replaced: Callable[[OutputItem], bool]) -> None:
        kept: list[Arrived] = []
        for at, each in enumerate(self.items):
            if at >= before or not is_replaced(each[1]):
                self._append(kept, each)
        self.items[:] = kept

    @staticmethod
    def _append(items: list[Arrived], arrived: Arrived) -> None:
        """Add an item; clears that follow one another are one."""
        item, last = arrived[1], items[-1][1] if items else None
        if isinstance(item, Clear) and isinstance(last, Clear) and last.area == item.area:
            arrived = arrived[0], replace(item, wait=item.wait and last.wait)
            del items[-1]
        items.append(arrived)


def _replaces(item: OutputItem) -> str:
    return item.replaces if isinstance(item, CommSent) else ""
