"""Phrases: every sentence of a verdict and of its suggested actions. Pure.

What is true is decided in :mod:`~jdist.controller.verdict.decide`; how a verdict is laid out is in
:class:`~jdist.core.messages.observation.Verdict`, and how an action is typed is for the front end.
"""

from collections.abc import Iterable, Mapping, Sequence

from jdist.controller.verdict.mismatch import Mismatch
from jdist.controller.verdict.wait_graph import Ranks, RankSnapshot, begun_for, missing, needs
from jdist.core.errors import Remedy
from jdist.core.messages.observation import ANY, Activity, ActivityKind, Call
from jdist.core.quantities import format_count
from jdist.core.ranks import RankSet, describe_ranks, ranks_by

_UNNUMBERED = ("monitored_barrier",)  # torch does not count it among the collectives of its group.
_SLEEPING = 0.05  # Share of a core below which a rank is described as sleeping.

Phrases = tuple[str, tuple[str, ...]]  # The reason, and a line for each detail.


def interrupt(run: int, ranks: Ranks) -> Remedy:
    """Stops the run, and nothing else that runs beside it."""
    running = describe_ranks(rank for rank, snapshot in ranks.items() if snapshot.part == "running")
    return Remedy("interrupt", f"stop run {run} on {running}; names are kept, the group is re-formed", run=run)


def resume(paused: Sequence[int]) -> Remedy:
    """Suggest resuming the paused ranks."""
    return Remedy("continue", f"resume {describe_ranks(paused)}", str(RankSet(paused)))


def join(responsible: Sequence[int], kind: ActivityKind) -> Remedy:
    """Suggest a cell that has the responsible ranks call what the other ranks wait in."""
    what = {"collective": "the same collective", "transfer": "the other half", "store": "the same"}[kind]
    effect = f"let {describe_ranks(responsible)} join by calling {what}"
    return Remedy("run_cell", effect, ",".join(map(str, responsible)))


def mismatch(found: Mismatch, group: str, *, has_passed: bool) -> Phrases:
    """Describe the calls that differ within a group; ``has_passed``: no rank was blocked by it."""
    details = tuple(f"{describe_ranks(ranks, 'calls')} {_describe(call)}" for ranks, call in found.parties)
    if found.what == "operation":
        ranks, at = f"the ranks of group {group}", f"in different collectives at #{found.number}"
        return f"{ranks} were {at}: the result is wrong" if has_passed else f"{ranks} are {at}", details
    call, what = f"{found.parties[0][1].op} #{found.number} of group {group}", found.what
    if has_passed:
        return f"{call} differed between ranks in {what}: the result is wrong", details
    return f"{call} differs between ranks in {what}", details


def unlike_digests(parties: Sequence[Sequence[int]], responsible: Sequence[int], group: str) -> str:
    """Describe a group whose ranks made different calls, if the first different call is unknown."""
    if responsible:
        others = describe_ranks(rank for ranks in parties for rank in ranks if rank not in responsible)
        reason = f"{describe_ranks(responsible, 'has')} called other collectives in group {group} than {others}"
    else:
        called = " and ".join(describe_ranks(ranks) for ranks in parties)
        reason = f"{called} have called different collectives in group {group}"
    return f"{reason}: what they left is wrong"


def absence(rank: int, responsible: Sequence[int], ranks: Ranks) -> str:
    """Why the wait of ``rank`` cannot end without the ``responsible`` ranks, whose parts are over."""
    activity, call = ranks[rank].activity, ranks[rank].blocked_in
    subject, have = who(responsible, ranks), "has" if len(responsible) == 1 else "have"
    if activity.kind == "collective" and call is not None:
        did = "left" if all(has_left(ranks[r], call) for r in responsible) else "not entered"
        return f"{subject} {have} {did} {_name(call, label(call, ranks[rank]))}"
    if activity.kind == "transfer" and call is not None:
        return _unserved(rank, call, subject, ranks)
    if activity.op in ("new_group", "split_group"):
        return f"{subject} {have} not called {activity.op}, which every rank of the world must call"
    return f"{describe_ranks([rank], 'waits')} at the store for {activity.waits_for or 'a key that no rank will set'}"


