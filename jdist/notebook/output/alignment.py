"""Alignment: many ranks' sequences laid into one, equal entries in one block.

Each rank's entries form a chain; a block may hold one entry of each rank, and every chain runs forward in the blocks'
total order. A new entry joins the earliest block of its key that its rank has not passed, else it makes one at the end,
so what is not shared stays in the order of arrival. When a block to join stands before the rank's last one, the rank's
newer blocks are moved in front of it, which is possible unless it comes, through some chain, before that last one.
(Pearce and Kelly, "A dynamic topological sort algorithm", 2006, with only the backward search.)

The order is kept by labels with gaps, so comparing is O(1). Searching backward is paid from a credit that grows with
each entry, so all of it is linear in the entries. A block that holds every rank settles all before it for good.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator

from jdist.core.outcome import OutputEntry, OutputLine, SkippedLines
from jdist.notebook.text import folding
from jdist.notebook.text.folding import skeleton

_GAP = 1 << 128
_CREDIT = 16  # Steps of backward search that each entry pays for.
_NEAR = 4  # Entries that differ in their numbers are joined only when the rank skips at most so many blocks by it.
_RECENT = 64  # Among so many of its last entries, a rank can take one back.


class AlignedEntry:
    """An item to align, the key that equal items share, and the key (``likeness``) that its variants share."""

    __slots__ = ("_likeness", "item", "key", "reach")

    def __init__(self, item: OutputEntry, key: Hashable, reach: int):
        self.item = item
        self.key = key
        self.reach = reach  # The number of blocks that may be skipped to join an equal entry: more for longer entries.
        self._likeness: tuple[Hashable] | None = None

    @property
    def likeness(self) -> Hashable:
        """The key that variants share; None: it has none."""
        if self._likeness is None:  # computed only when needed: most entries find an equal one first
            self._likeness = (None,)
            if isinstance(self.item, OutputLine):
                if (bar := folding.find(self.item.text)) is not None:
                    self._likeness = (("bar", folding.kind(bar)),)
                elif (found := skeleton(self.item.text)) is not None:
                    self._likeness = (("like", self.item.stream, found),)
        return self._likeness[0]

    @property
    def is_bar(self) -> bool:
        """Whether it is a progress bar, which may join those of any number of ranks."""
        like = self.likeness
        return isinstance(like, tuple) and like[0] == "bar"


class AlignedBlock:
    """One block while it grows: the entries by rank, and its place in the order. Without members it is dead."""

    __slots__ = ("cache", "first", "label", "level", "members", "next", "prev", "seqs", "varied")

    def __init__(self, first: AlignedEntry, level: int):
        self.first = first
        self.level = level
        self.label = 0
        self.prev: AlignedBlock = self
        self.next: AlignedBlock = self
        self.members: dict[int, AlignedEntry] = {}
        self.seqs: dict[int, int] = {}
        self.varied = False
        self.cache: object = None  # Something made from the block; forgotten when the block changes.

    def accepts(self, entry: AlignedEntry) -> bool:
        """Whether the entry may join what is in this block already."""
        if not self.members:
            return False
        if not self.varied and entry.key == self.first.key:
            return True
        like = entry.likeness
        return entry.key == self.first.key if like is None else like == self.first.likeness


class Alignment:
    """The blocks of all ranks' entries. None is settled before it holds all of ``ranks``; others may come too."""

    def __init__(self, ranks: Iterable[int]):
        self._ranks = frozenset(ranks)
        self._root = AlignedBlock(AlignedEntry(SkippedLines(-1, 0, 0), None, 0), 0)  # before the first, after the last
        self._settled = self._root
        self._chains: dict[int, list[AlignedBlock]] = {}
        self._levels: dict[int, int] = {}
        self._by_key: dict[Hashable, list[AlignedBlock]] = {}  # In the order in which they were made.
        self._closed: dict[Hashable, int] = {}  # How many of a key's first blocks are closed.
        self._pointers: dict[int, dict[Hashable, int]] = {}
        self._credit = 0

    def __iter__(self) -> Iterator[AlignedBlock]:
        """The blocks in their order."""
        node = self._root.next
        while node is not self._root:
            yield node
            node = node.next

    def chain(self, rank: int) -> list[AlignedEntry]:
        """The rank's entries in the order in which they were added."""
        return [node.members[rank] for node in self._chains.get(rank, ())]

    def add(self, ranks: Iterable[int], entry: AlignedEntry) -> list[AlignedBlock]:
        """Adds the same entry to the end of each rank's chain; returns the blocks it went to, one a rank."""
        before, node, nodes = None, None, []
        for rank in ranks:
            chain = self._chains.setdefault(rank, [])
            head = chain[-1] if chain else None
            self._credit += _CREDIT
            if node is None or head is not before or not node.accepts(entry):
                before, node = head, self._place(rank, head, entry)
            node.members[rank] = entry
            node.seqs[rank] = len(chain)
            node.varied = node.varied or entry.key != node.first.key
            node.cache = None
            chain.append(node)
            self._levels[rank] = node.level
            is_full = len(node.members) >= len(self._ranks) > 0 and self._ranks <= node.members.keys()
            if is_full and node.label > self._settled.label and not entry.is_bar:  # a bar may be taken back
                self._settled = node
            nodes.append(node)
        return nodes

    def replace(self, node: AlignedBlock, rank: int, entry: AlignedEntry) -> None:
        """Puts another entry in the place of the one that the rank has in this block."""
        node.members[rank] = entry
        node.varied = True
        node.cache = None

    def clear(self, rank: int) -> None:
        """Forgets all that the rank has added."""
        for node in self._chains.pop(rank, ()):
            self._leave(node, rank)

    def remove(self, rank: int, entry: AlignedEntry, node: AlignedBlock) -> None:
        """Removes the rank's entry from this block, if it is still there."""
        if node.members.get(rank) is entry:
            self._remove(rank, node.seqs[rank])

    def take_back(self, rank: int, is_wanted: Callable[[AlignedEntry], bool]) -> AlignedEntry | None:
        """Removes the rank's newest entry that is wanted, if it comes after all displays and among the last ones."""
        chain = self._chains.get(rank, [])
        for at in range(len(chain) - 1, max(len(chain) - _RECENT, 0) - 1, -1):
            node = chain[at]
            entry = node.members[rank]
            if not isinstance(entry.item, OutputLine):
                return None
            if is_wanted(entry):
                self._remove(rank, at)
                return entry
        return None

    def _remove(self, rank: int, at: int) -> None:
        chain = self._chains[rank]
        for later in chain[at + 1 :]:
            later.seqs[rank] -= 1
        self._leave(chain.pop(at), rank)
        self._levels[rank] = chain[-1].level if chain else 0

    def _leave(self, node: AlignedBlock, rank: int) -> None:
        del node.members[rank], node.seqs[rank]
        node.cache = None
        if self._settled is node:
            self._settled = node.prev
        if not node.members:
            self._unlink(node)

    def _place(self, rank: int, head: AlignedBlock | None, entry: AlignedEntry) -> AlignedBlock:
        """The block of the rank's next entry: the best existing one, or a new one at the end."""
        if head is not None and head.next.first.key == entry.key and head.next.accepts(entry):
            return head.next  # the usual case: the same lines in the same order
        level = self._levels.get(rank, 0)
        like = entry.likeness
        equal = self._find(rank, head, entry, entry.key)
        alike = self._find(rank, head, entry, like) if like is not None else None
        to_equal = equal[0].level - level - 1 if equal is not None else 0  # about how many blocks each passes over
        to_alike = alike[0].level - level - 1 if alike is not None else 0
        if alike is not None and to_alike > _NEAR:
            alike = None
        if to_equal > (entry.reach if alike is None else min(entry.reach, _NEAR)):
            equal = None
        chosen = equal or alike
        if equal is not None and alike is not None and to_alike < to_equal and self._has_other(alike[0], equal[0]):
            chosen = alike
        if chosen is None:
            node = AlignedBlock(entry, level + 1)
            self._link(node, self._root.prev, self._root.prev.label + _GAP)
            for own in {entry.key, like} - {None}:
                self._by_key.setdefault(own, []).append(node)
            return node
        node, route = chosen
        if route:
            self._move_before(route, node)
        return node

    def _has_other(self, first: AlignedBlock, last: AlignedBlock) -> bool:
        """Whether something unlike both stands between these two blocks: the later one is of a loop's next step, and
        that its number is equal, such as a loss, is chance.
        """
        node = first
        while node is not last and node is not self._root:
            if node.first.likeness != first.first.likeness:
                return True
            node = node.next
        return False

    def _find(
        self, rank: int, head: AlignedBlock | None, entry: AlignedEntry, key: Hashable
    ) -> tuple[AlignedBlock, list[AlignedBlock]] | None:
        """The key's earliest block that accepts the rank's next entry, and the blocks to move before it."""
        nodes = self._by_key.get(key)
        if nodes is None:
            return None
        closed = self._closed.get(key, 0)
        while closed < len(nodes) and self._is_closed(nodes[closed]):
            closed += 1
        pointers = self._pointers.setdefault(rank, {})
        at = max(pointers.get(key, 0), closed)  # a block that is closed or passed for a rank stays so: look once
        found = None
        while at < len(nodes) and found is None:
            node = nodes[at]
            route = self._route(head, node) if rank not in node.members and node.accepts(entry) else None
            if route is None:
                at += 1
            else:
                found = node, route
        self._closed[key], pointers[key] = closed, at
        return found

    def _is_closed(self, node: AlignedBlock) -> bool:
        return not node.members or node.label <= self._settled.label

    def _route(self, head: AlignedBlock | None, node: AlignedBlock) -> list[AlignedBlock] | None:
        """The blocks to move before ``node`` so that it may follow ``head``; None when it comes before ``head``."""
        if node.label <= self._settled.label:
            return None
        if head is None or node.label > head.label:
            return []
        if node is head:
            return None
        seen, open_ends = {head}, [head]
        while open_ends:
            end = open_ends.pop()
            for rank, seq in end.seqs.items():
                self._credit -= 1
                if self._credit < 0:
                    return None
                before = self._chains[rank][seq - 1] if seq else None
                if before is node:
                    return None
                if before is not None and before.label > node.label and before not in seen:
                    seen.add(before)
                    open_ends.append(before)
        return sorted(seen, key=lambda n: n.label)

    def _move_before(self, moved: list[AlignedBlock], node: AlignedBlock) -> None:
        for each in moved:
            self._unlink(each)
        low = node.prev
        step = (node.label - low.label) // (64 * len(moved))  # crowd to the left: the next to come goes to the right
        if step == 0:  # the gaps after the settled blocks are made wide again
            each = self._settled
            while each.next is not self._root:
                each.next.label = each.label + _GAP
                each = each.next
            step = (node.label - low.label) // (64 * len(moved))
        for each in moved:
            self._link(each, low, low.label + max(step, 1))
            low = each

    def _link(self, node: AlignedBlock, prev: AlignedBlock, label: int) -> None:
        node.prev, node.next, node.label = prev, prev.next, label
        prev.next.prev = node
        prev.next = node

    def _unlink(self, node: AlignedBlock) -> None:
        node.prev.next, node.next.prev = node.next, node.prev
