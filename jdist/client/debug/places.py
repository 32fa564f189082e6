"""Places: where ranks are, in words: paused ranks by place, the others by what they are doing. Pure."""

from collections.abc import Iterable, Mapping

from jdist.client.measure.report import peer_text, tensors_text, title
from jdist.core.messages.debug import RankPaused
from jdist.core.messages.observation import Observation
from jdist.core.messages.status import RankFacts
from jdist.core.observation import Call
from jdist.core.outcome import OutcomeKind
from jdist.core.ranks import RankSet, ranks_by

_MOST = 16  # Number of places listed.
_LONGEST = 160  # Characters of a place.
_LONGEST_RANKS = 40  # Characters of the ranks at a place.
# How a rank's part of a run has ended, by the kind of its outcome.
ENDED: Mapping[OutcomeKind | None, str] = {
    "value": "finished",
    "error": "failed in",
    "timeout": "timed out in",
    "interrupted": "was interrupted in",
    "lost": "was lost in",
    None: "is no longer in",  # This client does not follow the run.
}
BLOCKED = ("collective", "transfer", "store")  # Kinds of activity that depend on other ranks.


class Places(dict[int, RankPaused]):
    """Where ranks are: ``{rank: RankPaused}``. ``str()`` lists them, with ranks at the same place on one line."""

    def __init__(self, paused: Mapping[int, RankPaused], others: Mapping[int, str]):
        super().__init__(paused)
        self.others = dict(others)
        """``{rank: what it is doing}`` for the ranks that are not paused."""

    def __repr__(self) -> str:
        return "\n".join(list_places(self, self.others))


def list_places(paused: Mapping[int, RankPaused], others: Mapping[int, str]) -> list[str]:
    """``[0,2-3] train_step, line 8: loss.backward()``: one line for each place, preceded by the ranks there."""
    texts = {rank: describe_pause(each) for rank, each in paused.items()} | dict(others)
    alike = sorted(ranks_by(sorted(texts.items())).items(), key=lambda item: item[1])
    names = [bracketed(ranks) for _, ranks in alike[:_MOST]]
    width = max(map(len, names), default=0)
    lines = [f"{name:<{width}} {shortened(text)}" for name, (text, _) in zip(names, alike, strict=False)]
    if rest := alike[_MOST:]:
        lines.append(f"… {sum(len(ranks) for _, ranks in rest)} more ranks at {len(rest)} other places")
    return lines


def bracketed(ranks: Iterable[int]) -> str:
    """``[0,2-3]``; if there are very many ranges, only the first ones and the number of ranks."""
    text = str(RankSet(ranks))
    if len(text) > _LONGEST_RANKS:
        text = f"{text[:_LONGEST_RANKS].rpartition(',')[0]},… {len(set(ranks))} ranks"
    return f"[{text}]"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """The first line, truncated if it is too long."""
    text = text.partition("\n")[0]
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def describe_pause(paused: RankPaused) -> str:
    """``train_step, line 8: loss.backward()``, and why the rank is paused if the line does not show it."""
    words = f"{paused.at.place}: {paused.at.source}" if paused.at.source else paused.at.place
    if paused.thread:
        words += f" (in thread {paused.thread})"
    if paused.about_to is not None:
        words += f" · about to call {describe_call(paused.about_to)}"
    if paused.returns:
        words += f" · about to return {paused.returns}"
    if paused.reason == "failure":
        words += f" · {paused.error or 'failed'}"
    return words


def describe_call(call: Call) -> str:
    """``all_reduce #18 [16] float32``, ``send [4] float32 to rank 1``."""
    peer = peer_text(call) if call.peer is not None else ""
    return " ".join(filter(None, (title(call), tensors_text(call), peer)))


def describe_doing(seen: Observation, *, with_seconds: bool = True) -> str:
    """``all_reduce #17 of world at line 5, 3.2 s``."""
    doing = seen.doing
    if doing.kind == "silent":
        return f"does not answer: {doing.state}"
    call = doing.calls[0] if doing.calls else None
    labels = {g.name: g.label or f"ranks {RankSet(g.ranks)}" for g in seen.groups}
    number = f" #{call.number} of {labels.get(call.group, call.group)}" if call is not None and call.number else ""
    line = f" at line {doing.line}" if doing.line else ""
    return f"{doing.op}{number}{line}" + (f", {doing.seconds:.1f} s" if with_seconds else "")


def describe_unpaused(row: RankFacts, seen: Observation | None, run: int = 0, ended: OutcomeKind | None = None) -> str:
    """What a rank that is not paused is doing.

    ``run`` is the run that the rank was in before (0: none), and ``ended`` how its part of that run ended, if known.
    """
    if row.state in ("gone", "unreachable", "starting"):
        return f"is {row.state}"
    if not row.run:
        return f"{ENDED[ended]} run {run}" if run else "idle"
    later = "; pause pending" if row.is_pausing else ""
    if seen is None or seen.doing.kind in ("idle", "paused"):  # it has moved on since
        return f"is in run {row.run}{later}"
    what = describe_doing(seen, with_seconds=False)
    if seen.doing.kind == "silent":
        return what + later
    return f"{'in' if seen.doing.kind in BLOCKED else 'running'} {what}{later}"
