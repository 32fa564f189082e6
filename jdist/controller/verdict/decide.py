"""Decide: why a run makes no progress, from what a poll has found out about each rank. Pure.

The rules, of which the first that applies decides::

    rule        applies if                                              kind                      responsible
    mismatched  members of a group called different things under one    mismatch                  the minority, or all
                sequence number
    absent      a wait needs a rank whose part of the run is over       missing, transfer, store  that rank
    circular    the waits form a circle                                 cycle, transfer           its members
    slow        a wait has lasted ``slow_after`` seconds, and leads to  slow                      the busy ranks
                a busy rank

:mod:`~jdist.controller.verdict.wait_graph` says who waits for whom, :mod:`~jdist.controller.verdict.phrases` words it.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from jdist.controller.verdict import mismatch, phrases
from jdist.controller.verdict.wait_graph import Ranks, RankSnapshot, circle, may_move, needs
from jdist.core.observation import INTERRUPT, ActivityKind, Call, Verdict, VerdictKind
from jdist.core.ranks import describe_ranks
from jdist.core.remedy import Remedy

_KINDS: dict[ActivityKind, VerdictKind] = {"collective": "missing", "transfer": "transfer", "store": "store"}
_LASTING = 0.2  # Seconds in a collective after which a rank is taken to wait in it, rather than to pass through.


class Case(Struct, frozen=True):
    """What the rules decide on: the run, and all ranks of the world."""

    run: int
    ranks: Ranks
    blocked: list[int]  # The ranks of the run that are blocked.
    stuck: list[int] = []  # Those of them that can only wait: nothing that runs can lead to their end.
    slow_after: float = 0.0


def decide(run: int, ranks: Ranks, slow_after: float = 5.0) -> Verdict | None:
    """Why ``run`` cannot finish, or waits; None while nothing is wrong with it."""
    blocked = [r for r, snapshot in ranks.items() if snapshot.is_blocked and snapshot.part == "running"]
    moving = may_move(ranks)
    case = Case(run, ranks, blocked, [r for r in blocked if r not in moving], slow_after)
    return next((found for rule in RULES if (found := rule(case)) is not None), None)


def _mismatched(case: Case) -> Verdict | None:
    ranks = case.ranks
    for rank in case.blocked:
        last = last_call(ranks[rank])
        for call in ranks[rank].activity.calls or ((last,) if last is not None else ()):
            found = mismatch.find(call.group, call.number, ranks) if call.number else None
            if found is not None:
                waiting = tuple(r for r in case.blocked if any(c.group == call.group for c in ranks[r].activity.calls))
                return mismatch.verdict(case.run, found, call.op, phrases.label(call, ranks[rank]), waiting)
    return None


def _absent(case: Case) -> Verdict | None:
    ranks = case.ranks
    needed = {}  # The ranks whose part is over, by the rank that cannot continue without them.
    for rank in case.stuck:
        over = {other for need in needs(rank, ranks) if all(ranks[o].is_over for o in need) for other in need}
        if over:
            needed[rank] = over
    if not needed:
        return None
    first = max(needed, key=lambda r: (sum(ranks[o].pending == ranks[r].pending for o in needed), -r))
    responsible = tuple(sorted(needed[first]))
    activity = ranks[first].activity
    reason = phrases.absence(first, responsible, ranks)
    details = (*phrases.waits(case.stuck, first, ranks), *(phrases.whereabouts(r, ranks[r]) for r in responsible))
    remedies = (INTERRUPT, *_joining(responsible, ranks, activity.kind))
    kind, waiting = _KINDS[activity.kind], tuple(case.stuck)
    return Verdict(case.run, kind, responsible, waiting, reason, details, remedies, *_pending(first, ranks))


def _joining(responsible: tuple[int, ...], ranks: Ranks, kind: ActivityKind) -> tuple[Remedy, ...]:
    """A cell that lets the responsible ranks join, if all of them have a process that is free to run it."""
    if any(not ranks[r].is_over or ranks[r].part == "lost" for r in responsible):
        return ()
    what = {"collective": "the same collective", "transfer": "the other half", "store": "the same"}[kind]
    effect = f"let {describe_ranks(responsible)} join by calling {what}"
    return (Remedy("run_cell", effect, ",".join(map(str, responsible))),)


def _circular(case: Case) -> Verdict | None:
    if not case.stuck:
        return None
    ranks = case.ranks
    ring = circle(case.stuck, ranks) or case.stuck
    is_exchange = len(ring) == 2 and all(ranks[r].activity.kind == "transfer" for r in ring)
    reason, details = phrases.circle(ring, case.stuck, ranks, is_exchange)
    kind: VerdictKind = "transfer" if is_exchange else "cycle"
    return Verdict(case.run, kind, tuple(sorted(ring)), tuple(case.stuck), reason, details, (INTERRUPT,))


def _slow(case: Case) -> Verdict | None:
    ranks = case.ranks
    waiting = [r for r in case.blocked if ranks[r].activity.seconds >= case.slow_after and needs(r, ranks)]
    busy = sorted(_busy_ends(waiting, ranks))
    if not busy:
        return None
    first = min(waiting)
    reason = f"{describe_ranks(waiting, 'waits')} for {phrases.who(busy, ranks)}"
    details = (*phrases.waits(waiting, first, ranks), *phrases.work(busy, ranks))
    pending = _pending(first, ranks)
    return Verdict(case.run, "slow", tuple(busy), tuple(waiting), reason, details, (INTERRUPT,), *pending)


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


RULES: tuple[Callable[[Case], Verdict | None], ...] = (_mismatched, _absent, _circular, _slow)


def _pending(rank: int, ranks: Ranks) -> tuple[str, str, int]:
    """The operation, group and sequence number that ``rank`` is blocked in, as a verdict gives them."""
    op, call = ranks[rank].activity.op, ranks[rank].blocked_in
    return (op, "", 0) if call is None else (op, phrases.label(call, ranks[rank]), call.number)


def last_call(snapshot: RankSnapshot) -> Call | None:
    """The collective that the rank is in, or failed in."""
    last = max((c for c in snapshot.calls if c.peer is None), key=lambda c: c.started, default=None)
    if last is None or snapshot.part not in ("running", "failed"):
        return None
    is_in_it = last.has_failed if snapshot.part == "failed" else not last.is_done
    return last if is_in_it else None


def decide_at_deadline(run: int, ranks: Ranks) -> Verdict | None:
    """What the ranks of a run do whose time is up, where no rank waits for another."""
    busy = [r for r, snapshot in ranks.items() if snapshot.part == "running" and not snapshot.is_blocked]
    if not busy:
        return None
    reason = f"{describe_ranks(busy, 'is')} still busy"
    return Verdict(run, "slow", tuple(busy), (), reason, phrases.work(busy, ranks), (INTERRUPT,))


def decide_on_loss(run: int, rank: int, where: str, reason: str) -> Verdict:
    """A rank's process is gone."""
    return Verdict(run, "lost", (rank,), (), f"{where} is lost: {reason}")


