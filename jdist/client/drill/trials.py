"""Trials: the faults of a drill. Each is caused on a running cluster, whose answer is timed and judged.

A trial is a coroutine with a :class:`DrilledCluster`, registered under its name in the order in which trials are made.
The victim is the last rank of the world, on its last node. What is expected is what jdist promises for that fault: who
is named, that every rank comes free, that an all_reduce over the whole world is right again, and who keeps its names.
"""

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection

from jdist.client import find
from jdist.client.drill.drilled_cluster import FREE, DrilledCluster, NotTried, Unmet, said_of
from jdist.client.run import CellRun
from jdist.core import rank_code
from jdist.core.errors import ConnectionLost, JdistError, UsageError

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
    code = f"import time\nend = time.monotonic() + {_GOES_ON}\nwhile time.monotonic() < end: time.sleep(0.01)\n"
    run = await cluster.run(f"{code}drill_went_on = True", background=True)
    await drilled.expect_inside()
    drilled.begin_timing()
    os.kill(connection.pid, signal.SIGKILL)
    await drilled.expect_named(run, _lost_its_controller)
    await cluster.revived()
    await drilled.expect(
        lambda: cluster.attachment.current is not None, "the controller was expected to be started again"
    )
    drilled.mark_free()
    with contextlib.suppress(UsageError):  # it has ended already
        await (await cluster.follow(run.number))
    drilled.begin_timing()
    await drilled.expect_right_sum()
    went_on = (await cluster.run("globals().get('drill_went_on')", timeout=FREE)).values
    if set(went_on.values()) != {True}:
        raise Unmet("the cell that ran was expected to go on without the controller")
    await drilled.expect_names()


def _lost_its_controller(run: CellRun) -> bool:
    try:
        run.check()
    except JdistError as e:
        return isinstance(e, ConnectionLost)
    return False


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
