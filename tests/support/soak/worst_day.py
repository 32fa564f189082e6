"""The worst day: hostile cells and faults of the machine, in pairs, at random moments, on one cluster. Seeded.

    python -m support.soak.worst_day --pairs 500 --seed 1

As root, in a mount namespace of its own: every folder that jdist writes to is a small file system. After each pair the
cell must have ended, the next `all_reduce` must be right, every rank that was not killed must have its names, and
nothing may be left behind. Prints a line for each pair and exits with 1 if anything was not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import jdist
from jdist.core.messages.status import Notice
from support import anatomy
from support.soak import hostile, machine, programs
from support.soak.machine import Stage
from support.waits import eventually

END = 10.0
"""Seconds within which a cell must have ended, or have a verdict, once nothing is wrong any more."""
WAIT = 60.0
"""Seconds within which the cluster must be whole again."""
CLOCK = """
import os, time

_real, _real_ns, _pid, _path = time.time, time.time_ns, os.getpid(), {path!r}

def _offset():
    if os.getpid() != _pid:
        return 0
    with open(_path) as f:
        return int(f.read() or 0)

time.time = lambda: _real() + _offset()
time.time_ns = lambda: _real_ns() + _offset() * 10**9
"""
"""The sitecustomize module of the cluster's processes, whose wall clock a file sets wrong. Ranks, which are forked,
have the right time, because torch's C++ would disagree with them."""
_SIZES = {"runtime": "16m", "tmp": "16m", "saves": "16m"}
_SHM = "400m"
_DESCRIPTORS = 8
"""By how many a controller or an agent may have more open files than at the beginning."""