def decide_on_crash(run: int, rank: int, ranks: Ranks) -> Verdict | None:
    """Why the C++ code of ``rank`` ended its process, as gloo does when a message is larger than its receiver expects.

    The other ranks' calls show it if they differ. In a group of two only the survivor's call is known, which did not
    match. None if the others agree: then the rank itself called something else, or died for another reason.
    """
    others = [r for r, snapshot in ranks.items() if r != rank and snapshot.observation is not None]
    found = _mismatched(Case(run, ranks, others))
    if found is not None:
        return found
    partners = {}
    for other, snapshot in ranks.items():
        call = last_call(snapshot)
        progress = snapshot.progress(call.group) if call is not None else None
        if call is not None and progress is not None and set(progress.ranks) == {rank, other}:
            partners[other] = call
    if not partners:
        return None
    reason, details = phrases.crash(rank, partners, ranks)
    responsible = tuple(sorted({rank, *partners}))
    return Verdict(run, "mismatch", responsible, tuple(partners), reason, details, (INTERRUPT,))


def is_confirmed(found: Verdict, ranks: Ranks) -> bool:
    """Whether one poll is proof enough: every wait is in a numbered collective (see wait_graph), and has lasted."""
    waits = [ranks[r].activity for r in found.waiting]
    return all(activity.kind == "collective" and activity.seconds >= _LASTING for activity in waits)
