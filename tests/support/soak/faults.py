"""Faults: what is done to a cluster while a program runs on it, and what must come of it.

Each fault runs one cell and judges how that went. Afterwards the driver checks that the cluster is as it should be.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jdist
from support.anatomy import agent, controller, forkserver, store, worker
from support.soak import programs
from support.waits import eventually

WAIT = 30.0
"""Seconds within which anything must have come to its end."""
JUDGED = 5.0
"""Seconds after which a verdict that has not come is called missing."""


STOPS = {0.1: 8, 0.5: 8, 2.0: 6, 10.0: 1}
"""Seconds for which a process is stopped, each with how often; all of them shorter than any grace."""


@dataclass
class Report:
    """How one fault went."""

    kind: str
    verdict: str = ""
    """right, open (nobody is accused, rightly), wrong, missing; "" where none is due."""
    to_verdict: float | None = None
    """Seconds from the moment when the run could no longer finish."""
    to_freedom: float | None = None
    """Seconds from the interrupt (or the death) until every rank was back."""
    to_group: float | None = None
    """Seconds from then until an all_reduce was right."""
    lost: set[int] = field(default_factory=set)
    """Ranks that may have lost their names."""
    aborted: set[int] = field(default_factory=set)
    """Ranks whose process gloo has ended: their successors have their names."""
    wrong: list[str] = field(default_factory=list)


Fault = Callable[[jdist.Cluster, random.Random], Report]


def none(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A correct program: it must give what it gives, and nobody may be accused."""
    return must_finish(cluster, rng, Report("none"), lambda _: None)


def must_finish(
    cluster: jdist.Cluster, rng: random.Random, report: Report, meanwhile: Callable[[jdist.CellRun], None]
) -> Report:
    """A correct program runs while ``meanwhile`` does something that must not matter: it gives what it gives."""
    what = programs.program(rng, rng.randrange(5, 40))
    run = cluster.run(what.code(), background=True)
    accused: list[str] = []
    run.watch(lambda m: accused.append(str(v)) if (v := getattr(m, "verdict", None)) and v.is_certain else None)
    meanwhile(run)
    if not run.wait(WAIT):
        report.wrong.append(f"a correct program did not finish: {run.verdict}")
        run.cancel()
    elif run.values != what.gives:
        report.wrong.append(f"a correct program gave {run.values}, not {what.gives}")
    if accused:
        report.verdict = "wrong"
        report.wrong.append(f"accused: {accused[0]}")
    return report


