"""Verdict: why a run does not move. Pure: what is known of each rank in, who is missing from what out."""

from __future__ import annotations

from collections.abc import Iterable

from jdist.controller.verdict import mismatch
from jdist.controller.verdict.wait_graph import Ranks, Seen, circle, is_send, may_move, missing, needs
from jdist.core.observation import ANY, ActivityKind, Call
from jdist.core.ranks import describe_ranks
from jdist.core.remedy import Remedy
from jdist.core.verdict import Verdict, VerdictKind

_KINDS: dict[ActivityKind, VerdictKind] = {"collective": "missing", "transfer": "transfer", "store": "store"}
_INTERRUPT = Remedy("interrupt", "stop the run everywhere, namespaces kept, group re-formed")
_SETTLED = 0.2
"""Seconds in a collective from which on its rank counts as waiting, not as passing through."""
_SLEEPING = 0.05
"""Share of a core below which a rank is said to sleep."""


def verdict(run: int, ranks: Ranks, slow_after: float = 5.0) -> Verdict | None:
    """Why ``run`` cannot finish, or waits; None while nothing is wrong with it.

    ``ranks`` are all ranks of the world. That some wait for one that is busy is said once they have waited for
    ``slow_after`` seconds.
    """
    blocked = [r for r, seen in ranks.items() if seen.is_blocked and seen.part == "running"]
    found = _mismatch(run, blocked, ranks)
    if found is not None:
        return found
    moving = may_move(ranks)
    stuck = [r for r in blocked if r not in moving]
    if stuck:
        return _stuck(run, stuck, ranks)
    waiting = [r for r in blocked if ranks[r].doing.seconds >= slow_after and needs(r, ranks)]
    return _slow(run, waiting, ranks) if waiting else None


def overdue(run: int, ranks: Ranks) -> Verdict | None:
    """What the ranks of a run do whose time is up, where nobody waits for anybody."""
    busy = [r for r, seen in ranks.items() if seen.part == "running" and not seen.is_blocked]
    if not busy:
        return None
    reason = f"{describe_ranks(busy, 'is')} still busy"
    return Verdict(run, "slow", tuple(busy), (), reason, _busy_lines(busy, ranks), (_INTERRUPT,))


def lost(run: int, rank: int, where: str, reason: str) -> Verdict:
    """A rank's process is gone."""
    return Verdict(run, "lost", (rank,), (), f"{where} is lost: {reason}")


def aborted(run: int, rank: int, ranks: Ranks) -> Verdict | None:
    """Why the C++ code of ``rank`` ended its process, as gloo does when a message is larger than its receiver expects.

    The others' calls tell, if they differ. Of two members of a group one is left, whose call did not fit the other's.
    None where the others agree: then the rank itself called something else, or died for another reason.
    """
    found = _mismatch(run, [r for r, seen in ranks.items() if r != rank and seen.look is not None], ranks)
    if found is not None:
        return found
    partners = {}
    for other, seen in ranks.items():
        call = _last_call(seen)
        progress = seen.progress(call.group) if call is not None else None
        if call is not None and progress is not None and set(progress.ranks) == {rank, other}:
            partners[other] = call
    if not partners:
        return None
    lines = tuple(f"rank {r} calls {mismatch.describe(c)} in group {_label(c, r, ranks)}" for r, c in partners.items())
    what = "that" if len(partners) == 1 else "one"
    reason = f"rank {rank} was ended by its C++ code in a call that did not fit {what} of {describe_ranks(partners)}"
    responsible = tuple(sorted({rank, *partners}))
    return Verdict(run, "mismatch", responsible, tuple(partners), reason, lines, (_INTERRUPT,))


def _last_call(seen: Seen) -> Call | None:
    """The collective that it is in, or failed in."""
    if seen.look is None or seen.part not in ("running", "failed"):
        return None
    calls = [c for c in (*seen.look.recent, *seen.doing.calls) if c.peer is None]
    last = max(calls, key=lambda c: c.started, default=None)
    return last if last is not None and (last.has_failed if seen.part == "failed" else not last.is_done) else None


def is_settled(found: Verdict, ranks: Ranks) -> bool:
    """Whether one look is proof enough: where every wait is in a numbered collective (see waiting), and lasts."""
    waits = [ranks[r].doing for r in found.waiting]
    return all(doing.kind == "collective" and doing.seconds >= _SETTLED for doing in waits)


# ---------------------------------------------------------------- the same number, different calls


def _mismatch(run: int, blocked: Iterable[int], ranks: Ranks) -> Verdict | None:
    for rank in blocked:
        last = _last_call(ranks[rank])
        for call in ranks[rank].doing.calls or ((last,) if last is not None else ()):
            found = mismatch.find(call.group, call.number, ranks) if call.number else None
            if found is None:
                continue
            label = _label(call, rank, ranks)
            parties = found.parties
            responsible = parties[-1][0] if len(parties[0][0]) > len(parties[-1][0]) else _all(p[0] for p in parties)
            waiting = tuple(r for r in blocked if any(c.group == call.group for c in ranks[r].doing.calls))
            if found.what == "operation":
                reason = f"the ranks of group {label} are in different collectives at #{found.number}"
            else:
                op = parties[0][1].partition(" ")[0]
                reason = f"{op} #{found.number} of group {label} differs between ranks in {found.what}"
            lines = mismatch.lines(found)
            return Verdict(
                run, "mismatch", responsible, waiting, reason, lines, (_INTERRUPT,), call.op, label, found.number
            )
    return None