@dataclass
class Report:
    """How one pair went."""

    kinds: tuple[str, ...]
    seconds: float = 0.0
    lost: set[int] = field(default_factory=set)
    """Ranks that may have lost their names."""
    wrong: list[str] = field(default_factory=list)


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """A cluster in small folders of its own. Call it in a mount namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="worst-day-") as name, contextlib.ExitStack() as stack:
        base = Path(name)
        for folder, size in _SIZES.items():
            (base / folder).mkdir()
            _mount(base / folder, size)
            stack.callback(subprocess.run, ["umount", "--lazy", str(base / folder)], check=True)
        _mount(Path("/dev/shm"), _SHM)
        clock = base / "clock"
        clock.write_text("0")
        env = {"JUPYTER_RUNTIME_DIR": str(base / "runtime"), "TMPDIR": str(base / "tmp")}
        os.environ.update(env)
        tempfile.tempdir = None
        (base / "site").mkdir()
        (base / "site" / "sitecustomize.py").write_text(CLOCK.format(path=str(clock)))
        paths = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(base / "site"), paths)))
        with jdist.start(2, 2, backend="gloo", timeout=60) as cluster:
            for group, ranks in programs.GROUPS.items():
                if group != "world":
                    cluster.new_group(group, list(ranks))
            cluster.run(f"{hostile.SETUP}\n{programs.SETUP}", setup=True, timeout=60)
            for code in (programs.TOGETHER, programs.MEMORY):
                cluster.run(code, timeout=60)
            usual = {path.name for path in (base / "tmp").iterdir()} | {"torchinductor_root"}
            yield Stage(cluster, base / "runtime", base / "tmp", base / "saves", Path("/dev/shm"), clock, usual)


def _mount(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "jdist-test", str(folder)], check=True)


def strike(stage: Stage, rng: random.Random) -> Report:
    """A correct program, and two faults."""
    chosen = [_choose(rng) for _ in range(2)]
    report = Report(tuple(name for name, _ in chosen))
    what = programs.program(rng, rng.randrange(5, 30))
    cells = {rng.randrange(programs.WORLD): each for _, each in chosen if isinstance(each, hostile.Hostile)}
    run = stage.cluster.run(_cell(what, cells), background=True)
    with contextlib.ExitStack() as stack:
        for _, each in chosen:
            if not isinstance(each, hostile.Hostile):
                time.sleep(rng.random() * 0.3)
                report.lost |= stack.enter_context(each(stage, rng))
        time.sleep(rng.random())
    began = time.monotonic()
    if not eventually(lambda: run.is_done or (run.verdict is not None and run.verdict.is_certain), END):
        report.wrong.append(f"the cell had neither an end nor a verdict after {END:.0f} s: {run.outcomes}")
    if not run.is_done:
        run.cancel()
        if not run.wait(END + 5):  # the grace
            report.wrong.append(f"interrupted, and not freed: {run.outcomes}")
    report.seconds = time.monotonic() - began
    report.lost |= {rank for rank, cell in cells.items() if cell.forgets}
    ended = {rank for rank, cell in cells.items() if cell.ends}
    if not report.lost and not ended and not any(cell.raises for cell in cells.values()) and run.values != what.gives:
        kinds = {rank: f"{o.kind} {o.error.ename if o.error else ''}" for rank, o in run.outcomes.items()}
        if not set(report.kinds) & _MAY_FAIL:
            report.wrong.append(f"a correct program ended so: {kinds}; {run.verdict}")
    _check(stage, report, cells)
    return report


_MAY_FAIL = {
    "killed_controller",
    "stolen_ports",
    "no_descriptors",
    "no descriptors",
    "another default device",
    "full_disk",
    "frozen",
}
"""Faults with which a correct program may end as an error that says why."""


def _choose(rng: random.Random) -> tuple[str, hostile.Hostile | machine.Fault]:
    if rng.random() < 0.5:
        name = rng.choice(list(hostile.KINDS))
        return name, hostile.KINDS[name]
    (fault,) = rng.choices(list(machine.ALL), list(machine.ALL.values()))
    return fault.__name__, fault


def _cell(what: programs.Program, cells: dict[int, hostile.Hostile]) -> str:
    """The program, with hostile lines before and behind it."""

    def lines(*, is_behind: bool) -> list[str]:
        return [
            f"if rank == {rank}:\n" + "\n".join(f"    {line}" for line in cell.lines.splitlines())
            for rank, cell in cells.items()
            if cell.is_behind == is_behind
        ]

    body = what.code().splitlines()
    return "\n".join((*lines(is_behind=False), *body[:-1], "_acc = acc", *lines(is_behind=True), "_acc"))


def _check(stage: Stage, report: Report, cells: dict[int, hostile.Hostile]) -> None:
    """The cluster is whole, every survivor has its names, and nothing is left behind."""
    cluster = stage.cluster
    left = machine.waiting(WAIT)
    if left:
        report.wrong.append(f"{left} saves or pulls have not ended")
    eventually(lambda: cluster.facts.phase in ("ready", "failed"), WAIT)
    try:
        for rank, cell in cells.items():
            if cell.tidies:
                cluster.run(cell.tidies, ranks=[rank], timeout=WAIT, check=False)
        if cluster.facts.phase == "failed":  # another attempt follows each cell
            cluster.run("", timeout=WAIT)
            eventually(lambda: cluster.facts.phase == "ready", WAIT)
        found = cluster.run("_t = torch.tensor([rank + 1.0]); dist.all_reduce(_t); _t.item()", timeout=WAIT).values
        if found != dict.fromkeys(range(programs.WORLD), 10.0):
            report.wrong.append(f"the next all_reduce gave {found}")
        fresh = {
            rank
            for rank, has in cluster.run("'recall' in globals() and 'net' in globals()", timeout=WAIT).values.items()
            if not has
        }
        if fresh - report.lost:
            report.wrong.append(f"ranks {sorted(fresh - report.lost)} have lost their names")
        if fresh:
            cluster.run(f"{hostile.SETUP}\n{programs.SETUP}\n{programs.MEMORY}", ranks=sorted(fresh), timeout=WAIT)
            cluster.run(programs.TOGETHER, timeout=WAIT)
        remembers = cluster.run(programs.REMEMBERS, timeout=WAIT).values
        if not all(remembers.values()):
            report.wrong.append(f"names have changed: {remembers}")
        cluster.run("globals().pop('hostile', None); None", timeout=WAIT)
    except jdist.JdistError as e:
        report.wrong.append(f"the next cell failed: {e}")
        try:
            cluster.restart()
            cluster.run(f"{programs.TOGETHER}\n{programs.MEMORY}", timeout=WAIT)
        except jdist.JdistError as again:
            report.wrong.append(f"and a restart did not mend that: {again}")
    left_behind = eventually(lambda: not _left(stage), END) or _left(stage)
    if left_behind is not True:
        report.wrong.append(f"left behind: {left_behind}")


def _left(stage: Stage) -> list[str]:
    """What is left of a pair: files in the folders that jdist writes to."""
    found = [str(path) for path in stage.shm.glob("jdist-*") if path.stat().st_size > 64]
    found += [str(path) for path in stage.saves.glob("**/.writing*")]
    found += [str(path) for path in stage.runtime.glob("jdist-old*")]
    found += [str(path) for path in stage.tmp.iterdir() if path.name not in stage.usual]
    return found


def processes(stage: Stage) -> dict[str, int]:
    """How many processes of each name the cluster has, and how many descriptors its controller and agents."""
    names: Counter[str] = Counter()
    for pid in stage.processes():
        with contextlib.suppress(psutil.Error):
            names[psutil.Process(pid).name()] += 1
    found = dict(names)
    found["controller's descriptors"] = psutil.Process(anatomy.controller(stage.cluster)).num_fds()
    for node in (0, 1):
        found[f"agent {node}'s descriptors"] = psutil.Process(anatomy.agent(stage.cluster, node)).num_fds()
    return found


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What there is more of, then and now."""
    found = {kind: (before.get(kind, 0), count) for kind, count in after.items()}
    return {k: (then, now) for k, (then, now) in found.items() if now > then + _DESCRIPTORS * ("descriptors" in k)}


