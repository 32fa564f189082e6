"""Pausing: random programs are paused, looked into and continued at random moments, and give what they always give.

    python -m support.pausing.pausing --programs 100 --seed 1

Prints a line for each program; exits with 1 if anything was not as it should be. Programs and moments are seeded; where
a rank is at a moment differs between runs.
"""

from __future__ import annotations

import argparse
import random
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jdist
from jdist.core.messages.observation import StepKind
from support.soak import programs
from support.soak.programs import GROUPS, WORLD, Program, Step

_STEPS: tuple[StepKind, ...] = ("step", "next", "return", "next_call")
WAIT = 60.0
"""Seconds for anything that is waited for."""
_LATEST = 0.15
"""Seconds between the end of one pause and the next request, at most."""
_MOST = 8
"""Pauses of one program."""
SETUP = f"""
import time
import torch.distributed._functional_collectives as funcol
made = {{name: dist.new_group(ranks) for name, ranks in {GROUPS!r}.items()}}
def group(name):
    return made[name]
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
"""
FIND = """
# The frame of a comprehension has no acc of its own.
try:
    _found = acc and list(acc)
except NameError:
    _found = None
_found
"""
REPLACE = """
if _found:
    acc = list(acc)
    _place = id(acc)
"""
"""Follows :data:`FIND`, and is followed by :data:`REPLACED`."""
REPLACED = "not _found or id(acc) == _place"


@dataclass
class Report:
    """What became of one program. ``wrong`` says what was not as it should be."""

    pauses: Counter[str] = field(default_factory=Counter)
    """By what was done in them."""
    ranks: int = 0
    """How many ranks were paused, over all pauses."""
    wrong: list[str] = field(default_factory=list)


def pausing(cluster: jdist.Cluster, seed: int, count: int) -> Iterator[Report]:
    """Run ``count`` programs, and report on each. Four ranks."""
    cluster.run(SETUP, timeout=WAIT)
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        yield _Play(cluster, rng).run()


def code_of(program: Program, rng: random.Random) -> str:
    """The program in a cell, or in a function that the cell calls, so that its names are local."""
    code = program.code()
    if rng.random() < 0.5:
        return code
    return f"def work():\n{textwrap.indent(code.removesuffix('acc'), '    ')}    return acc\n\nwork()"


def _busy(rng: random.Random, group: str) -> Step:
    """Some 20 ms of Python, in which a pause comes at once."""
    k = rng.randrange(2, 50)
    n = rng.choice([20_000, 100_000, 300_000])
    lines = ("x = 0", f"for i in range({n}):", f"    x += (i * {k} + rank) % 7", "acc.append(float(x))")
    return Step(group, lines, {m: float(sum((i * k + m) % 7 for i in range(n))) for m in GROUPS[group]})


def _mixed(rng: random.Random, length: int) -> Program:
    steps = programs.program(rng, length).steps
    return Program(tuple(s for step in steps for s in (step, _busy(rng, rng.choice(list(GROUPS))))))


