"""Wait graph: which rank waits for which, and which of them may still move by itself. Pure.

A blocked rank has *needs*, each a set of ranks of which one must come. A rank *may move* if it runs Python, or if each
of its needs contains a rank that may move. The other ranks can only wait: for a rank whose part of the run is over, or
for each other in a circle.

The ranks are observed at different moments. The graph is sound for collectives nevertheless: the number of collectives
that a rank has begun in a group only grows, and no rank can leave one that another member has not begun. Sends and
receives have no numbers, so a finding about them counts only if the next poll sees the same calls still in flight.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from jdist.core.messages.observation import Observation
from jdist.core.observation import ANY, Activity, Call, GroupProgress

# running: in the run. done, failed: its part of the run is over. free: not in the run, and idle. elsewhere: in another
# run's cell. lost: its process is gone, and its replacement is in no group yet.
Part = Literal["running", "done", "failed", "free", "elsewhere", "lost"]

_BLOCKED = ("collective", "transfer", "store")


class RankSnapshot(Struct, frozen=True):
    """One rank, as a poll has found it."""

    where: str  # "rank 1 (node 0, hostname)".
    part: Part
    observation: Observation | None = None  # None: nothing is known but its part.
    ago: float = 0.0  # Seconds since its part was over.
    note: str = ""  # How it failed, or which run it is in.

    @property
    def is_unknown(self) -> bool:
        """It did not answer: its progress is not known, though its part may be over."""
        return self.part not in ("lost", "elsewhere") and self.activity.kind == "silent"

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
        return not self.is_over and self.observation is not None and self.activity.kind in _BLOCKED

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
        return next((c for c in self.calls if c.group == group and c.number == number and c.peer is None), None)


Ranks = Mapping[int, RankSnapshot]  # All ranks of the world.


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
        there = {r for r in wanted if ranks[r].is_blocked and ranks[r].activity.kind == "store"}
        return [frozenset((m,)) for m in sorted(wanted) if m not in there or ranks[m].activity.op != activity.op]
    return [others]


def missing(call: Call, ranks: Ranks) -> list[int]:
    """The members of a collective's group that have not entered it, or have left it with an error."""
    found = []
    for member in members(call.group, ranks):
        snapshot = ranks.get(member)
        if snapshot is None or (snapshot.observation is None and snapshot.part != "lost"):
            continue  # nothing is known of this member: it may be in the call
        progress, own = snapshot.progress(call.group), snapshot.call(call.group, call.number)
        begun = progress.begun if progress is not None else 0
        has_left = begun == call.number and snapshot.part == "failed" and own is not None and not own.is_done
        if snapshot.part == "lost" or begun < call.number or has_left:
            found.append(member)
    return found


def members(group: str, ranks: Ranks) -> tuple[int, ...]:
    """The ranks of a group in its own order, from any rank that knows it; empty if none does."""
    return next((p.ranks for s in ranks.values() if (p := s.progress(group)) is not None), ())


def _partner(rank: int, call: Call, ranks: Ranks) -> frozenset[int]:
    """The ranks of which one must come for a send or recv; empty if its other half is in flight already."""
    if call.peer is None:
        return frozenset()
    others = frozenset(ranks) - {rank} if call.peer == ANY else frozenset((call.peer,)) & ranks.keys()
    for other in (c for r in others for c in ranks[r].calls if c.peer in (rank, ANY) and not c.is_done):
        if is_send(call) != is_send(other) and call.tag == other.tag:
            return frozenset()
    return others


def is_send(call: Call) -> bool:
    """Whether the transfer is a send, not a recv."""
    return "send" in call.op


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