def entered_alone(rank: int, entered: Sequence[int], ranks: Ranks) -> str:
    """Such as "only rank 0 has entered barrier #5 of group world", in which ``rank`` waits."""
    call = ranks[rank].activity.calls[0]
    have = "has" if len(entered) == 1 else "have"
    return f"only {who(entered, ranks)} {have} entered {_name(call, label(call, ranks[rank]))}"


def _unserved(rank: int, call: Call, peer: str, ranks: Ranks) -> str:
    """Such as "rank 1 has not sent to rank 0, which waits in recv from rank 1"."""
    verb, preposition = ("received", "from") if call.is_send else ("sent", "to")
    wait = f"rank {rank}, which waits in {_name_transfer(call, ranks[rank])}"
    if call.peer == ANY:
        return f"no rank has {verb} {preposition} {wait}"
    begun = begun_for(rank, call, ranks)
    if not begun:
        return f"{peer} has not {verb} {preposition} {wait}"
    wait = f"rank {rank}, which waits in {_name_transfer(call, ranks[rank], f'{call.op} number {call.nth}')}"
    return f"{peer} has {verb} {format_count(begun, 'message')} {preposition} {wait}"


def undelivered(rank: int, call: Call, ranks: Ranks) -> Phrases:
    """A message that both ranks have begun, and that does not arrive."""
    peer, verb = call.peer or 0, "receive" if call.is_send else "send"
    wait = f"rank {rank} waits in {_name_transfer(call, ranks[rank])}{f' at {call.place}' if call.place else ''}"
    hint = f"gloo cancels an i{'recv' if call.is_send else 'send'} whose Work is not kept until it is done"
    if not call.is_send and ranks[rank].channel(call.group, call.tag, ANY, is_send=False).begun:
        hint = "a receive from any rank may have taken it"
    return f"{wait} for a message that rank {peer} has begun to {verb}", (whereabouts(peer, ranks[peer]), hint)


def unset(at_store: Sequence[int], ranks: Ranks) -> str:
    """The ranks that wait for keys that no rank will set."""
    keys = ranks_by((r, ranks[r].activity.waits_for or "a key of a store") for r in at_store)
    text = ", ".join(f"{who(r, ranks)} {'waits' if len(r) == 1 else 'wait'} for {key}" for key, r in keys.items())
    return f"{text}, and no rank is left that can set {'it' if len(keys) == 1 else 'them'}"


def misfit(halves: Mapping[int, Call], what: str, ranks: Ranks) -> Phrases:
    """A send and a recv that are the halves of one message, and differ."""
    sender = next(r for r, c in halves.items() if c.is_send)
    receiver = next(r for r in halves if r != sender)
    lines = tuple(f"rank {r} calls {_name_transfer(c, ranks[r], _describe(c))}" for r, c in sorted(halves.items()))
    return f"what rank {sender} sends to rank {receiver} differs in {what} from what rank {receiver} receives", lines


def who(numbers: Sequence[int], ranks: Ranks) -> str:
    """Such as "rank 1 (node 0, host)" or "ranks 1-2"."""
    return ranks[numbers[0]].where if len(numbers) == 1 else describe_ranks(numbers)


def has_left(snapshot: RankSnapshot, call: Call) -> bool:
    """Whether the rank entered the collective and left it with an error."""
    progress = snapshot.progress(call.group)
    return snapshot.part == "failed" and progress is not None and progress.begun >= call.number


