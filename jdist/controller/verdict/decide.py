"""Decide: why a run makes no progress, from what a poll has found out about each rank. Pure.

The rules, of which the first that applies decides::

    rule        applies if                                              kind                      responsible
    mismatched  members of a group called different things under one    mismatch                  those that differ from
                sequence number                                                                   a majority
    absent      a wait needs a rank whose part of the run is over       missing, transfer, store  that rank, or if most
                                                                                                  are over, the others
    unset       a rank waits at the store for a key, and every rank     store                     that rank, or no rank
                that could set it can only wait                                                   if all do
    circular    the waits form a circle                                 cycle, transfer           its members
    paused      a wait leads to a paused rank                           slow                      the paused ranks
    slow        a wait has lasted ``slow_after`` seconds, and leads to  slow                      the busy ranks
                a busy rank
    undelivered so has a wait for a message that has begun, though its  slow                      that rank
                other rank's part is over

:mod:`~jdist.controller.verdict.wait_graph` says who waits for whom, :mod:`~jdist.controller.verdict.phrases` words it.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from jdist.controller.verdict import mismatch, phrases
from jdist.controller.verdict.wait_graph import (
    Ranks,
    RankSnapshot,
    circle,
    is_served,
    may_move,
    meet,
    members,
    missing,
    needs,
)
from jdist.core.errors import Remedy
from jdist.core.messages.observation import ActivityKind, Call, Verdict, VerdictKind, sizes

# How C++ code ends a process; gloo does so where a peer sent more than expected: the ranks' calls did not fit.
_CRASHES = ("(SIGABRT)", "(SIGSEGV)", "(SIGBUS)")
_KINDS: dict[ActivityKind, VerdictKind] = {"collective": "missing", "transfer": "transfer", "store": "store"}
_LASTING = 0.2  # Seconds in a collective after which a rank is taken to wait in it, rather than to pass through.


class Case(Struct, frozen=True):
    """What the rules decide on: the run, and all ranks of the world."""

    run: int
    ranks: Ranks
    blocked: list[int]  # The ranks of the run that are blocked.
    stuck: list[int] = []  # Those of them that can only wait: nothing that runs can lead to their end.
    slow_after: float = 0.0

    @property
    def interrupt(self) -> Remedy:
        """Suggested for every run that makes no progress."""
        return phrases.interrupt(self.run, self.ranks)


def decide(run: int, ranks: Ranks, slow_after: float = 5.0) -> Verdict | None:
    """Why ``run`` cannot finish, or waits; None while nothing is wrong with it."""
    blocked = [r for r, snapshot in ranks.items() if snapshot.is_blocked and snapshot.part == "running"]
    moving = may_move(ranks)
    case = Case(run, ranks, blocked, [r for r in blocked if r not in moving], slow_after)
    return next((found for rule in RULES if (found := rule(case)) is not None), None)


def _mismatched(case: Case) -> Verdict | None:
    ranks = case.ranks
    compared: set[tuple[str, int]] = set()  # Collectives, by group and number, whose calls do not differ.
    for rank in case.blocked:
        last = last_call(ranks[rank])
        for call in ranks[rank].activity.calls or ((last,) if last is not None else ()):
            at = call.group, call.number
            if at in compared or not call.number:
                continue
            compared.add(at)
            found = mismatch.find(*at, ranks)
            if found is not None:
                blocked = [r for r in case.blocked if ranks[r].is_blocked]
                waiting = tuple(r for r in blocked if any(c.group == call.group for c in ranks[r].activity.calls))
                label = phrases.label(call, ranks[rank])
                return decide_on_mismatch(case.run, found, call.op, label, waiting, (case.interrupt,))
    return None


def decide_on_mismatch(
    run: int,
    found: mismatch.Mismatch,
    op: str,
    group: str,
    waiting: tuple[int, ...] = (),
    remedies: tuple[Remedy, ...] = (),
    *,
    has_passed: bool = False,
) -> Verdict:
    """The verdict on a mismatch in ``group``; ``has_passed``: it blocked no rank."""
    reason, details = phrases.mismatch(found, group, has_passed=has_passed)
    number = found.number
    return Verdict(
        run, "mismatch", found.responsible, waiting, reason, details, remedies, op, group, number, has_passed
    )


def decide_on_digests(run: int, parties: Sequence[tuple[int, ...]], group: str) -> Verdict:
    """The verdict on a group whose ranks made different calls; those of a party made equal calls."""
    responsible = mismatch.accused(parties, sum(map(len, parties)))
    reason = phrases.unlike_digests(parties, responsible, group)
    return Verdict(run, "mismatch", responsible, (), reason, group=group, has_passed=True)


def _absent(case: Case) -> Verdict | None:
    ranks = case.ranks
    needed = {}  # The ranks whose part is over, by the rank that cannot continue without them.
    for rank in case.stuck:
        over = {other for need in needs(rank, ranks) if all(ranks[o].is_over for o in need) for other in need}
        if over:
            needed[rank] = over
    if not needed:
        return None
    alike = Counter(tuple(ranks[r].pending) for r in needed)
    first = max(needed, key=lambda r: (alike[tuple(ranks[r].pending)], -r))
    responsible = tuple(sorted(needed[first]))
    activity = ranks[first].activity
    details = (*phrases.waits(case.stuck, first, ranks), *(phrases.whereabouts(r, ranks[r]) for r in responsible))
    call = ranks[first].blocked_in
    has_left = call is not None and any(phrases.has_left(ranks[r], call) for r in responsible)
    remedies = (case.interrupt,) if has_left else (case.interrupt, *_joining(responsible, ranks, activity.kind))
    kind, waiting = _KINDS[activity.kind], tuple(case.stuck)
    few = _few_that_entered(call, ranks)
    reason = phrases.entered_alone(first, few, ranks) if few else phrases.absence(first, responsible, ranks)
    return Verdict(case.run, kind, few or responsible, waiting, reason, details, remedies, *_pending(first, ranks))


def _few_that_entered(call: Call | None, ranks: Ranks) -> tuple[int, ...]:
    """The ranks that entered a collective, if most of its group has finished or is in other calls; else empty."""
    if call is None or not call.number:
        return ()
    absent, group = missing(call, ranks), members(call.group, ranks)
    if 2 * len(absent) <= len(group) or not all(ranks[r].part == "done" or ranks[r].is_blocked for r in absent):
        return ()
    return tuple(r for r in group if r in ranks and r not in absent and ranks[r].observation is not None)


def _joining(responsible: tuple[int, ...], ranks: Ranks, kind: ActivityKind) -> tuple[Remedy, ...]:
    """A cell that lets the responsible ranks join, if all of them have a process that is free to run it."""
    if any(not ranks[r].is_over or ranks[r].part == "lost" for r in responsible):
        return ()
    return (phrases.join(responsible, kind),)


def _unset(case: Case) -> Verdict | None:
    """Ranks wait for a key that no rank will set, because every rank that could set it can only wait itself."""
    ranks = case.ranks
    at_store = [
        r for r in case.stuck if ranks[r].activity.kind == "store" and ranks[r].activity.op.startswith("store.")
    ]
    if not at_store:
        return None
    reason = phrases.unset(at_store, ranks)
    details = phrases.waits(case.stuck, at_store[0], ranks)
    responsible = tuple(at_store) if len(at_store) < len(case.stuck) else ()
    return Verdict(case.run, "store", responsible, tuple(case.stuck), reason, details, (case.interrupt,))


def _circular(case: Case) -> Verdict | None:
    if not case.stuck:
        return None
    ranks = case.ranks
    ring = circle(case.stuck, ranks) or case.stuck
    is_exchange = len(ring) == 2 and all(ranks[r].activity.kind == "transfer" for r in ring)
    reason, details = phrases.circle(ring, case.stuck, ranks, is_exchange)
    kind: VerdictKind = "transfer" if is_exchange else "cycle"
    return Verdict(case.run, kind, tuple(sorted(ring)), tuple(case.stuck), reason, details, (case.interrupt,))


def _paused(case: Case) -> Verdict | None:
    """Ranks wait for paused ones, which are not to blame: they go on when they are told to."""
    ranks = case.ranks
    lasting = [r for r in case.blocked if ranks[r].activity.seconds >= _LASTING]
    ends = {r: {end for end in _busy_ends([r], ranks) if ranks[end].paused} for r in lasting}
    waiting = [r for r in lasting if ends[r]]
    if not waiting:
        return None
    paused = sorted(set().union(*ends.values()))
    reason = phrases.wait_for_paused(paused, waiting, ranks)
    details = (*phrases.waits(waiting, waiting[0], ranks), *phrases.work(paused, ranks))
    remedies = (phrases.resume(paused), case.interrupt)
    return Verdict(
        case.run, "slow", tuple(paused), tuple(waiting), reason, details, remedies, *_pending(waiting[0], ranks)
    )


def _slow(case: Case) -> Verdict | None:
    ranks = case.ranks
    waiting = [r for r in case.blocked if ranks[r].activity.seconds >= case.slow_after and needs(r, ranks)]
    busy = sorted(_busy_ends(waiting, ranks))
    if not busy:
        return None
    first = min(waiting)
    reason = phrases.wait_for(busy, waiting, ranks)
    details = (*phrases.waits(waiting, first, ranks), *phrases.work(busy, ranks))
    pending = _pending(first, ranks)
    return Verdict(case.run, "slow", tuple(busy), tuple(waiting), reason, details, (case.interrupt,), *pending)


def _undelivered(case: Case) -> Verdict | None:
    """A message has begun and does not arrive: it is large, or its Work was dropped, and gloo cancelled it."""
    ranks = case.ranks
    for rank in case.blocked:
        activity, call = ranks[rank].activity, ranks[rank].blocked_in
        if call is None or call.peer is None or not call.nth or activity.seconds < case.slow_after:
            continue
        peer = call.peer
        if peer in ranks and ranks[peer].is_over and is_served(rank, call, ranks):
            reason, details = phrases.undelivered(rank, call, ranks)
            return Verdict(case.run, "slow", (peer,), (rank,), reason, details, (case.interrupt,), call.op)
    return None


def _busy_ends(waiting: Iterable[int], ranks: Ranks) -> set[int]:
    """The ranks at the far end of the waits that are neither blocked nor over."""
    found: set[int] = set()
    todo, known = list(waiting), set(waiting)
    while todo:
        for need in needs(todo.pop(), ranks):
            for rank in need - known:
                known.add(rank)
                if ranks[rank].is_blocked:
                    todo.append(rank)
                elif not ranks[rank].is_over:
                    found.add(rank)
    return found


RULES: tuple[Callable[[Case], Verdict | None], ...] = (
    _mismatched,
    _absent,
    _unset,
    _circular,
    _paused,
    _slow,
    _undelivered,
)


def _pending(rank: int, ranks: Ranks) -> tuple[str, str, int]:
    """The operation, group and sequence number that ``rank`` is blocked in, as a verdict gives them."""
    op, call = ranks[rank].activity.op, ranks[rank].blocked_in
    return (op, "", 0) if call is None else (op, phrases.label(call, ranks[rank]), call.number)


def last_call(snapshot: RankSnapshot) -> Call | None:
    """The collective that the rank is in, or failed in."""
    last = max((c for c in snapshot.calls if c.peer is None), key=lambda c: c.started, default=None)
    return last if last is not None and _is_in(snapshot, last) else None


def _is_in(snapshot: RankSnapshot, call: Call) -> bool:
    return {"running": not call.is_done, "lost": not call.is_done, "failed": call.has_failed}.get(snapshot.part, False)


def decide_at_deadline(run: int, ranks: Ranks) -> Verdict | None:
    """What the ranks of a run do whose time is up, where no rank waits for another."""
    busy = [r for r, snapshot in ranks.items() if snapshot.part == "running" and not snapshot.is_blocked]
    if not busy:
        return None
    reason = phrases.still_busy(busy)
    return Verdict(run, "slow", tuple(busy), (), reason, phrases.work(busy, ranks), (phrases.interrupt(run, ranks),))


def is_crash(reason: str) -> bool:
    """Whether a process was ended by its own C++ code, possibly because ranks' calls did not match."""
    return any(signal in reason for signal in _CRASHES)