class _Play:
    """One program."""

    def __init__(self, cluster: jdist.Cluster, rng: random.Random):
        self._cluster, self._rng = cluster, rng
        self._report = Report()
        self._program = _mixed(rng, rng.randrange(8, 24))
        self._paused: tuple[int, ...] = ()

    def run(self) -> Report:
        self._cluster.run("acc = None", timeout=WAIT)
        run = self._run = self._cluster.run(code_of(self._program, self._rng), background=True)
        try:
            for _ in range(_MOST):
                if run.wait(self._rng.uniform(0, _LATEST)):
                    break
                self._pause()
            if not run.wait(WAIT):
                self._fault(f"it has not ended: {run.verdict or run!r}")
                self._cluster.interrupt()
                run.wait(WAIT)
        except jdist.JdistError as e:
            self._fault(f"{type(e).__name__}: {e}")
            self._cluster.interrupt()
            run.wait(WAIT)
        if run.values != self._program.gives:
            ends = {r: f"{o.kind} {o.error.ename}: {o.error.evalue}" for r, o in run.outcomes.items() if o.error}
            wrong = {r: v for r, v in run.values.items() if v != self._program.gives[r]}
            self._fault(f"it ended with {ends}, and gave {wrong}, and not {self._program.gives}")
        if run.verdict is not None:
            self._fault(f"it ended with a verdict: {run.verdict}")
        return self._report

    def _pause(self) -> None:
        """Pause all ranks or some, do something, and go on."""
        ranks = self._rng.choice(
            [tuple(range(WORLD)), tuple(self._rng.sample(range(WORLD), self._rng.randrange(1, 4)))]
        )
        try:
            self._cluster.pause(ranks, timeout=0)
        except jdist.UsageError:
            if not (self._run.is_done or set(ranks) <= set(self._run.outcomes)):
                raise
            return
        deed = self._rng.choice(_DEEDS)
        if self._is_paused(ranks):
            deed(self)
            self._report.pauses[deed.__name__.strip("_")] += 1
            if self._run.verdict is not None and self._run.verdict.is_certain:
                self._fault(f"while it was paused there was a verdict: {self._run.verdict}")
        self._resume()

    def _resume(self, how: StepKind = "continue", ranks: tuple[int, ...] | None = None) -> None:
        """Have ranks go on, if they have not ended."""
        try:
            self._cluster.resume(how, ranks, timeout=0)
        except jdist.UsageError:
            if self._run.paused:
                raise

    def _is_paused(self, asked: tuple[int, ...]) -> bool:
        """Wait until a rank is paused, or those that are to pause have ended; note which are."""
        deadline = time.monotonic() + WAIT
        while not self._run.wait_paused(0.1):
            if self._run.is_done or set(asked) <= set(self._run.outcomes):
                return False
            if time.monotonic() > deadline:
                self._fault(f"none of ranks {asked} has paused")
                return False
        self._paused = tuple(sorted(self._run.paused))
        self._report.ranks += len(self._paused)
        return True

    def _find(self) -> None:
        """What the program has found so far is how its findings begin, in each paused frame."""
        for rank, found in self._ask(FIND).items():
            expected = self._program.gives[rank]
            if found and found != expected[: len(found)]:
                self._fault(f"rank {rank} had found {found}, and not the beginning of {expected}")

    def _replace(self) -> None:
        """A local variable is bound to something else that is equal, unless the line has already evaluated it."""
        self._find()
        at = self._run.paused
        self._paused = tuple(r for r in self._paused if r in at and not at[r].at.source.startswith("acc.append"))
        if not self._paused:
            return
        self._ask(REPLACE)
        if not all(self._ask(REPLACED).values()):
            self._fault("a local variable was not replaced")

    def _fail(self) -> None:
        """A cell that fails ends nothing else."""
        run = self._cluster.run("1 / 0", self._paused, timeout=WAIT, check=False)
        if {o.kind for o in run.outcomes.values()} != {"error"}:
            self._fault(f"a failing cell gave {run.outcomes}")
        self._find()

    def _interrupt(self) -> None:
        """A cell that does not end is interrupted, and nothing else is."""
        inner = self._cluster.run("while True: pass", self._paused, timeout=0.2, check=False)
        if {o.kind for o in inner.outcomes.values()} != {"timeout"}:
            self._fault(f"an endless cell gave {inner.outcomes}")
        self._find()

    def _walk(self) -> None:
        """Up and down the stack."""
        before = self._cluster.where(self._paused)
        up = self._cluster.up(ranks=self._paused)
        moved = [rank for rank in up if up[rank].chosen != before[rank].chosen]
        after = self._cluster.down(ranks=moved) if moved else {}
        before = {rank: before[rank] for rank in after}
        if before != after:
            self._fault(f"up and down led from {before} to {after}")

    def _pull(self) -> None:
        found = self._cluster.pull("rank + 1", self._paused)
        if found != {r: r + 1 for r in self._paused}:
            self._fault(f"pulled {found}")

    def _step(self) -> None:
        """Some steps, of whoever can."""
        for _ in range(self._rng.randrange(1, 6)):
            self._resume(self._rng.choice(_STEPS))
            if not self._is_paused(self._paused):
                return
        self._find()

    def _go_on(self) -> None:
        """Some ranks go on earlier than the others."""
        self._resume(ranks=(self._rng.choice(self._paused),))

    def _ask(self, code: str) -> dict[int, object]:
        return dict(self._cluster.run(code, self._paused, timeout=WAIT).values)

    def _fault(self, text: str) -> None:
        self._report.wrong.append(text)


_DEEDS: tuple[Callable[[_Play], None], ...] = (
    _Play._find,
    _Play._replace,
    _Play._fail,
    _Play._interrupt,
    _Play._walk,
    _Play._pull,
    _Play._step,
    _Play._step,
    _Play._go_on,
)


def main() -> int:
    """The exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--programs", type=int, default=100, help="how many")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    o = p.parse_args()
    print(f"seed {o.seed}", flush=True)
    total, wrong, began = Report(), 0, time.monotonic()
    with jdist.start(2, 2, backend="gloo", timeout=60, idle_timeout=60) as cluster:
        for number, report in enumerate(pausing(cluster, o.seed, o.programs)):
            wrongs = "; ".join(report.wrong)
            print(f"{number:4} {report.pauses.total()} pauses of {report.ranks} ranks  {wrongs}", flush=True)
            total.pauses += report.pauses
            total.ranks += report.ranks
            wrong += bool(report.wrong)
    deeds = ", ".join(f"{n} {deed}" for deed, n in total.pauses.most_common())
    print(f"{o.programs} programs, {total.pauses.total()} pauses of {total.ranks} ranks ({deeds}), {wrong} wrong")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
