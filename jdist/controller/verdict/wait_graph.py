"""Wait graph: which rank waits for which, and which of them may still move by itself. Pure.

A blocked rank has *needs*, each a set of ranks of which one must come. A rank *may move* if it runs Python, if it is
paused, since its user may let it go on, or if each of its needs contains a rank that may move. The other ranks can only
wait: for a rank whose part of the run is over, or for each other in a circle.

The ranks are observed at different moments. The graph is sound nevertheless: the number of collectives that a rank has
begun in a group only grows, and no rank can leave one that another member has not begun. The same holds for the
messages of a channel (:class:`~jdist.core.messages.observation.Channel`), whose n-th send meets its n-th receive. Where
a call has no number, a finding counts only if the next poll sees the same calls still in flight.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from jdist.core.messages.observation import ANY, Activity, Call, Channel, GroupProgress, Observation

# running: in the run. done, failed: its part of the run is over. free: not in the run, and idle. elsewhere: in another
# run's cell. lost: its process is gone, and its replacement is in no group yet.
Part = Literal["running", "done", "failed", "free", "elsewhere", "lost"]

T = TypeVar("T")

_BLOCKED = ("collective", "transfer", "store")


class RankSnapshot(Struct, frozen=True):
    """One rank, as a poll has found it."""

    where: str  # "rank 1 (node 0, hostname)".
    part: Part
    observation: Observation | None = None  # None: nothing is known but its part.
    ago: float = 0.0  # Seconds since its part was over.
    note: str = ""  # How it failed, or which run it is in.
    paused: str = ""  # Where it is paused, though another run may be running there; "": it is not.
    is_script: bool = False  # Its part was that of a script, not of a cell.
    is_echo: bool = False  # It failed because a connection to another rank broke.

    @property
    def is_unknown(self) -> bool:
        """It did not answer: its progress is not known, though its part may be over."""
        return not self.paused and self.part not in ("lost", "elsewhere") and self.activity.kind == "silent"

    @property
    def is_over(self) -> bool:
        """It will enter no other call in this run, and which it has entered is known."""
        return self.part in ("done", "failed", "free", "lost") and not self.is_unknown

    @property
    def activity(self) -> Activity:
        """What its main thread does; "silent" if it is not known."""
        return self.observation.doing if self.observation is not None else Activity("silent")

    @property
    def is_blocked(self) -> bool:
        if self.is_over or self.paused or self.observation is None or self.activity.kind not in _BLOCKED:
            return False
        return not self.activity.is_limited  # such a wait soon ends by itself

    @property
    def is_in_known_call(self) -> bool:
        """Whether it is blocked in a call whose number is known."""
        return self.is_blocked and all(call.number or call.nth for call in self.activity.calls)

    @property
    def blocked_in(self) -> Call | None:
        """The call that it waits in, the first if there are several; None if it waits in another way, or not at all."""
        return self.activity.calls[0] if self.activity.calls else None

    @property
    def pending(self) -> list[tuple[str, int, int | None]]:
        """What it is blocked in: group, number and peer of each call; equal for ranks that wait in the same place."""
        return [(call.group, call.number, call.peer) for call in self.activity.calls]

    def progress(self, group: str) -> GroupProgress | None:
        """How far it is in a group; None if that is not known."""
        found = self.observation.groups if self.observation is not None else ()
        return next((g for g in found if g.name == group), None)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Its last calls as far as they are remembered, and those that it is in."""
        return (*self.observation.recent, *self.activity.calls) if self.observation is not None else ()

    def call(self, group: str, number: int) -> Call | None:
        """Its collective with this sequence number, if it is remembered."""
        calls = (*self.activity.calls, *self.calls)  # of one that it is in, the line is known here
        own = (c for c in calls if c.group == group and c.peer is None)
        return next((c for c in own if c.number - c.parts < number <= c.number), None)

    def channel(self, group: str, tag: int, peer: int, *, is_send: bool) -> Channel:
        """Its sends to ``peer``, or its receives from there; none have begun where it reports no such channel."""
        channels = self.observation.channels if self.observation is not None else ()
        wanted = group, is_send, peer, tag
        found = (c for c in channels if (c.group, c.is_send, c.peer, c.tag) == wanted)
        return next(found, Channel(*wanted, begun=0))