def main() -> int:
    """The exit code."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=60, help="how many")
    p.add_argument("--first", type=int, default=0, help="the number of the first, to see one again")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    o = p.parse_args()
    if not o.inside:
        module = [sys.executable, "-m", "support.soak.worst_day", "--inside"]
        options = ["--pairs", str(o.pairs), "--first", str(o.first), "--seed", str(o.seed)]
        apart = ["unshare", "--mount", "--propagation", "private"]
        return subprocess.run([*apart, *module, *options], check=False).returncode
    print(f"seed {o.seed}", flush=True)
    reports = []
    with staged() as stage:
        before = processes(stage)
        told: list[str] = []
        stage.cluster.asynchronous.watch(lambda m: told.append(m.text) if isinstance(m, Notice) else None)
        for number in range(o.first, o.first + o.pairs):
            told.clear()
            report = strike(stage, random.Random(f"{o.seed}-{number}"))
            if report.wrong:
                report.wrong.append(f"told: {told}")
            reports.append(report)
            wrong = "; ".join(report.wrong)
            print(f"{number:4} {' + '.join(report.kinds):70} {report.seconds:5.1f}  {wrong}", flush=True)
        eventually(lambda: not _grown(before, processes(stage)), WAIT)  # some are replaced in the background
        grown = _grown(before, processes(stage))
    left = [pid for pid in stage.processes() if eventually(lambda pid=pid: not anatomy.lives(pid), END) is False]
    files = sorted(path.name for path in stage.shm.glob("jdist-*"))
    print(f"grown: {grown or 'nothing'}; left at the end: processes {left}, segments {files}")
    bad = sum(bool(r.wrong) for r in reports)
    print(f"{len(reports)} pairs, {bad} of them wrong")
    return 1 if bad or grown or left or files else 0


if __name__ == "__main__":
    sys.exit(main())