def stopped(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """SIGSTOP for a while, of any process: late is not lost."""
    of = rng.choice([lambda c: worker(c, rng.randrange(4)), lambda c: agent(c, rng.randrange(2)), controller, store])
    pid = of(cluster)

    def stop(run: jdist.CellRun) -> None:
        time.sleep(rng.random() * 0.2)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(rng.choices(list(STOPS), list(STOPS.values()))[0])
        os.kill(pid, signal.SIGCONT)

    return must_finish(cluster, rng, Report("stopped"), stop)


def missing(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A rank leaves a step out."""
    return _goes_wrong(cluster, rng, "missing", ())


def raises(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A rank fails in the middle."""
    return _goes_wrong(cluster, rng, "raises", ("raise ValueError('no data')",))


def another_call(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A rank calls something else."""
    return _goes_wrong(cluster, rng, "another call", ("dist.all_reduce(torch.ones(7), group=g)",))


def mismatched(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A rank calls with another size, dtype or root, or another operation."""
    return _mistaken(cluster, rng, Report("mismatched"))


def mismatched_and_killed(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """The same, and while that is being recovered from, a worker is killed."""
    rank = rng.randrange(4)
    report = _mistaken(cluster, rng, Report("mismatched, killed"))
    generation = cluster.generation
    if report.aborted and rng.random() < 0.5:
        eventually(lambda: cluster.generation > generation, WAIT)
    time.sleep(rng.random() * 0.1)
    pid = worker(cluster, rank)
    if pid:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: worker(cluster, rank) not in (0, pid), WAIT)
    report.lost.add(rank)
    return report


def crashed(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """C code of a rank aborts: its successor has its names."""
    how = "import os; os.abort()"
    report = Report("crashed")
    what = programs.program(rng, rng.randrange(5, 20))
    step = rng.randrange(len(what.steps))
    rank = rng.choice(programs.GROUPS[what.steps[step].group])
    run = cluster.run(what.code({step: (rank, (how,))}), background=True)
    if not run.wait(WAIT):
        report.wrong.append("a rank has crashed and the run did not end")
        run.cancel()
    report.aborted = {r for r, o in run.outcomes.items() if o.kind == "lost"}
    report.verdict = "missing" if run.verdict is None else "right" if run.verdict.responsible == (rank,) else "wrong"
    if report.verdict != "right" or report.aborted != {rank}:
        report.wrong.append(f"rank {rank} ran {how!r}, the verdict is {run.verdict}; {_ends(run)}")
    return report


def twice_wrong(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """Two ranks leave a step out, each another one or the same: no other rank may be accused."""
    report = Report("twice wrong")
    what = programs.program(rng, rng.randrange(5, 20))
    places = _places(what)
    if not places:
        return none(cluster, rng)
    steps = sorted(rng.choices(places, k=2))
    wrong = {step: rng.choice(programs.GROUPS[what.steps[step].group]) for step in steps}
    run = cluster.run(what.code({step: (rank, ()) for step, rank in wrong.items()}), background=True)
    _judge(run, report, set(wrong.values()), f"ranks {wrong} (by step) left a step out", can_be_open=False)
    return report


def _mistaken(cluster: jdist.Cluster, rng: random.Random, report: Report) -> Report:
    what = programs.program(rng, rng.randrange(5, 20))
    places = [i for i in _places(what) if what.steps[i].mistakes]
    if not places:
        return none(cluster, rng)
    step = rng.choice(places)
    group = what.steps[step].group
    rank = rng.choice(programs.GROUPS[group])
    mistake = rng.choice(what.steps[step].mistakes)
    run = cluster.run(what.code({step: (rank, (mistake,))}), background=True)
    told = f"rank {rank} called {mistake!r} in step {step} ({group}) instead of {what.steps[step].lines}"
    _judge(run, report, {rank}, told, can_be_open=len(programs.GROUPS[group]) == 2)
    return report


def _places(what: programs.Program) -> list[int]:
    """The steps in which ranks communicate."""
    talks = ("dist.", "funcol", "net(")
    return [i for i, s in enumerate(what.steps) if any(word in line for line in s.lines for word in talks)]


def _goes_wrong(cluster: jdist.Cluster, rng: random.Random, kind: str, instead: tuple[str, ...]) -> Report:
    report = Report(kind)
    what = programs.program(rng, rng.randrange(5, 20))
    places = _places(what)
    if not places:
        return none(cluster, rng)
    step = rng.choice(places)
    group = what.steps[step].group
    rank = rng.choice(programs.GROUPS[group])
    run = cluster.run(what.code({step: (rank, instead)}), background=True)
    told = f"it was rank {rank} in step {step} ({group})"
    _judge(run, report, {rank}, told, can_be_open=len(programs.GROUPS[group]) == 2)
    return report


def _judge(run: jdist.CellRun, report: Report, wrong: set[int], told: str, *, can_be_open: bool) -> None:
    """Wait until the run is explained, compare that with what is true, and free the ranks.

    ``can_be_open``: one call stands against one, so that nobody can know which of them was meant.
    """
    began = time.monotonic()
    found = eventually(lambda: run.is_done or ((v := run.verdict) is not None and v.is_certain), WAIT)
    if not found:
        report.verdict = "missing"
        report.wrong.append(f"{told}: no verdict within {WAIT:.0f} s")
    if run.verdict is not None:
        report.to_verdict = time.monotonic() - max(began, _last_end(run, began))
    if run.verdict is not None and run.verdict.kind == "lost":
        run.wait(WAIT)  # gloo has ended a process: whose call did not fit is said when the others have been looked at
    report.aborted = {r for r, o in run.outcomes.items() if o.kind == "lost"}
    _free(run, report)
    verdict = run.verdict
    if verdict is not None and not (verdict.kind == "lost" and report.aborted):
        accused = set(verdict.responsible)
        is_circle = verdict.kind in ("cycle", "transfer") and len(accused) > 1
        is_open = is_circle or (verdict.kind == "mismatch" and can_be_open)
        if not accused:
            report.verdict = "open"
        elif accused <= wrong:
            report.verdict = "right"
        else:
            report.verdict = "open" if is_open and accused & wrong else "wrong"
    elif found:
        report.verdict = "missing"
    if report.verdict in ("wrong", "missing") and found:
        report.wrong.append(f"{told}, the verdict is {verdict}; {_ends(run)}")


def _last_end(run: jdist.CellRun, began: float) -> float:
    """When the last rank that got through had done so: the earliest moment at which the run was stuck for sure."""
    return began + max((o.duration for o in run.outcomes.values() if o.ok), default=0.0)


def _free(run: jdist.CellRun, report: Report) -> None:
    began = time.monotonic()
    if not run.is_done:
        run.cancel()
    if not run.wait(WAIT):
        report.wrong.append(f"not freed within {WAIT:.0f} s: {run}")
    report.to_freedom = time.monotonic() - began


def interrupted(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """Stop, at any moment."""
    report = Report("interrupted")
    run = cluster.run(f"while True:\n{_indented(programs.program(rng, 10).code())}", background=True)
    time.sleep(rng.random())
    _free(run, report)
    report.lost = {r for r, o in run.outcomes.items() if o.kind == "lost"}
    if {o.kind for o in run.outcomes.values()} != {"interrupted"}:
        report.wrong.append(_ends(run))
    return report


def timed_out(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A deadline."""
    report = Report("timed out")
    run = cluster.run(f"while True:\n{_indented(programs.program(rng, 10).code())}", background=True, timeout=1.2)
    if not run.wait(WAIT):
        report.wrong.append("the deadline passed and the run did not end")
        run.cancel()
    report.lost = {r for r, o in run.outcomes.items() if o.kind == "lost"}
    if {o.kind for o in run.outcomes.values()} != {"timeout"}:
        report.wrong.append(_ends(run))
    return report


def _ends(run: jdist.CellRun) -> str:
    report = {
        r: f"{o.kind} {o.error.ename}: {o.error.evalue[:80]}" if o.error else o.kind for r, o in run.outcomes.items()
    }
    return f"the ranks ended so: {report}"


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())


def killed(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """kill -9 of a worker, in a cell or idle."""
    rank = rng.randrange(4)
    report = Report("worker killed", lost={rank})
    pid = worker(cluster, rank)
    run = None
    if rng.random() < 0.8:
        run = cluster.run(f"while True:\n{_indented(programs.program(rng, 10).code())}", background=True)
        time.sleep(rng.random())
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    if run is None:
        eventually(lambda: worker(cluster, rank) not in (0, pid), WAIT)
    elif not run.wait(WAIT):
        report.wrong.append("a rank is dead and the run did not end")
        run.cancel()
    report.to_freedom = time.monotonic() - began
    if run is not None:
        verdict = run.verdict
        report.verdict = "missing" if verdict is None else "right" if verdict.responsible == (rank,) else "wrong"
        if report.verdict != "right":
            report.wrong.append(f"rank {rank} was killed, the verdict is {verdict}")
    return report


def killed_forkserver(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """The process from which fresh ranks would be forked."""
    try:
        pid = forkserver(cluster, rng.randrange(2))
    except ValueError:  # it was killed before, and nothing has needed it since
        return none(cluster, rng)
    return must_finish(cluster, rng, Report("forkserver killed"), lambda _: os.kill(pid, signal.SIGKILL))


def killed_store(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """The rendezvous store: what is formed does not need it, and another is started."""
    pid = store(cluster)
    return must_finish(cluster, rng, Report("store killed"), lambda _: os.kill(pid, signal.SIGKILL))


def killed_controller(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """Whoever is attached starts it again; the ranks stay, and what ran is interrupted."""
    report = Report("controller killed")
    old = controller(cluster)
    run = cluster.run(programs.program(rng, 30).code(), background=True)
    time.sleep(rng.random() * 0.3)
    os.kill(old, signal.SIGKILL)
    began = time.monotonic()
    if not run.wait(WAIT):
        report.wrong.append("the controller is gone and the run did not end")
    if not eventually(lambda: _answers(cluster) and controller(cluster) != old, WAIT):
        report.wrong.append(f"no new controller within {WAIT:.0f} s")
    report.to_freedom = time.monotonic() - began
    return report


def _answers(cluster: jdist.Cluster) -> bool:
    try:
        return all(r.pid for r in cluster.status().ranks)
    except jdist.JdistError:  # it is being started again
        return False


def killed_agent(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """Its ranks die with it, the others are freed; %dist restart gives the node another agent."""
    node = rng.randrange(2)
    ranks = set(cluster.topology.ranks_on(node))
    report = Report("agent killed", lost=ranks)
    pid = agent(cluster, node)
    run = cluster.run(f"while True:\n{_indented(programs.program(rng, 10).code())}", background=True)
    time.sleep(rng.random())
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    if not run.wait(WAIT):
        report.wrong.append("a node is gone and the run did not end")
        run.cancel()
    report.to_freedom = time.monotonic() - began
    verdict = run.verdict
    report.verdict = "missing" if verdict is None else "right" if set(verdict.responsible) <= ranks else "wrong"
    if report.verdict != "right":
        report.wrong.append(f"ranks {sorted(ranks)} died with their agent, the verdict is {verdict}")
    cluster.restart(sorted(ranks))
    return report


def two_at_once(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A worker is killed while an interrupt frees the others."""
    rank = rng.randrange(4)
    report = Report("killed while interrupted", lost={rank})
    pid = worker(cluster, rank)
    run = cluster.run(f"while True:\n{_indented(programs.program(rng, 10).code())}", background=True)
    time.sleep(rng.random() * 0.5)
    killer = threading.Timer(rng.random() * 0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    _free(run, report)
    killer.join()
    return report


def killed_while_forming(cluster: jdist.Cluster, rng: random.Random) -> Report:
    """A worker is killed while the world is formed again because of another's death: the others wait for it there."""
    first, second = rng.sample(range(4), 2)
    report = Report("killed while forming", lost={first, second})
    pids = {rank: worker(cluster, rank) for rank in (first, second)}
    generation = cluster.generation
    os.kill(pids[first], signal.SIGKILL)
    if not eventually(lambda: cluster.generation > generation, WAIT):
        report.wrong.append(f"rank {first} was killed, and the world is not formed again")
    time.sleep(rng.random() * 0.08)
    os.kill(pids[second], signal.SIGKILL)
    began = time.monotonic()
    if not eventually(lambda: worker(cluster, second) not in (0, pids[second]), WAIT):
        report.wrong.append(f"rank {second} has no other process after {WAIT:.0f} s")
    report.to_freedom = time.monotonic() - began
    return report


ALL: dict[Fault, int] = {
    none: 4,
    stopped: 2,
    missing: 4,
    raises: 2,
    another_call: 2,
    mismatched: 6,
    mismatched_and_killed: 2,
    crashed: 2,
    twice_wrong: 1,
    interrupted: 2,
    timed_out: 1,
    killed: 4,
    killed_forkserver: 1,
    killed_store: 1,
    two_at_once: 1,
    killed_while_forming: 2,
    killed_controller: 1,
    killed_agent: 1,
}
"""Each fault with how often it is chosen."""