Ranks = Mapping[int, RankSnapshot]  # All ranks of the world.


class PolledRanks(dict[int, RankSnapshot]):
    """All ranks of a world, with what many of them have in common, which is found once for all."""

    def __init__(self, ranks: Ranks):
        super().__init__(ranks)
        self._found: dict[Hashable, Any] = {}

    def once(self, key: Hashable, find: Callable[[], Any]) -> Any:
        """What ``find`` returns for the key; it is called the first time."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]


def _once(ranks: Ranks, key: Hashable, find: Callable[[], T]) -> T:
    found: T = ranks.once(key, find) if isinstance(ranks, PolledRanks) else find()
    return found


def needs(rank: int, ranks: Ranks) -> list[frozenset[int]]:
    """What the blocked ``rank`` waits for: one rank of each set must come. Empty: for no rank that is known."""
    activity = ranks[rank].activity
    if activity.kind == "collective":
        return [frozenset((m,)) for call in activity.calls for m in missing(call, ranks)]
    if activity.kind == "transfer":
        partners = [_partner(rank, call, ranks) for call in activity.calls]
        return [frozenset().union(*partners)] if all(partners) else []  # it waits for one of the calls
    others = frozenset(ranks) - {rank}
    if activity.op in ("new_group", "split_group"):
        wanted = frozenset(activity.needs) & others or others
        return [frozenset((m,)) for m in sorted(wanted - _at_store(activity.op, ranks))]
    return [others]


def _at_store(op: str, ranks: Ranks) -> frozenset[int]:
    """The ranks that are blocked in an operation at the store."""

    def find() -> frozenset[int]:
        there = (r for r, s in ranks.items() if s.is_blocked and s.activity.kind == "store" and s.activity.op == op)
        return frozenset(there)

    return _once(ranks, ("store", op), find)


def missing(call: Call, ranks: Ranks) -> list[int]:
    """The members of a collective's group that have not entered it, or have left it with an error."""
    return _once(ranks, ("missing", call.group, call.number), lambda: _missing(call, ranks))


def _missing(call: Call, ranks: Ranks) -> list[int]:
    found = []
    for member in members(call.group, ranks):
        snapshot = ranks.get(member)
        if snapshot is None or (snapshot.observation is None and snapshot.part != "lost"):
            continue  # nothing is known of this member: it may be in the call
        progress = snapshot.progress(call.group)
        begun = progress.begun if progress is not None else 0
        has_left = begun == call.number and snapshot.part == "failed" and _has_failed_in(call, snapshot)
        if snapshot.part == "lost" or begun < call.number or has_left:
            found.append(member)
    return found


def _has_failed_in(call: Call, snapshot: RankSnapshot) -> bool:
    """Whether a rank that has failed did so in its last collective of a group, or, as far as is known, may have.

    An asynchronous one that has failed is remembered as done: if a connection broke, it failed there, unless it failed
    in a later call of another group.
    """
    own = snapshot.call(call.group, call.number)
    if own is None:
        return snapshot.is_echo
    has_failed_later = any(c.has_failed and c.started > own.started for c in snapshot.calls)
    return own.has_failed or not own.is_done or (snapshot.is_echo and not has_failed_later)


def is_behind(rank: int, ranks: Ranks) -> bool:
    """Whether a member of the group is past the collective that ``rank`` is in, which is thus about to leave it."""
    return any(_ahead(call, ranks) - {rank} for call in ranks[rank].activity.calls if call.number)