def _all(parts: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted(r for part in parts for r in part))


# ---------------------------------------------------------------- nobody comes


def _stuck(run: int, stuck: list[int], ranks: Ranks) -> Verdict:
    """The waits of ranks that can only wait: those for ranks whose part is over are the root, else a circle is."""
    absent = {r: _absent(r, ranks) for r in stuck}
    rooted = [r for r in stuck if absent[r]]
    if not rooted:
        return _cycle(run, stuck, ranks)
    first = max(rooted, key=lambda r: (sum(_same_wait(r, o, ranks) for o in rooted), -r))
    responsible = tuple(absent[first])
    seen = ranks[first]
    call = seen.doing.calls[0] if seen.doing.calls else None
    label = _label(call, first, ranks) if call is not None else ""
    number = call.number if call is not None else 0
    lines = (*_waiting_lines(stuck, first, ranks), *(_whereabouts(m, ranks[m]) for m in responsible))
    remedies = (_INTERRUPT, *_join(responsible, ranks, seen.doing.kind))
    reason = _absence(first, responsible, call, label, ranks)
    return Verdict(
        run, _KINDS[seen.doing.kind], responsible, tuple(stuck), reason, lines, remedies, seen.doing.op, label, number
    )


def _absent(rank: int, ranks: Ranks) -> list[int]:
    """The ranks whose part is over and without which ``rank`` cannot go on."""
    return sorted({m for need in needs(rank, ranks) if all(ranks[o].is_over for o in need) for m in need})


def _same_wait(one: int, other: int, ranks: Ranks) -> bool:
    a, b = ranks[one].doing, ranks[other].doing
    return [(c.group, c.number, c.peer) for c in a.calls] == [(c.group, c.number, c.peer) for c in b.calls]


def _absence(rank: int, responsible: tuple[int, ...], call: Call | None, label: str, ranks: Ranks) -> str:
    doing = ranks[rank].doing
    who = ranks[responsible[0]].where if len(responsible) == 1 else describe_ranks(responsible)
    have = "has" if len(responsible) == 1 else "have"
    if doing.kind == "collective" and call is not None:
        entered = "has not entered" if len(responsible) == 1 else "have not entered"
        if all(
            ranks[c].part == "failed" and (p := ranks[c].progress(call.group)) and p.begun >= call.number
            for c in responsible
        ):
            entered = f"{have} left"
        return f"{who} {entered} {_named(call, label)}"
    if doing.kind == "transfer" and call is not None:
        other = "received from" if is_send(call) else "sent to"
        nobody = call.peer == ANY
        return f"{'no rank' if nobody else who} has {other} rank {rank}, which waits in {_transfer(call)}"
    what = doing.waits_for or "a key that no rank is left to set"
    if doing.op in ("new_group", "split_group"):
        return f"{who} {have} not called {doing.op}, which every rank of the world must call"
    return f"{describe_ranks([rank], 'waits')} at the store for {what}"


def _join(responsible: tuple[int, ...], ranks: Ranks, kind: ActivityKind) -> tuple[Remedy, ...]:
    able = [c for c in responsible if ranks[c].is_over and ranks[c].part != "lost"]
    if not able or len(able) < len(responsible):
        return ()
    what = {"collective": "the same collective", "transfer": "the other half", "store": "the same"}[kind]
    names = ",".join(map(str, able))
    return (Remedy("run_cell", f"let {describe_ranks(able)} join by calling {what}", names),)


def _cycle(run: int, stuck: list[int], ranks: Ranks) -> Verdict:
    ring = circle(stuck, ranks) or stuck
    arrows = " → ".join(str(r) for r in (*ring, ring[0]))
    crossed = len(ring) == 2 and all(ranks[r].doing.kind == "transfer" for r in ring)
    kind: VerdictKind = "transfer" if crossed else "cycle"
    what = "cross each other's sends and receives" if crossed else "wait for each other in a circle"
    lines = tuple(f"rank {r} waits in {_wait(r, ranks)}" for r in ring)
    more = tuple(f"rank {r} waits in {_wait(r, ranks)}, behind them" for r in stuck if r not in ring)
    return Verdict(
        run,
        kind,
        tuple(sorted(ring)),
        tuple(stuck),
        f"{describe_ranks(ring)} {what} ({arrows})",
        lines + more,
        (_INTERRUPT,),
    )


# ---------------------------------------------------------------- somebody is busy


