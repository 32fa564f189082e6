"""Doubts: whether the ranks of a run that has come to its end called the same. Pure.

Each rank's end says how many collectives it called in each group, with a digest of them. Where the counts of a group's
members are equal and the digests are not, a backend has let something pass: the run is held back until one rank of
each kind has told its calls, or for a second, and then it ends with a verdict that says what differed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.runs import Run
from jdist.controller.verdict import mismatch
from jdist.core.call_signature import call_signature
from jdist.core.messages.observation import GetTrace, RankTrace, VerdictChanged
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.observation import Call, CallDigest
from jdist.core.ranks import RankSet, describe_ranks
from jdist.core.verdict import Verdict

_PATIENCE = 1.0
"""Seconds for which a run is held back at most."""
_MOST_ASKED = 8
"""Kinds of ranks of which one is asked."""

Kinds = tuple[tuple[int, ...], ...]
"""Ranks by what they called, those of the most frequent first."""


@dataclass
class _Doubt:
    """Of one run, about one group."""

    name: str
    group: str
    label: str
    kinds: Kinds
    asked: set[int]
    calls: dict[int, dict[int, Call]] = field(default_factory=dict)
    """By rank and number."""


class SilentMismatch:
    """Holds a run back while it is being found out what its ranks called."""

    def __init__(self, model: Model):
        self._model = model
        self._last = 0
        self._open: dict[int, _Doubt] = {}

    def hold_back(self, run: Run) -> bool:
        """Whether the run, whose ranks have all come to an end, is not to end yet; once it may, it has its verdict."""
        if run.number not in self._open:
            self._begin(run)
        doubt = self._open.get(run.number)
        if doubt is None:
            return False
        if doubt.asked and run.compare_until is not None and self._model.now < run.compare_until:
            return True
        del self._open[run.number]
        run.verdict = _verdict(run.number, doubt)
        self._model.send(run.client, VerdictChanged(run.number, run.verdict))
        return False

    def _begin(self, run: Run) -> None:
        c = self._model
        has_ended_well = all(end.kind == "value" for end in run.ends.values())
        found = (
            _differing({r: end.digests for r, end in run.ends.items()}) if not run.is_own and has_ended_well else None
        )
        if found is None:
            return
        tally, kinds = found
        self._last += 1
        asked = tuple(ranks[0] for ranks in kinds[:_MOST_ASKED])
        transition(run, "comparing", f"digests differ in group {tally.group}")
        run.compare_until = c.now + _PATIENCE
        doubt = _Doubt(f"doubt-{self._last}", tally.group, tally.label, kinds, set(asked))
        self._open[run.number] = doubt
        for node_rank, ranks in c.world.by_node(asked).items():
            c.send_to_node(node_rank, RankQuery(doubt.name, ranks, GetTrace(run.number)))

    def note(self, answer: RankReply) -> Run | None:
        """A rank told its calls, or cannot: the run that this was about."""
        for number, doubt in self._open.items():
            if doubt.name == answer.request and answer.rank in doubt.asked:
                doubt.asked.discard(answer.rank)
                if isinstance(answer.body, RankTrace):
                    own = [call for call in answer.body.calls if call.group == doubt.group and call.number]
                    doubt.calls[answer.rank] = {call.number: call for call in own}
                return self._model.runs.running.get(number)
        return None


def _differing(digests: Mapping[int, tuple[CallDigest, ...]]) -> tuple[CallDigest, Kinds] | None:
    """The first group all of whose ranks called equally much there, but not the same."""
    groups: dict[str, dict[int, CallDigest]] = {}
    for rank, own in sorted(digests.items()):
        for tally in own:
            groups.setdefault(tally.group, {})[rank] = tally
    for members in groups.values():
        first = next(iter(members.values()))
        kinds: dict[bytes, list[int]] = {}
        for rank, tally in members.items():
            kinds.setdefault(tally.digest, []).append(rank)
        if len(kinds) > 1 and len(members) == first.size and len({t.count for t in members.values()}) == 1:
            return first, tuple(sorted(map(tuple, kinds.values()), key=lambda ranks: (-len(ranks), ranks)))
    return None


def _verdict(run: int, doubt: _Doubt) -> Verdict:
    """What differed first; if the ranks have not told their calls, only whose differed."""
    members = tuple(sorted(rank for ranks in doubt.kinds for rank in ranks))
    label = doubt.label or f"of ranks {RankSet(members)}"
    kinds = {ranks[0]: ranks for ranks in doubt.kinds if ranks[0] in doubt.calls}
    told = {rank: doubt.calls[rank] for rank in kinds}
    common = sorted(set.intersection(*map(set, told.values()))) if len(told) > 1 else []
    for number in common:
        calls = {rank: told[rank][number] for rank in told}
        if len({call_signature(call) for call in calls.values()}) > 1:
            return _of_call(run, number, {r: calls[first] for first, ranks in kinds.items() for r in ranks}, label)
    responsible = tuple(sorted(rank for ranks in doubt.kinds[1:] for rank in ranks))
    others = describe_ranks(doubt.kinds[0])
    reason = f"{describe_ranks(responsible, 'has')} called other collectives in group {label} than {others}"
    return Verdict(run, "mismatch", responsible, (), f"{reason}: what they left is wrong", group=label, has_passed=True)


def _of_call(run: int, number: int, calls: Mapping[int, Call], label: str) -> Verdict:
    found = mismatch.compare(number, calls, sorted(calls))
    parties = found.parties if found is not None else ()
    responsible = parties[-1][0] if parties and len(parties[0][0]) > len(parties[-1][0]) else tuple(sorted(calls))
    op = next(iter(calls.values())).op
    if found is None or found.what == "operation":
        reason = f"the ranks of group {label} were in different collectives at #{number}"
    else:
        reason = f"{op} #{number} of group {label} differed between ranks in {found.what}"
    details = mismatch.lines(found) if found is not None else ()
    reason = f"{reason}: what it left is wrong"
    return Verdict(run, "mismatch", responsible, (), reason, details, (), op, label, number, has_passed=True)