def circle(ring: Sequence[int], stuck: Iterable[int], ranks: Ranks, is_exchange: bool) -> Phrases:
    """A circle of waits; ``is_exchange``: two ranks that send to or receive from each other at the same time."""
    what = "wait for each other in a circle"
    if is_exchange:
        calls = [c for r in ring if (c := ranks[r].blocked_in) is not None]
        differs = _difference(calls) if len({c.is_send for c in calls}) == 2 else ""
        what = "cross each other's sends and receives"
        if differs:
            what = f"send and receive past each other, {differs}"
    lines = tuple(f"rank {r} waits in {_wait(r, ranks)}" for r in ring)
    behind = tuple(f"rank {r} waits in {_wait(r, ranks)}, behind them" for r in stuck if r not in ring)
    return f"{describe_ranks(ring)} {what} ({' → '.join(map(str, (*ring, ring[0])))})", lines + behind


def crash(rank: int, partners: Mapping[int, Call], ranks: Ranks) -> Phrases:
    """The C++ code of ``rank`` ended its process in a call together with one of ``partners``."""
    lines = tuple(f"rank {r} calls {_describe(c)} in group {label(c, ranks[r])}" for r, c in partners.items())
    what = "that" if len(partners) == 1 else "one"
    text = f"rank {rank} was ended by its C++ code in a call that did not fit {what} of {describe_ranks(partners)}"
    return text, lines


def waits(stuck: Sequence[int], first: int, ranks: Ranks) -> tuple[str, ...]:
    """The ranks that wait where ``first`` waits, by cell line; then those that wait elsewhere."""
    here = [r for r in sorted(stuck) if ranks[r].pending == ranks[first].pending]
    lines = []
    for at, together in ranks_by((r, _at(ranks[r].activity)) for r in here).items():
        place = f"{ranks[first].activity.op}{at}"
        seconds = _seconds(max(ranks[r].activity.seconds for r in together))
        lines.append(f"{describe_ranks(together, 'waits')} in {place} ({seconds})")
    return (*lines, *(f"rank {r} waits in {_wait(r, ranks)}" for r in sorted(stuck) if r not in here))


def whereabouts(rank: int, snapshot: RankSnapshot) -> str:
    """What became of a rank whose part of the run is over."""
    if snapshot.part == "lost":
        return f"rank {rank} was lost; a fresh process takes its place when the run is over"
    if snapshot.part == "free":
        return f"rank {rank} is not in this run, and idle"
    finished = f"finished the {'script' if snapshot.is_script else 'cell'}"
    did = finished if snapshot.part == "done" else "failed"
    return f"rank {rank} {did} {_seconds(snapshot.ago)} ago" + (f": {snapshot.note}" if snapshot.note else "")


def wait_for(others: Sequence[int], waiting: Sequence[int], ranks: Ranks) -> str:
    """Such as "rank 0 waits for rank 1 (node 0, hostname)"."""
    return f"{describe_ranks(waiting, 'waits')} for {who(others, ranks)}"


def wait_for_paused(paused: Sequence[int], waiting: Sequence[int], ranks: Ranks) -> str:
    """Such as "rank 0 waits for rank 1, which is paused at f, line 8"; no place if there are several."""
    places = {ranks[r].paused for r in paused}
    at = f" at {places.pop()}" if len(places) == 1 else ""
    return f"{wait_for(paused, waiting, ranks)}, which {'is' if len(paused) == 1 else 'are'} paused{at}"


def still_busy(busy: Sequence[int]) -> str:
    """Describe ranks that have not finished in time although they wait for no other rank."""
    return f"{describe_ranks(busy, 'is')} still busy"


def losses(lost: Ranks) -> Phrases:
    """Describe ranks whose processes have ended, a phrase for each reason."""
    reasons = ranks_by((rank, snapshot.note) for rank, snapshot in lost.items())
    texts = tuple(f"{who(r, lost)} {'is' if len(r) == 1 else 'are'} lost: {why}" for why, r in reasons.items())
    return texts[0], texts[1:]


