"""Drill: cause faults on a temporary cluster, time and judge its answers, for each backend, and end it again.

A trial is a coroutine with a :class:`DrilledCluster`, registered under its name in the order in which trials are made.
The victim is the last rank of the world, on its last node. What is expected is what jdist promises for that fault: who
is named, that every rank comes free, that an all_reduce over the whole world is right again, and who keeps its names.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from jdist.client import find
from jdist.client.cluster import AsyncCluster
from jdist.client.lifecycle.start import Progress, Waiting, check_backend
from jdist.client.link import Link
from jdist.client.run import CellRun
from jdist.core import rank_code
from jdist.core.errors import JdistError, UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.status import Notice
from jdist.core.ranks import describe_ranks
from jdist.core.settings import declared_options

Result = Literal["held", "failed", "not tried"]


class Trial(Struct, frozen=True):
    """One fault. Times are in seconds; None where they do not apply, or were not reached."""

    fault: str
    result: Result
    reason: str = ""  # What did not hold, or why it was not tried.
    note: str = ""  # What the user should know although all held.
    said: str = ""  # The verdict or error, as a user reads it.
    verdict_seconds: float | None = None  # From the fault until jdist named it.
    free_seconds: float | None = None  # From the interrupt (or the verdict) until every rank was free.
    sum_seconds: float | None = None  # From then on until a right all_reduce over the whole world.
    kept: int = 0  # Ranks that have their names, of
    expected: int = 0  # those that should have them.


class Drill(Struct, frozen=True):
    """The trials with one backend, on the cluster that was started for them."""

    backend: str  # As the cluster says; as it was asked for, if it could not be started.
    launcher: str
    world_size: int = 0
    hosts: tuple[str, ...] = ()  # Of each node.
    start_seconds: float = 0.0
    trials: tuple[Trial, ...] = ()
    trouble: str = ""  # Why there was no cluster.
    torch: tuple[str, ...] = ()  # The versions on its ranks.

    @property
    def held(self) -> bool:
        """Whether nothing failed, and something was tried."""
        results = {trial.result for trial in self.trials}
        return not self.trouble and "failed" not in results and "held" in results


# ---------------------------------------------------------------- steps of trials


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


# ---------------------------------------------------------------- trials

_OUT_OF_REACH = 5.0  # Seconds; longer than until a node counts as unreachable, shorter than until it counts as gone.
_GOES_ON = 5.0  # Seconds of a cell during which the controller is killed.

TrialFunction = Callable[[DrilledCluster], Awaitable[None]]
TRIALS: dict[str, TrialFunction] = {}


def trial(name: str) -> Callable[[TrialFunction], TrialFunction]:
    """Registers a trial under what the user reads for it."""

    def register(function: TrialFunction) -> TrialFunction:
        TRIALS[name] = function
        return function

    return register


def _names(run: CellRun, kinds: Collection[str], ranks: Collection[int]) -> bool:
    found = run.verdict
    return found is not None and found.kind in kinds and set(found.responsible) == set(ranks)


# ---------------------------------------------------------------- faults in a cell


async def _hang(drilled: DrilledCluster, code: str, kinds: Collection[str], ranks: Collection[int]) -> None:
    """A cell that hangs until it is interrupted, and the ranks that a verdict of one of these kinds must name."""
    run = await drilled.begin(code)
    await drilled.expect_named(run, lambda r: _names(r, kinds, ranks))
    await drilled.expect_free(run, is_interrupted=True)
    await drilled.expect_recovery()


@trial("a rank skips a collective")
async def _skipped(drilled: DrilledCluster) -> None:
    drilled.needs_two_ranks()
    victim = drilled.victim
    code = f"x = torch.ones(1, device=device)\nif rank != {victim}: dist.all_reduce(x)\nx.item()"
    await _hang(drilled, code, {"missing"}, {victim})


@trial("two ranks receive from each other")
async def _crossed(drilled: DrilledCluster) -> None:
    drilled.needs_two_ranks()
    victim, backend = drilled.victim, drilled.cluster.backend
    if "gloo" not in backend:
        raise NotTried(f"jdist does not follow the messages of single ranks with backend {backend}")
    code = f"x = torch.ones(1)\npeer = {{0: {victim}, {victim}: 0}}.get(rank)\n"
    code += "if peer is not None:\n    dist.recv(x, peer)\n    dist.send(x, peer)"
    await _hang(drilled, code, {"transfer", "cycle"}, {0, victim})


@trial("an exception on one rank")
async def _exception(drilled: DrilledCluster) -> None:
    victim = drilled.victim
    code = f"x = torch.ones(1, device=device)\nif rank == {victim}: raise ValueError('drill')\n"
    run = await drilled.begin(f"{code}dist.all_reduce(x)\nx.item()")
    await drilled.expect_named(run, lambda r: r.is_done or _names(r, {"missing"}, {victim}))
    await drilled.expect_free(run, is_interrupted=False)
    error = run.outcomes[victim].error
    if error is None or (error.ename, error.evalue, error.cell_line) != ("ValueError", "drill", 2):
        raise Unmet(f"the ValueError at line 2 of rank {victim} was expected, not {error}")
    if run.first_failure != victim:
        raise Unmet(f"rank {run.first_failure} was named as the first that failed, not rank {victim}")
    await drilled.expect_recovery()


@trial("a loop in Python on one rank")
async def _loop(drilled: DrilledCluster) -> None:
    drilled.needs_two_ranks()
    victim = drilled.victim
    code = f"x = torch.ones(1, device=device)\nif rank == {victim}:\n    while True: pass\ndist.all_reduce(x)\nx.item()"
    await _hang(drilled, code, {"slow"}, {victim})


# ---------------------------------------------------------------- faults of the network


@trial("a rank's connections break")
async def _cut(drilled: DrilledCluster) -> None:
    drilled.needs_two_ranks()
    victim = drilled.victim
    reduce = "dist.all_reduce(x); x.item()"
    code = f"x = torch.zeros(1000, device=device).sum()\nfor step in range(200):\n    {reduce}\n"
    cut = f"if rank == {victim}: {rank_code.cause_fault('cut_connections')}\n"
    run = await drilled.begin(f"{code}{cut}for step in range(2000):\n    {reduce}\n")

    def is_right(run: CellRun) -> bool:
        errors = [o.error for o in run.outcomes.values() if o.error is not None]
        return any(e.is_echo for e in errors) or (run.is_done and not errors)

    await drilled.expect_named(run, is_right)
    await drilled.expect_free(run, is_interrupted=False)
    if all(outcome.ok for outcome in run.outcomes.values()):
        drilled.note("the collectives continued, because they do not use the connections that were cut")
    await drilled.expect_recovery()


@trial(f"a node is out of reach for {_OUT_OF_REACH:.0f} s")
async def _silent(drilled: DrilledCluster) -> None:
    cluster, victim = drilled.cluster, drilled.victim
    place = cluster.topology.place(victim)
    reduce = "dist.all_reduce(x); x.item()" if cluster.world_size > 1 else "pass"
    stop = f"if rank == {victim}: {rank_code.cause_fault('stop_agent', _OUT_OF_REACH)}\n"
    loop = f"began = time.monotonic()\nwhile time.monotonic() < began + {_OUT_OF_REACH + 1}:\n    time.sleep(0.01)\n"
    run = await drilled.begin(f"import time\n{stop}{loop}x = torch.zeros(1, device=device)\n{reduce}\nrank")
    await drilled.expect(lambda: place in cluster.facts.unreachable, f"place {place} was expected to be unreachable")
    drilled.mark_named("; ".join((await cluster.status()).silences))
    await drilled.expect_free(run, is_interrupted=False)
    if run.values != {rank: rank for rank in range(cluster.world_size)}:
        raise Unmet(f"the cell was expected to go on: {said_of(run)}")
    await drilled.expect_recovery()


# ---------------------------------------------------------------- processes that end


@trial("a rank is killed")
async def _killed(drilled: DrilledCluster) -> None:
    victim = drilled.victim
    code = f"import os\nx = torch.ones(1, device=device)\nif rank == {victim}: os.kill(os.getpid(), 9)\n"
    run = await drilled.begin(f"{code}dist.all_reduce(x)\nx.item()")
    await drilled.expect_named(run, lambda r: _names(r, {"lost"}, {victim}) and "SIGKILL" in said_of(r))
    await drilled.expect_free(run, is_interrupted=False)
    await drilled.expect_recovery(lost={victim})


@trial("the controller is killed")
async def _controller(drilled: DrilledCluster) -> None:
    cluster = drilled.cluster
    connection = cluster.link.connection
    if not find.is_here(connection):
        raise NotTried(f"the controller runs on another host, {connection.hostname}")
    code = f"import time\nend = time.monotonic() + {_GOES_ON}\nwhile time.monotonic() < end: time.sleep(0.01)"
    run = await cluster.run(code, background=True)
    await drilled.expect_inside()
    told: list[str] = []

    def note(message: Message) -> None:
        if isinstance(message, Notice) and "controller died" in message.text:
            told.append(message.text)

    unwatch = cluster.watch(note)
    try:
        drilled.begin_timing()
        os.kill(connection.pid, 9)
        await drilled.expect(lambda: bool(told), "the controller was expected to be started again")
    finally:
        unwatch()
    drilled.mark_named(told[0])
    await cluster.revived()
    drilled.mark_free()
    await drilled.expect(lambda: run.is_done, "the cell that ran was expected to go on, and to end")
    try:
        run.check()
    except JdistError as e:
        raise Unmet(f"the cell that ran was expected to go on without the controller: {e}") from e
    drilled.begin_timing()
    await drilled.expect_recovery()


@trial("a node's agent is killed")
async def _agent(drilled: DrilledCluster) -> None:
    cluster, victim = drilled.cluster, drilled.victim
    topology = cluster.topology
    place = topology.place(victim)
    there = topology.ranks_at(place)
    code = f"x = torch.ones(1, device=device)\nif rank == {victim}: {rank_code.cause_fault('kill_agent')}\n"
    wait = (
        "import time\nwhile True: time.sleep(0.01)"
        if len(there) == cluster.world_size
        else "dist.all_reduce(x)\nx.item()"
    )
    run = await drilled.begin(f"{code}{wait}")
    await drilled.expect_named(run, lambda r: _names(r, {"lost"}, there))
    await drilled.expect_free(run, is_interrupted=False)
    await drilled.expect(lambda: not cluster.facts.hostnames[place], "the node was expected to be gone")
    try:
        await cluster.restart(there)
    except UsageError as e:
        drilled.note(f"the node has to be brought back by hand, so the rest was not tried: {e}")
        return
    await drilled.expect_recovery(lost=there)


# ---------------------------------------------------------------- drills

_STARTED = 120.0  # Seconds for the cluster to start, unless the user sets a timeout.
_GLOO_RANKS = 2  # On this machine, unless the user says how many.

OnStep = Callable[[str], None]


def options_like(link: Link) -> dict[str, Any]:
    """The options with which another cluster as this one is started. Raises UsageError where they are not known."""
    charter = find.charter_of(link.connection)
    if charter is None:
        raise UsageError(
            f"cluster {link.connection.name} was started from another host, so how to start one like it is not known "
            "here; name the options of start"
        )
    settings = charter.settings
    copied = {o.name: getattr(settings, o.name) for o in declared_options() if o.about.is_copied}
    left_open = {name: None for name in ("nproc_per_node", "nnodes", "backend") if not copied[name]}
    return {**copied, **left_open, "env": dict(settings.env)}


async def run_drills(backends: Sequence[str | None], on_step: OnStep, **options: Any) -> tuple[Drill, ...]:
    """A drill with each backend (None: the cluster's own choice), with options of ``start``. Raises UsageError."""
    options = {"timeout": _STARTED} | {k: v for k, v in options.items() if v is not None}
    options |= {"on_death": "replace", "until": os.getpid()}
    for backend in backends:
        check_backend(backend or "")
    found: list[Drill] = []
    for backend in backends:
        found.append(await _drill(backend, on_step, options, is_first=not found))
    return tuple(found)


async def _drill(backend: str | None, on_step: OnStep, options: dict[str, Any], *, is_first: bool) -> Drill:
    drill = Drill(backend or "", options.get("launcher", "local"))
    todo = list(TRIALS.items())
    done: list[Trial] = []
    while todo:
        beginning = f"starting a temporary cluster{f' with backend {backend}' if backend else ''}"

        def report(progress: Progress, beginning: str = beginning) -> None:
            if isinstance(progress, Waiting) and progress.text:  # such as the line with which nodes join
                on_step(f"{beginning}: {progress.text}")

        on_step(beginning)
        if (backend, drill.launcher) == ("gloo", "local") and not options.get("nproc_per_node"):
            options = options | {"nproc_per_node": _GLOO_RANKS}  # not one for each GPU, of which there may be only one
        try:
            cluster = await AsyncCluster.start(backend=backend, keep=True, **options, on_progress=report)
        except JdistError as e:
            if isinstance(e, UsageError) and is_first and not done:
                raise  # else what has been found out would be lost
            why = f"the cluster could not be started{' again' if done else ''}: {e}"
            done += [Trial(name, "not tried", why) for name, _ in todo]
            return replace(drill, trials=tuple(done), trouble=drill.trouble or why)
        try:
            if not done:
                hosts = tuple(map(cluster.topology.host_of_node, range(cluster.topology.nnodes)))
                drill = replace(drill, backend=cluster.backend, world_size=cluster.world_size, hosts=hosts)
                drill = replace(drill, start_seconds=cluster.start_seconds)
            drilled = DrilledCluster(cluster)
            drill = replace(drill, torch=drill.torch or await drilled.torch_versions())
            while todo:
                name, function = todo.pop(0)
                on_step(f"{cluster.backend}: {name} ({len(done) + 1} of {len(TRIALS)})")
                done.append(await _try(drilled, name, function))
                if done[-1].result == "failed":
                    break  # what the failure has left behind must not fail the next trial
        finally:
            with contextlib.suppress(JdistError):
                await cluster.stop()
    return replace(drill, trials=tuple(done))


async def _try(drilled: DrilledCluster, name: str, function: TrialFunction) -> Trial:
    try:
        await drilled.prepare(name)
        await function(drilled)
    except NotTried as e:
        return Trial(name, "not tried", str(e))
    except (Unmet, JdistError, OSError) as e:
        return replace(drilled.trial, result="failed", reason=str(e) or type(e).__name__)
    return drilled.trial
