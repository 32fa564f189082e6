"""Match calls: the calls of different ranks that belong together, and which ranks wait for which in them. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from jdist.core.messages.observation import RankTrace
from jdist.core.observation import ANY, Call

Traces = Mapping[int, RankTrace]  # The answers of the ranks that had a part in the run.
Members = Mapping[str, Iterable[int]]  # The ranks of each group, by torch's name, as far as known.
_ROOT = re.compile(r"\b(src|dst)=(\d+)\b")


@dataclass
class Meeting:
    """One collective, or one message from a rank to another."""

    calls: dict[int, int] = field(default_factory=dict)  # `{rank: index of the call among the rank's calls}`.
    missing: frozenset[int] = frozenset()  # Ranks that should have entered it and are known not to have.
    is_message: bool = False


def awaited(call: Call, rank: int, meeting: Meeting) -> frozenset[int]:
    """The ranks without which the operation cannot end on ``rank``.

    A broadcast or scatter (``src=`` in its detail) needs the source, which needs none. The destination of a reduce or
    gather (``dst=``) needs all the others, which need none. Every other collective needs every rank, and a recv its
    send. A send may need its recv or not, which only its end shows.
    """
    others = (frozenset(meeting.calls) | meeting.missing) - {rank}
    root = None if meeting.is_message else _ROOT.search(call.detail)
    if root is None:
        return others
    at = int(root[2])
    return others & {at} if root[1] == "src" else others if rank == at else frozenset()


def needs_everyone(call: Call) -> bool:
    """Whether the call is a collective without a root."""
    return call.peer is None and _ROOT.search(call.detail) is None


def match(traced: Traces, members: Members, elsewhere: Iterable[int] = ()) -> list[Meeting]:
    """Every collective and message of a run, each call in exactly one. ``elsewhere``: ranks that took no part in it."""
    idle = frozenset(elsewhere)
    found: dict[tuple[str, int, int], Meeting] = defaultdict(Meeting)
    seen: dict[str, set[int]] = {name: set(ranks) for name, ranks in members.items()}
    last: dict[tuple[str, int], int] = {}
    alone: list[Meeting] = []
    for rank, trace in traced.items():
        times: Counter[tuple[str, int]] = Counter()
        for i, call in enumerate(trace.calls):
            if call.peer is not None:
                continue
            if not call.number:
                alone.append(Meeting({rank: i}))  # without its number, the calls that it belongs to are unknown
                continue
            key = (call.group, call.number)  # a group that is made again counts from 1 again
            found[(*key, times[key])].calls[rank] = i
            times[key] += 1
            seen.setdefault(call.group, set()).add(rank)
            last[call.group, rank] = max(call.number, last.get((call.group, rank), 0))
    for (group, number, _), meeting in found.items():
        began = min(traced[r].calls[i].started for r, i in meeting.calls.items())
        absent = seen[group] - meeting.calls.keys()
        passed = {r for r in absent if r in traced and number > last.get((group, r), 0) and _is_kept(traced[r], began)}
        meeting.missing = frozenset(passed | (absent & idle))
    return [*found.values(), *alone, *_messages(traced)]


def _is_kept(trace: RankTrace, moment: float) -> bool:
    """Whether a call of that moment would still be among the calls."""
    return not trace.left_out or bool(trace.calls and trace.calls[0].started <= moment)


def _messages(traced: Traces) -> list[Meeting]:
    """The n-th send from one rank to another with a tag meets the n-th recv there: gloo and NCCL keep that order.

    They are counted from the newest if older ones were left out. A recv from any rank takes the oldest send: a guess.
    """
    sends: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    recvs: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for rank, trace in traced.items():
        for i, call in enumerate(trace.calls):
            if call.peer is not None and "recv" in call.op:
                recvs[call.group, call.peer, rank, call.tag].append(i)
            elif call.peer is not None:
                sends[call.group, rank, call.peer, call.tag].append(i)
    found: list[Meeting] = []
    free: dict[tuple[str, int, int], list[tuple[float, int, int]]] = defaultdict(list)
    for key in {**sends, **recvs}:
        group, source, target, tag = key
        if source == ANY:
            continue
        out, into = sends[key], recvs[key]
        is_cut = any(traced[r].left_out for r in (source, target) if r in traced)
        pairs = reversed([*zip_longest(out[::-1], into[::-1])]) if is_cut else zip_longest(out, into)
        for sent, received in pairs:
            if received is None and not is_cut:
                free[group, target, tag].append((traced[source].calls[sent].started, source, sent))
                continue
            calls = {rank: i for rank, i in ((source, sent), (target, received)) if i is not None}
            missing = {source} & traced.keys() if sent is None and not is_cut else ()
            found.append(Meeting(calls, frozenset(missing), is_message=True))
    for (group, source, target, tag), into in recvs.items():
        if source == ANY:
            found += _from_anyone(target, into, free[group, target, tag])
    for (_, target, _), left in free.items():
        known = frozenset({target} & traced.keys())
        found += [Meeting({source: i}, known, is_message=True) for _, source, i in left]
    return found


def _from_anyone(target: int, into: Iterable[int], free: list[tuple[float, int, int]]) -> Iterator[Meeting]:
    """Meetings of recvs from any rank. They take sends, given as ``(start, rank, index)``, out of ``free``."""
    free.sort(reverse=True)
    for received in into:
        calls = {target: received}
        if free:
            _, source, sent = free.pop()
            calls[source] = sent
        yield Meeting(calls, is_message=True)