def work(busy: Iterable[int], ranks: Ranks) -> tuple[str, ...]:
    """What each of the busy ranks does."""
    return tuple(_work(r, ranks[r]) for r in sorted(busy))


def _work(rank: int, snapshot: RankSnapshot) -> str:
    activity = snapshot.activity
    if snapshot.paused:
        inner = f", and {snapshot.note} is running there" if snapshot.part == "running" and snapshot.note else ""
        return f"rank {rank} is paused at {snapshot.paused}{inner}"
    other = f" of {snapshot.note}" if snapshot.part == "elsewhere" and snapshot.note else ""
    if activity.kind == "silent":
        return f"rank {rank} does not answer{other}" + (f": {activity.state}" if activity.state else "")
    if activity.kind == "idle":
        return f"rank {rank} is about to begin"
    if activity.kind != "python":
        return f"rank {rank} is in {activity.op}{_at(activity)}{other} ({_seconds(activity.seconds)})"
    pace = ""
    if activity.cpu is not None:
        pace = ", sleeping or waiting" if activity.cpu < _SLEEPING else f", {activity.cpu * 100:.0f} % CPU"
    doing = f" at cell line {activity.line}{other}: {activity.source or activity.op}"
    if not activity.line:
        doing = f"{_at(activity) or f' in {activity.op}'}{other}"
    return f"rank {rank} is{doing} ({_seconds(activity.seconds)}{pace})"


def label(call: Call, snapshot: RankSnapshot) -> str:
    """The user's name of the call's group, or its ranks."""
    progress = snapshot.progress(call.group)
    if progress is None:
        return call.group
    return progress.label or f"of {describe_ranks(progress.ranks)}"


def _describe(call: Call) -> str:
    """``"all_reduce [16] float32 op=MAX (cell line 5)"``."""
    place = f"({call.place})" if call.place else ""
    return " ".join(filter(None, (call.op, call.tensors, call.detail, place)))


def _name(call: Call, group: str) -> str:
    """``"all_reduce #17 [16] float32 of group world"``."""
    number = "" if call.op in _UNNUMBERED else f"#{call.number}"
    return " ".join(filter(None, (call.op, number, call.tensors, f"of group {group}")))


def _name_transfer(call: Call, snapshot: RankSnapshot, name: str = "") -> str:
    """``"recv from rank 1 with tag 3 in group tp"``."""
    tag = f" with tag {call.tag}" if call.tag else ""
    group = label(call, snapshot)
    return f"{name or call.op} {call.direction}{tag}" + ("" if group == "world" else f" in group {group}")


def _difference(calls: Sequence[Call]) -> str:
    """In what a send and a recv of the same two ranks differ, so that they do not meet."""
    found = [
        what for what, n in (("tag", len({c.tag for c in calls})), ("group", len({c.group for c in calls}))) if n > 1
    ]
    return f"with another {' and '.join(found)}" if found else ""


def _wait(rank: int, ranks: Ranks) -> str:
    """What the rank is blocked in, at which line, how long, and for whom."""
    activity, call = ranks[rank].activity, ranks[rank].blocked_in
    awaited: set[int] = set()
    if activity.kind == "collective" and call is not None:
        what, awaited = _name(call, label(call, ranks[rank])), set(missing(call, ranks))
    elif activity.kind == "transfer" and call is not None:
        what = " and ".join(_name_transfer(c, ranks[rank]) for c in activity.calls[:2])
    else:
        what, awaited = activity.op, {m for need in needs(rank, ranks) for m in need}
    whom = f" for {describe_ranks(awaited)}" if awaited else ""
    return f"{what}{_at(activity)} ({_seconds(activity.seconds)}){whom}"


def _at(activity: Activity) -> str:
    """The line of the cell or, without one, of the script."""
    if activity.line is None and activity.source:
        return f" at {activity.source}"
    return f" at cell line {activity.line}" if activity.line else ""


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
