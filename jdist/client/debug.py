"""Debugging: pause, inspect and resume the ranks of an attached cluster.

Ranks at the same place are put together: in a list of places, or in one tree of their stacks.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.link import Link, new_request
from jdist.client.measure.report import title
from jdist.core.errors import ConnectionLost, Remedy, UsageError
from jdist.core.messages.debug import (
    DebugFailure,
    Pause,
    RankFailure,
    RankPaused,
    ReadSource,
    ReadStack,
    Resume,
    SourceText,
    Stack,
)
from jdist.core.messages.observation import Call, Observation, Observe, StackFrame, StepKind
from jdist.core.messages.protocol import RankOp
from jdist.core.messages.status import ClusterFacts, RankFacts, StatusReport, StatusRequest
from jdist.core.outcome import Outcome, OutcomeKind
from jdist.core.ranks import RankSet, describe_ranks, ranks_by

_MOST = 16  # Number of places listed.
_LONGEST = 160  # Characters of a place.
_LONGEST_RANKS = 40  # Characters of the ranks at a place.
# How a rank's part of a run has ended, by the kind of its outcome.
_ENDED: Mapping[OutcomeKind | None, str] = {
    "value": "finished",
    "error": "failed in",
    "timeout": "timed out in",
    "interrupted": "was interrupted in",
    "lost": "was lost in",
    None: "is no longer in",  # This client does not follow the run.
}
_ABSENT = ("gone", "unreachable", "starting")  # States of ranks that run nothing.
BLOCKED = ("collective", "transfer", "store")  # Kinds of activity that depend on other ranks.


# ---------------------------------------------------------------- places


class Places(dict[int, RankPaused]):
    """Where ranks are: ``{rank: RankPaused}``. ``str()`` lists them, with ranks at the same place on one line."""

    def __init__(
        self,
        paused: Mapping[int, RankPaused],
        others: Mapping[int, str],
        ended: Mapping[int, OutcomeKind | None] = MappingProxyType({}),
    ):
        super().__init__(paused)
        self.others = dict(others)
        """``{rank: what it is doing}`` for the ranks that are not paused."""
        self.ended = dict(ended)
        """``{rank: kind of its outcome, None if unknown}`` for those of them whose part of the run is over."""

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
    return " ".join(filter(None, (title(call), call.tensors, call.direction)))


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
    if row.state in _ABSENT:
        return f"is {row.state}"
    if not row.run:
        return f"{_ENDED[ended]} run {run}" if run else "idle"
    later = "; pause pending" if row.is_pausing else ""
    if seen is None or seen.doing.kind in ("idle", "paused"):  # it has moved on since
        return f"is in run {row.run}{later}"
    what = describe_doing(seen, with_seconds=False)
    if seen.doing.kind == "silent":
        return what + later
    return f"{'in' if seen.doing.kind in BLOCKED else 'running'} {what}{later}"


# ---------------------------------------------------------------- stacks


CHOSEN = "◂"  # Marks the frames in which cells run.
_MOST_LINES = 200


class Branch(Struct):
    """A frame that some ranks have in common, and the frames that it called there."""

    frame: StackFrame
    ranks: list[int]
    chosen: list[int]  # Ranks whose cells run in this frame.
    children: "list[Branch]"


class Stacks(dict[int, Stack]):
    """``{rank: Stack}``. ``str()`` draws the stacks as one tree, and lists what the other ranks are doing."""

    def __init__(self, stacks: Mapping[int, Stack], others: Mapping[int, str]):
        super().__init__(stacks)
        self.others = dict(others)
        """``{rank: what it is doing}`` for the ranks that are not paused."""

    def __repr__(self) -> str:
        drawn = list(_draw(merge(self)))
        if len(drawn) > _MOST_LINES:
            drawn = [*drawn[:_MOST_LINES], f"… {len(drawn) - _MOST_LINES} more lines; use -r to select ranks"]
        causes: dict[int, str] = {}
        for rank, stack in self.items():
            thread = f"in thread {stack.thread}" if stack.thread else ""
            causes[rank] = " · ".join(filter(None, (stack.error, thread)))
        notes = list_places({}, {rank: text for rank, text in causes.items() if text})
        return "\n".join([*drawn, *notes, *list_places({}, self.others)])


def listed(stack: Stack) -> list[int]:
    """The indexes of the frames that the tree shows: those of user code, and the one in which cells run."""
    return [index for index, frame in enumerate(stack.frames) if frame.is_user_code or index == stack.chosen]


def merge(stacks: Mapping[int, Stack]) -> list[Branch]:
    """The outermost frames of the tree, with those frames of each rank that are :func:`listed`."""
    roots: list[Branch] = []
    for rank, stack in sorted(stacks.items()):
        level = roots
        for index in listed(stack):
            frame = stack.frames[index]
            branch = next((each for each in level if _is_same(each.frame, frame)), None)
            if branch is None:
                branch = Branch(frame, [], [], [])
                level.append(branch)
            branch.ranks.append(rank)
            if index == stack.chosen:
                branch.chosen.append(rank)
            level = branch.children
    return roots


def _is_same(one: StackFrame, other: StackFrame) -> bool:
    return (one.function, one.file, one.line, one.run) == (other.function, other.file, other.line, other.run)


def _draw(level: list[Branch], margin: str = "") -> Iterator[str]:
    """A line for each frame."""
    for place, branch in enumerate(level):
        is_last = place == len(level) - 1
        lead, below = ("", "") if not margin and len(level) == 1 else ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _draw_chain(branch, f"{margin}{lead}{bracketed(branch.ranks)} ", margin + below)


def _draw_chain(branch: Branch, lead: str, margin: str) -> Iterator[str]:
    """The frame and, below it, the frames that it called; those in which ranks differ are indented."""
    while True:
        yield lead + _text(branch)
        lead = f"{margin}   "
        if len(branch.children) != 1 or branch.children[0].ranks != branch.ranks:
            break
        branch = branch.children[0]
    yield from _draw(branch.children, f"{margin} ")


def _text(branch: Branch) -> str:
    frame = branch.frame
    text = shortened(f"{frame.place}: {frame.source}" if frame.source else frame.place)
    if not branch.chosen:
        return text
    whose = "cells" if branch.chosen == branch.ranks else f"cells of {bracketed(branch.chosen)}"
    return f"{text}  {CHOSEN} {whose} run here"


# ---------------------------------------------------------------- pausing and resuming

_ANSWER = 5.0  # Seconds for a rank to answer a query.
_GLANCE = 0.5  # Seconds for a rank to report what it is doing.
_LOOK_AGAIN = 0.3  # Seconds between two checks of the ranks that have not paused.
_BLOCKED_FOR = 0.4  # Seconds after which a rank in the same collective counts as blocked.
_PAUSE = 2.0  # Seconds for ranks to pause.
_PATIENCE: Mapping[StepKind, float] = {"continue": 0.5, "next_call": 60.0}
_STEP = 10.0  # Seconds for a rank to finish any other step.


class Debugging:
    """The part of a cluster that pauses ranks and inspects them."""

    def __init__(self, attachment: Attachment, runs: ActiveRuns) -> None:
        self._attachment = attachment
        self._runs = runs

    async def pause(self, ranks: Ranks = None, *, run: int = 0, timeout: float = _PAUSE) -> Places:
        """Pause whatever is running on ``ranks`` (or one run), each rank at its next line of Python.

        A rank that is inside a collective pauses when the collective returns. Returns where the ranks are, as soon as
        each has paused or is blocked, or after ``timeout`` seconds. Until :meth:`resume`, cells run in the paused
        frames.
        """
        report = await self._report()
        chosen = set(self._attachment.select(ranks))
        running = {row.rank: row for row in report.ranks if row.rank in chosen and row.run and run in (0, row.run)}
        await self._link.request(Pause(new_request(), () if ranks is None else tuple(sorted(chosen)), run), object)
        return await self._settled(running, timeout)

    async def resume(
        self, how: StepKind = "continue", ranks: Ranks = None, *, line: int = 0, timeout: float | None = None
    ) -> Places:
        """Resume paused ranks (by default all), and return where they are afterwards.

        ``how``: "continue"; "step" to the next line anywhere; "next" to the next line of the chosen frame or of one of
        its callers; "return" until the chosen frame is about to return; "until" to a line of the chosen frame at or
        after ``line``; "next_call" until each rank is about to begin its next collective or transfer. As in pdb, the
        middle four also pause where a function is about to return, with the value. The call returns as soon as
        each rank has paused again, has finished, or is blocked in a collective, or after ``timeout`` seconds: 0.5
        for "continue", 60 for "next_call", else 10. Ranks that have not paused by then keep running. Raises UsageError
        if no rank is paused.
        """
        chosen = set(self._attachment.select(ranks))
        report = await self._report()
        paused = {row.rank: row for row in report.ranks if row.rank in chosen and (row.paused or row.is_pausing)}
        if not paused:
            raise await self._not_paused(report, () if ranks is None else chosen)
        named = () if ranks is None else tuple(sorted(chosen))
        await self._link.request(Resume(new_request(), how, named, line), object)
        try:
            return await self._settled(paused, _PATIENCE.get(how, _STEP) if timeout is None else timeout)
        except ConnectionLost:  # the cluster of a job ends with its run
            return Places({}, dict.fromkeys(paused, "resumed; the cluster has stopped"))

    async def where(self, ranks: Ranks = None) -> Stacks:
        """The stacks of paused ranks, and what the others are doing; ``str()`` draws the stacks as one tree.

        After :meth:`debug`, the stacks of the ranks that failed. Raises UsageError if no rank is paused.
        """
        chosen = self._attachment.select(ranks)
        report = await self._report()
        rows = {row.rank: row for row in report.ranks if row.rank in chosen}
        found = await self._stacks([r for r, row in rows.items() if row.paused] or chosen, ReadStack())
        if not found and not any(row.paused or row.is_pausing for row in report.ranks):
            raise await self._not_paused(report)
        return Stacks(found, await self._describe_others({r: row for r, row in rows.items() if r not in found}))

    async def up(self, frames: int = 1, ranks: Ranks = None) -> Stacks:
        """Choose the caller's frame, or the one ``frames`` further up, for cells on paused ranks; return the stacks."""
        return await self._choose(ReadStack(frames), ranks)

    async def down(self, frames: int = 1, ranks: Ranks = None) -> Stacks:
        """Choose the called frame, or the one ``frames`` further down, for cells on paused ranks; return the stacks."""
        return await self._choose(ReadStack(-frames), ranks)

    async def choose_frame(self, index: int, ranks: Ranks = None) -> Stacks:
        """Choose a frame, from 0 for the outermost of ``Stack.frames``, for cells on paused ranks; return stacks."""
        return await self._choose(ReadStack(index=index), ranks)

    async def debug(self, run: int = 0, ranks: Ranks = None) -> Stacks:
        """The stacks of the ranks whose last cell (or ``run``) failed, at the point of failure.

        ``run(code, in_failure=True)`` runs cells there, until a rank's next ordinary cell. Raises UsageError if none
        of the ranks failed.
        """
        found = await self._stacks(self._attachment.select(ranks), DebugFailure(run))
        if not found:
            raise UsageError(f"no rank failed in {f'run {run}' if run else 'its last cell'}")
        return Stacks(found, {})

    async def stop_debugging(self, ranks: Ranks = None) -> None:
        """Undo :meth:`debug`, and free the frames that failed with everything that only they refer to."""
        await self._link.query(tuple(sorted(self._attachment.select(ranks))), DebugFailure(ends=True), _ANSWER)

    async def source(self, file: str, rank: int) -> str:
        """The text of a file that is on the stack of a paused rank. Raises UsageError if it is not."""
        return (await self._link.query_one(rank, ReadSource(file), SourceText, _ANSWER)).text

    @property
    def _link(self) -> Link:
        return self._attachment.link

    async def _report(self) -> StatusReport:
        return await self._link.request(StatusRequest(new_request()), StatusReport)

    async def _choose(self, query: ReadStack, ranks: Ranks) -> Stacks:
        found = await self._stacks(self._attachment.select_paused(ranks), query)
        if not found:
            raise await self._not_paused(await self._report(), () if ranks is None else self._attachment.select(ranks))
        return Stacks(found, {})

    async def _stacks(self, ranks: Collection[int], op: RankOp) -> dict[int, Stack]:
        """The stacks of the ranks that have one. Raises UsageError if none has one and a rank does not answer."""
        answers = await self._link.query(tuple(sorted(ranks)), op, _ANSWER)
        return {r: a for r, a in sorted(answers.items()) if isinstance(a, Stack)}

    async def _settled(self, before: Mapping[int, RankFacts], timeout: float) -> Places:
        """Where the ranks are once each has paused, is done or is blocked, or after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        unwatch = self._attachment.watch(lambda m: changed.set() if isinstance(m, ClusterFacts | RankPaused) else None)
        runs = {rank: row.paused.run if row.paused is not None else row.run for rank, row in before.items()}
        known = {number: self._runs.get(number) for number in set(runs.values())}
        began = loop.time()
        try:
            while True:
                changed.clear()
                rows = {row.rank: row for row in (await self._report()).ranks if row.rank in before}
                moving = {r: row for r, row in rows.items() if row.paused is None and row.run and row.run == runs[r]}
                late = loop.time() - began
                if not moving or late >= timeout or (late >= _LOOK_AGAIN and await self._are_blocked(moving)):
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_LOOK_AGAIN, timeout - late)):
                        await changed.wait()
        finally:
            unwatch()
        paused = {r: row.paused for r, row in rows.items() if row.paused is not None}
        others = {r: row for r, row in rows.items() if r not in paused}
        outcomes = {r: o for r in others if (run := known[runs[r]]) is not None and (o := run.outcomes.get(r))}
        over = [r for r, row in others.items() if not row.run and row.state not in _ABSENT]
        ended = {r: outcomes[r].kind if r in outcomes else None for r in over}
        return Places(paused, await self._describe_others(others, runs, outcomes), ended)

    async def _glance(self, ranks: Collection[int]) -> dict[int, Observation]:
        return await self._link.query_within(tuple(sorted(ranks)), Observe(), Observation, _GLANCE) if ranks else {}

    async def _are_blocked(self, ranks: Collection[int]) -> bool:
        seen = await self._glance(ranks)
        return len(seen) == len(ranks) and all(
            each.doing.kind in BLOCKED and each.doing.seconds >= _BLOCKED_FOR for each in seen.values()
        )

    async def _describe_others(
        self,
        rows: Mapping[int, RankFacts],
        runs: Mapping[int, int] = MappingProxyType({}),
        outcomes: Mapping[int, Outcome] = MappingProxyType({}),
    ) -> dict[int, str]:
        """What ranks that are not paused are doing.

        ``runs`` has the run that each was in before, and ``outcomes`` how its part ended if this client follows it.
        """
        seen = await self._glance([r for r, row in rows.items() if row.run])
        found = {}
        for rank, row in sorted(rows.items()):
            outcome = outcomes.get(rank)
            found[rank] = describe_unpaused(
                row, seen.get(rank), runs.get(rank, 0), outcome.kind if outcome is not None else None
            )
            if outcome is not None and outcome.kind == "error" and outcome.error is not None and not row.run:
                found[rank] += f": {outcome.error.ename}: {outcome.error.evalue}"
        return found

    async def _not_paused(self, report: StatusReport, ranks: Collection[int] = ()) -> UsageError:
        """The error for when there is nothing to inspect, on any rank or on these."""
        who = f"{describe_ranks(ranks, 'is')} not paused" if ranks else "no rank is paused"
        rows = [row for row in report.ranks if not ranks or row.rank in ranks]
        remedies = [Remedy("pause", "pause the running ranks")] if any(row.run for row in rows) else []
        idle = tuple(row.rank for row in rows if not row.run)
        if idle and await self._link.query_within(idle, ReadStack(), RankFailure, _ANSWER):
            remedies.append(Remedy("debug", "inspect where the last cell failed"))
        return UsageError(who, remedies=remedies)