def _ahead(call: Call, ranks: Ranks) -> frozenset[int]:
    """The ranks that are past a collective in its group."""

    def find() -> frozenset[int]:
        progress = ((r, snapshot.progress(call.group)) for r, snapshot in ranks.items())
        return frozenset(r for r, p in progress if p is not None and p.begun > call.number)

    return _once(ranks, ("ahead", call.group, call.number), find)


def members(group: str, ranks: Ranks) -> tuple[int, ...]:
    """The ranks of a group in ascending order, from any rank that knows it; empty if none does."""
    found = (p.ranks for s in ranks.values() if (p := s.progress(group)) is not None)
    return _once(ranks, ("members", group), lambda: next(found, ()))


def _partner(rank: int, call: Call, ranks: Ranks) -> frozenset[int]:
    """The ranks of which one must come for a send or recv; empty if its other half is in flight already."""
    if call.peer is None:
        return frozenset()
    others = frozenset(ranks) - {rank}
    if call.peer == ANY:
        others = others.intersection(members(call.group, ranks) or others)
    else:
        others &= {call.peer}
    return frozenset() if is_served(rank, call, ranks) else others


def is_served(rank: int, call: Call, ranks: Ranks) -> bool:
    """Whether the other half of a send or recv has begun, or may have."""
    return not call.nth or begun_for(rank, call, ranks) >= call.nth


def begun_for(rank: int, call: Call, ranks: Ranks) -> int:
    """How many messages of the call's channel have their other half, at most."""
    own, place, peer = ranks[rank], (call.group, call.tag), ANY if call.peer is None else call.peer
    if call.is_send:
        partner = ranks.get(peer, own)
        from_any = partner.channel(*place, ANY, is_send=False)
        elsewhere = sum(n for source, n in from_any.taken if source != rank)
        return partner.channel(*place, rank, is_send=False).begun + from_any.begun - elsewhere
    sent = {r: s.channel(*place, rank, is_send=True).begun for r, s in ranks.items()}
    if peer != ANY:
        taken = dict(own.channel(*place, ANY, is_send=False).taken)
        return sent.get(peer, 0) - taken.get(peer, 0)
    by_name = (own.channel(*place, r, is_send=False) for r in ranks)
    return sum(sent.values()) - sum(channel.begun - channel.in_flight for channel in by_name)


def meet(rank: int, recv: Call, other: int, send: Call, ranks: Ranks) -> bool:
    """Whether a recv of ``rank`` and a send of ``other`` are the halves of one message, as far as can be told."""
    if send.peer != rank or not send.is_send or (recv.group, recv.tag) != (send.group, send.tag):
        return False
    if recv.peer == other:
        return recv.nth == send.nth != 0
    place = recv.group, recv.tag
    taken = dict(ranks[rank].channel(*place, ANY, is_send=False).taken).get(other, 0)
    got = taken + ranks[rank].channel(*place, other, is_send=False).begun
    return recv.peer == ANY and send.nth == got + 1


def may_move(ranks: Ranks) -> set[int]:
    """The ranks that run, and those that wait only for such ranks."""
    moving = {r for r, snapshot in ranks.items() if not snapshot.is_over and not snapshot.is_blocked}
    wanted = {r: needs(r, ranks) for r, snapshot in ranks.items() if snapshot.is_blocked}
    while True:
        freed = {r for r, sets in wanted.items() if r not in moving and all(s & moving for s in sets)}
        if not freed:
            return moving
        moving |= freed


def circle(stuck: Iterable[int], ranks: Ranks) -> list[int]:
    """Ranks each of which waits for the next, and the last for the first; empty if there is no such circle."""
    stuck = set(stuck)
    path: list[int] = [min(stuck)] if stuck else []
    while path:
        step = min((m for need in needs(path[-1], ranks) for m in need if m in stuck), default=None)
        if step is None:
            return []
        if step in path:
            return path[path.index(step) :]
        path.append(step)
    return []
