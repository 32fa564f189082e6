"""DrilledCluster: the steps of which trials consist, each timed, and each with an expectation that may not hold."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from msgspec.structs import replace

from jdist.client.cluster import AsyncCluster
from jdist.client.drill.report import Trial
from jdist.client.run import CellRun
from jdist.core.errors import JdistError
from jdist.core.ranks import describe_ranks

NAMED = 30.0  # Seconds in which a fault must be named.
FREE = 60.0  # Seconds in which every rank must be free.
FORMED = 180.0  # Seconds for the world to be formed again, and for a node to come back.
_POLL = 0.005

_KEEP = """
drill_kept = {"rank": rank, "tensor": torch.arange(1000.0, device=device) * (rank + 1)}
drill_expected = float(drill_kept["tensor"].sum())
"""
_IS_KEPT = """
"drill_kept" in globals() and drill_kept["rank"] == rank and float(drill_kept["tensor"].sum()) == drill_expected
"""
_SUM = """
drill_sum = torch.full((1,), rank + 1.0, device=device)
dist.all_reduce(drill_sum)
drill_sum.item()
"""


class NotTried(Exception):
    """A fault that cannot be caused here, and why."""


class Unmet(Exception):
    """An expectation that did not hold."""


class DrilledCluster:
    """The cluster of a drill, with what trials have in common. Its steps fill in ``trial``."""

    def __init__(self, cluster: AsyncCluster):
        self.cluster = cluster
        self.trial = Trial("", "held")
        self._at = 0.0  # When the last step ended, or the fault was caused (time.monotonic).

    @property
    def victim(self) -> int:
        return self.cluster.world_size - 1

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(range(self.victim))

    def needs_two_ranks(self) -> None:
        """Raises NotTried in a world of one rank."""
        if self.cluster.world_size < 2:
            raise NotTried("it takes two ranks")

    async def torch_versions(self) -> tuple[str, ...]:
        """The versions of torch on the ranks; usually only one. Empty if the ranks do not answer."""
        try:
            run = await self.cluster.run("torch.__version__", timeout=FREE, check=False)
        except JdistError:
            return ()
        return tuple(sorted(set(map(str, run.values.values()))))

    async def prepare(self, fault: str) -> None:
        """Bind the names that are looked for later."""
        self.trial = Trial(fault, "held")
        await self.cluster.run(_KEEP, timeout=FREE)
        await self.expect_right_sum()
        self.trial = replace(self.trial, sum_seconds=None)

    async def begin(self, code: str) -> CellRun:
        """Submit the cell that causes the fault."""
        self._at = time.monotonic()
        return await self.cluster.run(code, background=True)

    async def expect_named(self, run: CellRun, is_right: Callable[[CellRun], bool]) -> None:
        """Wait until what is said about the run is right. Raises Unmet if the run is over before, or time is."""
        await self._until(lambda: is_right(run) or run.is_done, NAMED)
        self._note(verdict_seconds=self._lap())
        if not is_right(run):
            said = said_of(run)
            raise Unmet(f"the fault was not named; jdist said: {said}" if said else "nothing was said about the fault")
        self._note(said=said_of(run))

    async def expect_free(self, run: CellRun, *, is_interrupted: bool) -> None:
        """Wait until every rank is free: after an interrupt, or by itself where jdist ends the run."""
        self._at = time.monotonic()
        if is_interrupted:
            run.cancel()
        await self._until(lambda: run.is_done, FREE)
        if not run.is_done:
            left = sorted(set(run.ranks) - set(run.outcomes))
            raise Unmet(f"{describe_ranks(left, 'is')} not free after {FREE:.0f} s")
        self._note(free_seconds=self._lap(), said=said_of(run) or self.trial.said)

    async def expect_right_sum(self) -> None:
        """An all_reduce over the whole world, once it has been formed again."""
        size = self.cluster.world_size
        try:
            run = await self.cluster.run(_SUM, timeout=FORMED)
        except JdistError as e:
            raise Unmet(f"no all_reduce afterwards: {e}") from e
        right = size * (size + 1) / 2
        if run.values != dict.fromkeys(range(size), right):
            raise Unmet(f"all_reduce gave {run.values}, not {right} on each rank")
        self._note(sum_seconds=self._lap())

    async def expect_names(self, lost: Collection[int] = ()) -> None:
        """Every rank but those in ``lost`` has the names that it had."""
        found = (await self.cluster.run(_IS_KEPT, timeout=FREE)).values
        expected = [rank for rank in range(self.cluster.world_size) if rank not in lost]
        without = [rank for rank in expected if found.get(rank) is not True]
        self._note(kept=len(expected) - len(without), expected=len(expected))
        if without:
            raise Unmet(f"{describe_ranks(without, 'has')} lost the names that had been bound there")

    async def expect_recovery(self, lost: Collection[int] = ()) -> None:
        """What every fault has in common."""
        await self.expect_right_sum()
        await self.expect_names(lost)

    async def expect(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait for something else. Raises Unmet with ``otherwise``."""
        await self._until(is_so, NAMED)
        if not is_so():
            raise Unmet(otherwise)

    async def expect_inside(self) -> None:
        """Wait until all ranks are in their cell: a run has started before it has reached them."""
        deadline = time.monotonic() + NAMED
        while time.monotonic() < deadline:
            seen = await self.cluster.look()
            if len(seen) == self.cluster.world_size and all(each.doing.line for each in seen.values()):
                return
            await asyncio.sleep(_POLL)
        raise Unmet("the ranks were expected to begin the cell")

    def begin_timing(self) -> None:
        """The fault is caused now, not with the cell."""
        self._at = time.monotonic()

    def mark_named(self, said: str) -> None:
        """The fault has been named, other than by the run's verdict."""
        self._note(verdict_seconds=self._lap(), said=said)

    def mark_free(self) -> None:
        """Cells can be run again."""
        self._note(free_seconds=self._lap())

    def note(self, text: str) -> None:
        """Something to say beside the result."""
        self._note(note=text)

    def _note(self, **facts: Any) -> None:
        self.trial = replace(self.trial, **facts)

    def _lap(self) -> float:
        """Seconds since the last step ended."""
        last, self._at = self._at, time.monotonic()
        return self._at - last

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so() and time.monotonic() < deadline:  # noqa: ASYNC110 — what is awaited triggers no event here
            await asyncio.sleep(_POLL)


def said_of(run: CellRun) -> str:
    """What the user reads about the run."""
    if run.verdict is not None:
        return run.verdict.final_text
    try:
        run.check()
    except JdistError as e:
        return str(e)
    return ""
