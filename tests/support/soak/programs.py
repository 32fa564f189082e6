"""Programs: random cells of collectives, sends, receives and DDP steps, correct by construction, with what they give.

A program is a list of steps; each step is a few lines that append one number to ``acc`` on every rank. What each rank's
``acc`` must be is worked out here, without torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

WORLD = 4
GROUPS = {"world": (0, 1, 2, 3), "low": (0, 1), "high": (2, 3), "odd": (1, 3)}
SETUP = """
import time
import torch.distributed._functional_collectives as funcol
kept = torch.arange(1000.0) * (rank + 1)
notes = {"rank": rank, "list": list(range(50))}
def checksum():
    return float(kept.sum()), len(notes["list"]), notes["rank"], id(kept), id(notes)
mark = checksum()
def group(name):
    return dist.group.WORLD if name == "world" else groups[name]
"""
"""Replayed on every fresh rank."""
TOGETHER = "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))"
"""What all ranks must do together, again after a rank was replaced."""
INTACT = "mark == checksum()"


@dataclass(frozen=True)
class Step:
    """``lines`` run on the members of ``group``; ``gives`` is what each member appends to ``acc``."""

    group: str
    lines: tuple[str, ...]
    gives: dict[int, float]
    is_ddp: bool = False

    def code(self, skipped_by: int | None = None) -> list[str]:
        """As lines of a cell; ``skipped_by``: that rank leaves the step out."""
        members = [r for r in GROUPS[self.group] if r != skipped_by]
        return [f"if rank in {members}:", f"    g = group({self.group!r})", *(f"    {line}" for line in self.lines)]


@dataclass(frozen=True)
class Program:
    """A cell, and each rank's ``acc`` at its end."""

    steps: tuple[Step, ...]

    def code(self, wrong: int | None = None, rank: int = 0, instead: tuple[str, ...] = ()) -> str:
        """The cell. In step ``wrong`` ``rank`` leaves the step out, and does ``instead``."""
        lines = ["acc = []"]
        for number, step in enumerate(self.steps):
            lines += step.code(rank if number == wrong else None)
            if number == wrong and instead:
                lines += [f"if rank == {rank}:", *(f"    {line}" for line in instead)]
        return "\n".join((*lines, "acc"))

    @property
    def gives(self) -> dict[int, list[float]]:
        return {r: [s.gives[r] for s in self.steps if r in s.gives] for r in range(WORLD)}


def program(rng: random.Random, length: int) -> Program:
    """A random correct program."""
    return Program(tuple(_step(rng) for _ in range(length)))


def _step(rng: random.Random) -> Step:
    make = rng.choice([_all_reduce, _broadcast, _all_gather, _reduce, _ring, _asynchronous, _functional, _ddp, _pause])
    return make(rng, rng.choice(list(GROUPS)))


def _size(rng: random.Random) -> int:
    return rng.choice([1, 3, 100, 10_000])


def _all_reduce(rng: random.Random, group: str) -> Step:
    name, reduce = rng.choice([("SUM", sum), ("MAX", max), ("MIN", min)])
    members, k = GROUPS[group], rng.randrange(100)
    value = float(reduce([m + k for m in members]))
    lines = (
        f"t = torch.full(({_size(rng)},), float(rank + {k}))",
        f"dist.all_reduce(t, dist.ReduceOp.{name}, group=g)",
        "acc.append(t[-1].item())",
    )
    return Step(group, lines, dict.fromkeys(members, value))


def _broadcast(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    src = rng.choice(members)
    lines = (
        f"t = torch.full(({_size(rng)},), float(rank + {k}))",
        f"dist.broadcast(t, src={src}, group=g)",
        "acc.append(t[-1].item())",
    )
    return Step(group, lines, dict.fromkeys(members, float(src + k)))


def _all_gather(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"t = torch.full(({_size(rng)},), float(rank + {k}))",
        f"parts = [torch.empty_like(t) for _ in range({len(members)})]",
        "dist.all_gather(parts, t, group=g)",
        "acc.append(sum(p[-1].item() for p in parts))",
    )
    return Step(group, lines, dict.fromkeys(members, float(sum(m + k for m in members))))


def _reduce(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    dst = rng.choice(members)
    lines = (
        f"t = torch.full((2,), float(rank + {k}))",
        f"dist.reduce(t, dst={dst}, group=g)",
        f"acc.append(t[0].item() if rank == {dst} else -1.0)",
        "dist.barrier(group=g)",
    )
    return Step(group, lines, {m: float(sum(x + k for x in members)) if m == dst else -1.0 for m in members})


def _ring(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"m = {list(members)}; i = m.index(rank); t = torch.empty(5)",
        f"s = dist.isend(torch.full((5,), float(rank + {k})), dst=m[(i + 1) % len(m)])",
        "r = dist.irecv(t, src=m[i - 1])",
        "s.wait(); r.wait()",
        "acc.append(t[0].item())",
    )
    return Step(group, lines, {m: float(members[i - 1] + k) for i, m in enumerate(members)})


def _asynchronous(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"a, b = torch.full((4,), float(rank)), torch.full((4,), float({k}))",
        "ha, hb = dist.all_reduce(a, group=g, async_op=True), dist.all_reduce(b, group=g, async_op=True)",
        f"time.sleep({rng.random() * 0.05:.3f} * (rank % 2))",
        "hb.wait(); ha.wait()",
        "acc.append((a + b)[0].item())",
    )
    return Step(group, lines, dict.fromkeys(members, float(sum(members) + k * len(members))))


def _functional(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    lines = (f"t = funcol.all_reduce(torch.full((3,), float(rank + {k})), 'sum', g)", "acc.append((t + 0)[0].item())")
    return Step(group, lines, dict.fromkeys(members, float(sum(m + k for m in members))))


def _ddp(rng: random.Random, group: str) -> Step:
    """The gradient of the bias is the mean over ranks of the batch's size."""
    del group
    k = rng.randrange(1, 5)
    lines = (
        "net.zero_grad()",
        f"net(torch.ones({k} + rank, 3)).sum().backward()",
        "acc.append(net.module.bias.grad[0].item())",
    )
    return Step("world", lines, dict.fromkeys(range(WORLD), sum(k + r for r in range(WORLD)) / WORLD), is_ddp=True)


def _pause(rng: random.Random, group: str) -> Step:
    """Uneven compute."""
    members = GROUPS[group]
    seconds = rng.choice([0.0, 0.02, 0.3])
    lines = (
        f"time.sleep({seconds} * (rank % 3))",
        f"x = torch.ones({rng.choice([50, 300])}, 300) @ torch.ones(300, 300)",
        "acc.append(x[0, 0].item())",
    )
    return Step(group, lines, dict.fromkeys(members, 300.0))
