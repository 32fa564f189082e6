"""Waiting: who waits for whom, and who of them may still move by itself. Pure.

A rank that is blocked has *needs*, each a set of ranks of which one must come. A rank *may move* if it runs Python, or
if every need of it has somebody who may move. The others can only wait: for a rank whose part of the run is over, or
for each other in a circle.

The looks of different ranks are taken at different moments, and yet this is sound for collectives: how many of them a
rank has begun in a group only grows, and a rank cannot leave one that another member has not begun. Sends and receives
are not numbered, so what is found out about them counts when the next look sees the same calls still in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from jdist.core.messages.observation import Observation
from jdist.core.observation import ANY, Activity, Call, GroupProgress

Part = Literal["running", "done", "failed", "free", "elsewhere", "lost"]
"""running: in the run. done, failed: its part of the run is over. free: not in the run, and idle. elsewhere: in another
run's cell. lost: its process is gone, and what has taken its place is in no group yet."""

_BLOCKED = ("collective", "transfer", "store")


class Seen(Struct, frozen=True):
    """One rank at a look."""

    where: str
    """"rank 1 (node 0, hostname)"."""
    part: Part
    look: Observation | None = None
    """None: nothing is known but its part."""
    ago: float = 0.0
    """Seconds since its part was over."""
    note: str = ""
    """How it failed, or which run it is in."""

    @property
    def is_unknown(self) -> bool:
        """It did not answer: how far it has come is not known, though its part may be over."""
        return self.part not in ("lost", "elsewhere") and self.doing.kind == "silent"

    @property
    def is_over(self) -> bool:
        """It enters nothing more in this run, and what it has entered is known."""
        return self.part in ("done", "failed", "free", "lost") and not self.is_unknown

    @property
    def doing(self) -> Activity:
        return self.look.doing if self.look is not None else Activity("silent")

    @property
    def is_blocked(self) -> bool:
        return not self.is_over and self.look is not None and self.doing.kind in _BLOCKED

    def progress(self, group: str) -> GroupProgress | None:
        """How far it is in a group; None where that is not known."""
        found = self.look.groups if self.look is not None else ()
        return next((g for g in found if g.name == group), None)

    def call(self, group: str, number: int) -> Call | None:
        """Its collective of this number, if it is remembered."""
        calls = (*self.look.recent, *self.doing.calls) if self.look is not None else ()
        return next((c for c in calls if c.group == group and c.number == number and c.peer is None), None)

    def transfers(self) -> list[Call]:
        """Its sends and recvs that are in flight."""
        calls = (*self.look.recent, *self.doing.calls) if self.look is not None else ()
        return [c for c in calls if c.peer is not None and not c.is_done]


Ranks = Mapping[int, Seen]


def needs(rank: int, ranks: Ranks) -> list[frozenset[int]]:
    """What the blocked ``rank`` waits for: one rank of each set must come. Empty: it waits for nobody that is known."""
    doing = ranks[rank].doing
    if doing.kind == "collective":
        return [frozenset((m,)) for call in doing.calls for m in missing(call, ranks)]
    if doing.kind == "transfer":
        partners = [_partner(rank, call, ranks) for call in doing.calls]
        return [frozenset().union(*partners)] if all(partners) else []  # it waits for one of them
    others = frozenset(ranks) - {rank}
    if doing.op in ("new_group", "split_group"):
        wanted = frozenset(doing.needs) & others or others
        return [frozenset((m,)) for m in sorted(wanted) if not _is_at_store(ranks[m], doing.op)]
    return [others]


def missing(call: Call, ranks: Ranks) -> list[int]:
    """The members of a collective's group that have not entered it, or have left it with an error."""
    members = next((p.ranks for s in ranks.values() if (p := s.progress(call.group)) is not None), ())
    found = []
    for member in members:
        seen = ranks.get(member)
        progress = seen.progress(call.group) if seen is not None else None
        if seen is not None and seen.part == "lost":
            found.append(member)
        if seen is None or seen.look is None:
            continue  # nothing is known of it: it may be in it
        begun = progress.begun if progress is not None else 0
        if begun < call.number or (begun == call.number and seen.part == "failed" and not _has_done(seen, call)):
            found.append(member)
    return found


def _has_done(seen: Seen, call: Call) -> bool:
    own = seen.call(call.group, call.number)
    return own is None or own.is_done


def _partner(rank: int, call: Call, ranks: Ranks) -> frozenset[int]:
    """Who must come for a send or recv; nobody where its other half is in flight already."""
    if call.peer is None:
        return frozenset()
    others = frozenset(ranks) - {rank} if call.peer == ANY else frozenset((call.peer,)) & ranks.keys()
    if any(_is_other_half(rank, call, c) for o in others for c in ranks[o].transfers()):
        return frozenset()
    return others


def _is_other_half(rank: int, call: Call, other: Call) -> bool:
    return is_send(call) != is_send(other) and other.peer in (rank, ANY) and call.tag == other.tag


def is_send(call: Call) -> bool:
    """Whether it is a send, against a recv."""
    return "send" in call.op


def _is_at_store(seen: Seen, op: str) -> bool:
    return seen.is_blocked and seen.doing.kind == "store" and seen.doing.op == op


def may_move(ranks: Ranks) -> set[int]:
    """The ranks that run, and those that wait for nobody else than such ranks."""
    moving = {r for r, seen in ranks.items() if not seen.is_over and not seen.is_blocked}
    wanted = {r: needs(r, ranks) for r, seen in ranks.items() if seen.is_blocked}
    while True:
        freed = {r for r, sets in wanted.items() if r not in moving and all(s & moving for s in sets)}
        if not freed:
            return moving
        moving |= freed


def circle(stuck: Iterable[int], ranks: Ranks) -> list[int]:
    """Ranks of which each waits for the next, and the last for the first; empty if there are none."""
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
