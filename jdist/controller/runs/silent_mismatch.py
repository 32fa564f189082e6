"""Silent mismatch: whether the ranks of a run that has ended made the same calls, although none of them blocked. Pure.

Each rank's end carries how many collectives it called in each group, and a digest of them. If the members of a group
have equal counts and different digests, a backend has let a mismatch pass. The run's end is then delayed until one rank
of each digest has sent its calls, or for a second, and the run ends with a verdict on the first difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.runs import Run
from jdist.controller.verdict import mismatch
from jdist.controller.verdict.decide import decide_on_digests, decide_on_mismatch
from jdist.core.messages.observation import (
    Call,
    CallDigest,
    GetTrace,
    RankTrace,
    Verdict,
    VerdictChanged,
    call_signature,
)
from jdist.core.messages.protocol import RankQuery, RankReply
from jdist.core.ranks import RankSet, ranks_by

_DEADLINE = 1.0  # Seconds for which a run's end is delayed at most.
_MOST_ASKED = 8  # Digests of which one rank each is asked.

Parties = tuple[tuple[int, ...], ...]  # Ranks with the same digest together, the largest party first.


@dataclass
class _Comparison:
    """The calls of one run in one group, as they are collected from one rank of each party."""

    request: str
    group: str
    label: str
    parties: Parties
    asked: set[int]
    calls: dict[int, dict[int, Call]] = field(default_factory=dict)  # By rank and sequence number.


class SilentMismatch:
    """Delays the end of a run whose ranks' digests differ until it is known which call differed first."""

    def __init__(self, model: Model):
        self._model = model
        self._last = 0
        self._open: dict[int, _Comparison] = {}

    def delays_end(self, run: Run) -> bool:
        """Whether the run, whose ranks have all ended, must not end yet. Once it may, it has its verdict."""
        if run.number not in self._open:
            self._begin(run)
        comparison = self._open.get(run.number)
        if comparison is None:
            return False
        if comparison.asked and run.compare_until is not None and self._model.now < run.compare_until:
            return True
        del self._open[run.number]
        run.verdict = _verdict(run.number, comparison)
        self._model.tell(run, VerdictChanged(run.number, run.verdict))
        return False

    def _begin(self, run: Run) -> None:
        if run.is_own or any(end.kind != "value" for end in run.ends.values()):
            return
        found = _differing({rank: end.digests for rank, end in run.ends.items()})
        if found is None:
            return
        digest, parties = found
        self._last += 1
        asked = tuple(ranks[0] for ranks in parties[:_MOST_ASKED])
        transition(run, "comparing", f"digests differ in group {digest.group}")
        run.compare_until = self._model.now + _DEADLINE
        comparison = _Comparison(f"compare-{self._last}", digest.group, digest.label, parties, set(asked))
        self._open[run.number] = comparison
        for node_rank, workers in self._model.world.workers_by_node(asked).items():
            self._model.send_to_node(node_rank, RankQuery(comparison.request, workers, GetTrace(run.number)))

    def handle_rank_reply(self, reply: RankReply) -> Run | None:
        """Record a rank's calls, or that it has none to send. The run concerned; None if the reply is to another."""
        for number, comparison in self._open.items():
            if comparison.request == reply.request and reply.rank in comparison.asked:
                comparison.asked.discard(reply.rank)
                if isinstance(reply.body, RankTrace):
                    calls = [c for c in reply.body.calls if c.group == comparison.group and c.number]
                    comparison.calls[reply.rank] = {call.number: call for call in calls}
                return self._model.runs.running.get(number)
        return None


def _differing(digests: Mapping[int, tuple[CallDigest, ...]]) -> tuple[CallDigest, Parties] | None:
    """The first group whose members all made the same number of calls, but not the same calls."""
    groups: dict[str, dict[int, CallDigest]] = {}
    for rank, own in sorted(digests.items()):
        for digest in own:
            groups.setdefault(digest.group, {})[rank] = digest
    for members in groups.values():
        first = next(iter(members.values()))
        parties = ranks_by((rank, digest.digest) for rank, digest in members.items())
        if len(parties) > 1 and len(members) == first.size and len({d.count for d in members.values()}) == 1:
            return first, tuple(sorted(map(tuple, parties.values()), key=lambda ranks: (-len(ranks), ranks)))
    return None


def _verdict(run: int, comparison: _Comparison) -> Verdict:
    """The first call that differed or, if the ranks have not sent their calls, whose calls differed."""
    members = sorted(rank for ranks in comparison.parties for rank in ranks)
    label = comparison.label or f"of ranks {RankSet(members)}"
    known = {ranks[0]: comparison.calls[ranks[0]] for ranks in comparison.parties if ranks[0] in comparison.calls}
    for number in sorted(set.intersection(*map(set, known.values()))) if len(known) > 1 else ():
        if len({call_signature(calls[number]) for calls in known.values()}) > 1:
            calls = {r: known[ranks[0]][number] for ranks in comparison.parties if ranks[0] in known for r in ranks}
            parties = tuple((ranks, calls[ranks[0]]) for ranks in comparison.parties if ranks[0] in calls)
            unnamed = mismatch.Mismatch(number, "operation", parties)
            found = mismatch.compare(number, calls, sorted(calls)) or unnamed
            return decide_on_mismatch(run, found, parties[0][1].op, label, has_passed=True)
    return decide_on_digests(run, comparison.parties, label)