def _slow(run: int, waiting: list[int], ranks: Ranks) -> Verdict | None:
    busy = sorted(_busy(waiting, ranks))
    if not busy:
        return None
    first = min(waiting)
    doing = ranks[first].doing
    call = doing.calls[0] if doing.calls else None
    label = _label(call, first, ranks) if call is not None else ""
    who = ranks[busy[0]].where if len(busy) == 1 else describe_ranks(busy)
    lines = (*_waiting_lines(waiting, first, ranks), *_busy_lines(busy, ranks))
    reason = f"{describe_ranks(waiting, 'waits')} for {who}"
    number = call.number if call is not None else 0
    return Verdict(run, "slow", tuple(busy), tuple(waiting), reason, lines, (_INTERRUPT,), doing.op, label, number)


def _busy(waiting: Iterable[int], ranks: Ranks) -> set[int]:
    """The ranks at the far end of the waits."""
    found: set[int] = set()
    todo, known = list(waiting), set(waiting)
    while todo:
        for need in needs(todo.pop(), ranks):
            for m in need - known:
                known.add(m)
                if ranks[m].is_blocked:
                    todo.append(m)
                elif not ranks[m].is_over:
                    found.add(m)
    return found


def _busy_lines(busy: Iterable[int], ranks: Ranks) -> tuple[str, ...]:
    return tuple(_at_work(r, ranks[r]) for r in sorted(busy))


def _at_work(rank: int, seen: Seen) -> str:
    doing = seen.doing
    other = f" of {seen.note}" if seen.part == "elsewhere" and seen.note else ""
    if doing.kind == "silent":
        return f"rank {rank} does not answer{other}" + (f": {doing.state}" if doing.state else "")
    if doing.kind == "idle":
        return f"rank {rank} is about to begin its cell"
    if doing.kind != "python":
        return f"rank {rank} is in {doing.op}{_line(doing.line)}{other} ({_seconds(doing.seconds)})"
    pace = ""
    if doing.cpu is not None:
        pace = ", sleeping or waiting" if doing.cpu < _SLEEPING else f", {doing.cpu * 100:.0f} % CPU"
    at = f"at cell line {doing.line}" if doing.line else "in"
    return f"rank {rank} is {at}{other}: {doing.source or doing.op} ({_seconds(doing.seconds)}{pace})"


# ---------------------------------------------------------------- words


def _label(call: Call, rank: int, ranks: Ranks) -> str:
    progress = ranks[rank].progress(call.group)
    if progress is None:
        return call.group
    return progress.label or f"of {describe_ranks(progress.ranks)}"


def _named(call: Call, label: str) -> str:
    """``"all_reduce #17 [16] float32 of group world"``."""
    return " ".join(filter(None, (call.op, f"#{call.number}", mismatch.tensors(call), f"of group {label}")))


def _transfer(call: Call) -> str:
    direction = "to" if is_send(call) else "from"
    peer = "any rank" if call.peer == ANY else f"rank {call.peer}"
    tag = f" with tag {call.tag}" if call.tag else ""
    return f"{call.op} {direction} {peer}{tag}"


def _wait(rank: int, ranks: Ranks) -> str:
    """What the rank is blocked in, with its line and how long."""
    doing = ranks[rank].doing
    call = doing.calls[0] if doing.calls else None
    if doing.kind == "collective" and call is not None:
        what = _named(call, _label(call, rank, ranks))
        for_ranks = sorted(set(missing(call, ranks)))
    elif doing.kind == "transfer" and call is not None:
        what, for_ranks = " and ".join(_transfer(c) for c in doing.calls[:2]), []
    else:
        what, for_ranks = doing.op, sorted({m for need in needs(rank, ranks) for m in need})
    return f"{what}{_line(doing.line)} ({_seconds(doing.seconds)})" + (
        f" for {describe_ranks(for_ranks)}" if for_ranks else ""
    )


def _waiting_lines(stuck: Iterable[int], first: int, ranks: Ranks) -> tuple[str, ...]:
    """Who waits in it, by cell line; then who waits elsewhere."""
    here: dict[int | None, list[int]] = {}
    other = []
    for rank in sorted(stuck):
        if _same_wait(first, rank, ranks):
            here.setdefault(ranks[rank].doing.line, []).append(rank)
        else:
            other.append(f"rank {rank} waits in {_wait(rank, ranks)}")
    lines = []
    for line, together in here.items():
        seconds = max(ranks[r].doing.seconds for r in together)
        lines.append(
            f"{describe_ranks(together, 'waits')} in {ranks[first].doing.op}{_line(line)} ({_seconds(seconds)})"
        )
    return (*lines, *other)


def _whereabouts(rank: int, seen: Seen) -> str:
    if seen.part == "lost":
        return f"rank {rank} was lost; a fresh process takes its place when the run is over"
    if seen.part == "free":
        return f"rank {rank} is not in this run, and idle"
    did = "finished the cell" if seen.part == "done" else "failed"
    return f"rank {rank} {did} {_seconds(seen.ago)} ago" + (f": {seen.note}" if seen.note else "")


def _line(line: int | None) -> str:
    return f" at cell line {line}" if line else ""


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
