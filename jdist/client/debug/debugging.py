"""Debugging: pause, inspect and resume the ranks of an attached cluster."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from types import MappingProxyType

from jdist.client.active_runs import ActiveRuns
from jdist.client.attachment import Attachment, Ranks
from jdist.client.debug.places import BLOCKED, Places, describe_unpaused
from jdist.client.debug.stack_tree import Stacks
from jdist.client.link import Link, new_request
from jdist.client.run import CellRun
from jdist.core.errors import ConnectionLost, UsageError
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
from jdist.core.messages.observation import Observation, Observe
from jdist.core.messages.protocol import RankOp
from jdist.core.messages.status import ClusterFacts, RankFacts, StatusReport, StatusRequest
from jdist.core.ranks import describe_ranks
from jdist.core.remedy import Remedy
from jdist.core.stacks import StepKind

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
        others = await self._describe_others({r: row for r, row in rows.items() if r not in paused}, runs, known)
        return Places(paused, others)

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
        known: Mapping[int, CellRun | None] = MappingProxyType({}),
    ) -> dict[int, str]:
        """What ranks that are not paused are doing.

        ``runs`` has the run that each was in before, and ``known`` those of these runs that this client follows.
        """
        seen = await self._glance([r for r, row in rows.items() if row.run])
        found = {}
        for rank, row in sorted(rows.items()):
            number = runs.get(rank, 0)
            run = known.get(number)
            outcome = run.outcomes.get(rank) if run is not None else None
            found[rank] = describe_unpaused(row, seen.get(rank), number, outcome.kind if outcome else None)
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