def decide_on_loss(run: int, losses: Ranks, others: Ranks) -> Verdict:
    """The verdict on a run that has lost ranks: a mismatch of their calls if there is one, else that they are lost.

    gloo ends a process whose message is larger than its receiver expects, and that may be any of the ranks. What the
    lost ranks were calling is in their snapshots, if they could report it; ``others`` are known from a poll.
    """
    reason, others_lost = phrases.losses(losses)
    if any(is_crash(snapshot.note) for snapshot in losses.values()):
        ranks = {**losses, **{r: snapshot for r, snapshot in others.items() if r not in losses}}  # their calls first
        seen = [r for r, snapshot in ranks.items() if snapshot.observation is not None]
        found = _mismatched(Case(run, ranks, seen)) or _misfit_transfer(run, losses, ranks)
        found = found or next((v for rank in losses if (v := _unlike_its_partner(run, rank, ranks)) is not None), None)
        if found is not None:
            return structs.replace(found, details=(*found.details, reason, *others_lost), remedies=())
    return Verdict(run, "lost", tuple(losses), (), reason, others_lost)


def _misfit_transfer(run: int, lost: Iterable[int], ranks: Ranks) -> Verdict | None:
    """A lost rank received a message that was larger than what it expected."""
    for rank in lost:
        receives = [c for c in ranks[rank].calls if c.peer is not None and not c.is_send and not c.is_done]
        sends = [(r, c) for r, s in ranks.items() for c in s.calls if c.peer == rank]
        for own, (other, call) in itertools.product(receives, sends):
            is_half = meet(rank, own, other, call, ranks)
            if is_half and (call.dtypes, sizes(call)) != (own.dtypes, sizes(own)):
                what = "dtype" if call.dtypes != own.dtypes else "size"
                reason, details = phrases.misfit({rank: own, other: call}, what, ranks)
                waiting = tuple(r for r in (rank, other) if ranks[r].is_blocked)
                return Verdict(run, "mismatch", (), waiting, reason, details, (), own.op)
    return None


def _unlike_its_partner(run: int, rank: int, ranks: Ranks) -> Verdict | None:
    """A rank of a group of two died without reporting its call: it probably did not match the survivor's call."""
    if ranks[rank].observation is not None:
        return None
    partners = {}
    for other, snapshot in ranks.items():
        call = last_call(snapshot)
        progress = snapshot.progress(call.group) if call is not None else None
        if call is not None and progress is not None and set(progress.ranks) == {rank, other}:
            partners[other] = call
    if not partners:
        return None
    reason, details = phrases.crash(rank, partners, ranks)
    return Verdict(run, "mismatch", (), tuple(partners), reason, details)


def is_confirmed(found: Verdict, ranks: Ranks) -> bool:
    """Whether one poll is proof enough: every wait is in a collective that has its number, and has lasted."""
    waits = [ranks[r].activity for r in found.waiting]
    return all(
        at.kind == "collective" and at.seconds >= _LASTING and not any(call.is_expected for call in at.calls)
        for at in waits
    )
