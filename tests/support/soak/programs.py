"""Programs: random cells of collectives, sends, receives and DDP steps, correct by construction, with what they give.

A program is a list of steps; each step is a few lines that append one number to ``acc`` on every rank. What each rank's
``acc`` must be is worked out here, without torch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
MEMORY = """
memory = {"step": 17, "model": torch.nn.Linear(4, 4), "tied": (own := torch.arange(6.0) * (rank + 1), own[2:4])}
memory["optimizer"] = torch.optim.Adam(memory["model"].parameters())
memory["model"](torch.ones(4)).sum().backward(); memory["optimizer"].step()
def recall():
    own, view = memory["tied"]
    parameters = {id(p) for p in memory["model"].parameters()}
    stepped = {id(p) for g in memory["optimizer"].param_groups for p in g["params"]}
    total = sum(float(p.sum()) for p in memory["model"].parameters())
    return memory["step"], own.tolist(), view.tolist(), parameters == stepped, len(memory["optimizer"].state), total
recalled = recall()
"""
"""In no setup cell, so that a rank has it only if it has kept it, or if it was handed over."""
REMEMBERS = "recalled == recall()"
TOGETHER = "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))"
"""What all ranks must do together, again after a rank was replaced."""
DDP_STEP = (
    "net.zero_grad(); net(torch.ones(rank + 1, 3)).sum().backward(); assert net.module.bias.grad[0].item() == 2.5"
)
MARK = "mark = checksum()"
INTACT = "mark == checksum()"


@dataclass(frozen=True)
class Step:
    """``lines`` run on the members of ``group``; ``gives`` is what each member appends to ``acc``.

    ``mistakes`` are lines that a member may run instead, each of which does not fit the others' call.
    """

    group: str
    lines: tuple[str, ...]
    gives: dict[int, float]
    is_ddp: bool = False
    mistakes: tuple[str, ...] = ()

    def code(self, skipped_by: int | None = None) -> list[str]:
        """As lines of a cell; ``skipped_by``: that rank leaves the step out."""
        members = [r for r in GROUPS[self.group] if r != skipped_by]
        return [f"if rank in {members}:", f"    g = group({self.group!r})", *(f"    {line}" for line in self.lines)]


@dataclass(frozen=True)
class Program:
    """A cell, and each rank's ``acc`` at its end."""

    steps: tuple[Step, ...]

    def code(self, wrong: Mapping[int, tuple[int, tuple[str, ...]]] = MappingProxyType({})) -> str:
        """The cell. In each step of ``wrong``, one rank leaves the step out and runs some lines instead."""
        lines = ["acc = []"]
        for number, step in enumerate(self.steps):
            rank, instead = wrong.get(number, (None, ()))
            lines += step.code(rank)
            if instead:
                lines += [f"if rank == {rank}:", f"    g = group({step.group!r})", *(f"    {line}" for line in instead)]
        return "\n".join((*lines, "acc"))

    @property
    def gives(self) -> dict[int, list[float]]:
        return {r: [s.gives[r] for s in self.steps if r in s.gives] for r in range(WORLD)}


def program(rng: random.Random, length: int) -> Program:
    """A random correct program."""
    return Program(tuple(_step(rng) for _ in range(length)))


def _step(rng: random.Random) -> Step:
    return rng.choice(STEPS)(rng, rng.choice(list(GROUPS)))


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
    mistakes = (
        "dist.all_reduce(torch.ones(1001), group=g)",
        "dist.all_reduce(torch.ones(7, dtype=torch.float64), group=g)",
        f"dist.broadcast(torch.ones(3), src={members[0]}, group=g)",
        "dist.barrier(group=g)",
    )
    return Step(group, lines, dict.fromkeys(members, value), mistakes=mistakes)


def _broadcast(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    src = rng.choice(members)
    lines = (
        f"t = torch.full(({_size(rng)},), float(rank + {k}))",
        f"dist.broadcast(t, src={src}, group=g)",
        "acc.append(t[-1].item())",
    )
    other = next(m for m in members if m != src)
    mistakes = (
        f"dist.broadcast(torch.ones(1001), src={src}, group=g)",
        f"dist.broadcast(torch.full((3,), 1.0), src={other}, group=g)",
        "dist.all_reduce(torch.ones(1001), group=g)",
    )
    return Step(group, lines, dict.fromkeys(members, float(src + k)), mistakes=mistakes)


def _all_gather(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"t = torch.full(({_size(rng)},), float(rank + {k}))",
        f"parts = [torch.empty_like(t) for _ in range({len(members)})]",
        "dist.all_gather(parts, t, group=g)",
        "acc.append(sum(p[-1].item() for p in parts))",
    )
    mistakes = (
        f"dist.all_gather([torch.empty(1007) for _ in range({len(members)})], torch.ones(1007), group=g)",
        "dist.all_reduce(torch.ones(50), group=g)",
    )
    return Step(group, lines, dict.fromkeys(members, float(sum(m + k for m in members))), mistakes=mistakes)


def _reduce(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    dst = rng.choice(members)
    lines = (
        f"t = torch.full((2,), float(rank + {k}))",
        f"dist.reduce(t, dst={dst}, group=g)",
        f"acc.append(t[0].item() if rank == {dst} else -1.0)",
        "dist.barrier(group=g)",
    )
    gives = {m: float(sum(x + k for x in members)) if m == dst else -1.0 for m in members}
    return Step(group, lines, gives, mistakes=(f"dist.reduce(torch.ones(1001), dst={dst}, group=g)",))


def _ring(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"m = {list(members)}; i = m.index(rank); t = torch.empty(5)",
        f"s = dist.isend(torch.full((5,), float(rank + {k})), dst=m[(i + 1) % len(m)])",
        "r = dist.irecv(t, src=m[i - 1])",
        "s.wait(); r.wait()",
        "acc.append(t[0].item())",
    )
    right, left = (f"{list(members)}[({list(members)}.index(rank) {sign} 1) % {len(members)}]" for sign in "+-")
    mistakes = (f"w = dist.isend(torch.ones(1001), {right}); dist.recv(torch.empty(1001), {left}); w.wait()",)
    return Step(group, lines, {m: float(members[i - 1] + k) for i, m in enumerate(members)}, mistakes=mistakes)


def _batch(rng: random.Random, group: str) -> Step:
    """Neighbours exchange in one batch."""
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"m = {list(members)}; i = m.index(rank); t = torch.empty(5); o = torch.full((5,), float(rank + {k}))",
        "ops = [dist.P2POp(dist.isend, o, m[(i + 1) % len(m)]), dist.P2POp(dist.irecv, t, m[i - 1])]",
        "[w.wait() for w in dist.batch_isend_irecv(ops)]",
        "acc.append(t[0].item())",
    )
    return Step(group, lines, {m: float(members[i - 1] + k) for i, m in enumerate(members)})


def _tagged(rng: random.Random, group: str) -> Step:
    """Two messages, received in the other order by their tags."""
    members, k = GROUPS[group], rng.randrange(100)
    first, last = members[0], members[-1]
    lines = (
        "a, b = torch.zeros(3), torch.zeros(3)",
        f"if rank == {first}:",
        f"    ws = [dist.isend(torch.full((3,), float({k} + tag)), dst={last}, tag=tag) for tag in (1, 2)]",
        "    [w.wait() for w in ws]",
        f"elif rank == {last}:",
        f"    w = dist.irecv(b, src={first}, tag=2); dist.recv(a, src={first}, tag=1); w.wait()",
        f"acc.append((10 * a + b)[0].item() if rank == {last} else -1.0)",
        "dist.barrier(group=g)",
    )
    return Step(group, lines, {m: float(10 * (k + 1) + k + 2) if m == last else -1.0 for m in members})


def _objects(rng: random.Random, group: str) -> Step:
    """Objects of different sizes."""
    members, k = GROUPS[group], rng.randrange(100)
    lines = (
        f"found = [None] * {len(members)}",
        f"dist.all_gather_object(found, {{'value': rank + {k}, 'text': 'x' * 100 * rank}}, group=g)",
        "acc.append(float(sum(o['value'] for o in found)))",
    )
    mistakes = ("dist.all_reduce(torch.ones(1001), group=g)",)
    return Step(group, lines, dict.fromkeys(members, float(sum(m + k for m in members))), mistakes=mistakes)


def _broadcast_objects(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    src = rng.choice(members)
    lines = (
        f"found = [{{'value': rank + {k}}}]",
        f"dist.broadcast_object_list(found, src={src}, group=g)",
        "acc.append(float(found[0]['value']))",
    )
    mistakes = ("dist.all_gather_object([None] * 4, 'x' * 500, group=g)",)
    return Step(group, lines, dict.fromkeys(members, float(src + k)), mistakes=mistakes)


def _scatter(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    src = rng.choice(members)
    lines = (
        f"t = torch.empty(4); parts = [torch.full((4,), float(m + {k})) for m in {list(members)}]",
        f"dist.scatter(t, parts if rank == {src} else None, src={src}, group=g)",
        "acc.append(t[0].item())",
    )
    mistakes = ("dist.all_reduce(torch.ones(1001), group=g)",)
    return Step(group, lines, {m: float(m + k) for m in members}, mistakes=mistakes)


def _reduce_scatter(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    n = len(members)
    lines = (
        "t = torch.empty(2)",
        f"dist.reduce_scatter_tensor(t, torch.arange({2 * n}.0) + rank + {k}, group=g)",
        "acc.append(t[0].item())",
    )
    total = float(sum(m + k for m in members))
    mistakes = (f"dist.reduce_scatter_tensor(torch.empty(500), torch.ones({500 * n}), group=g)",)
    return Step(group, lines, {m: total + n * 2 * i for i, m in enumerate(members)}, mistakes=mistakes)


def _all_to_all(rng: random.Random, group: str) -> Step:
    members, k = GROUPS[group], rng.randrange(100)
    n = len(members)
    lines = (
        f"t = torch.empty({n})",
        f"dist.all_to_all_single(t, torch.full(({n},), float(rank + {k})), group=g)",
        "acc.append(t.sum().item())",
    )
    mistakes = (f"dist.all_to_all_single(torch.empty({500 * n}), torch.ones({500 * n}), group=g)",)
    return Step(group, lines, dict.fromkeys(members, float(sum(m + k for m in members))), mistakes=mistakes)


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
    mistakes = ("t = funcol.all_reduce(torch.ones(1001), 'sum', g) + 0",)
    return Step(group, lines, dict.fromkeys(members, float(sum(m + k for m in members))), mistakes=mistakes)


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


STEPS = (
    _all_reduce,
    _broadcast,
    _all_gather,
    _reduce,
    _ring,
    _batch,
    _tagged,
    _objects,
    _broadcast_objects,
    _scatter,
    _reduce_scatter,
    _all_to_all,
    _asynchronous,
    _functional,
    _ddp,
    _pause,
)
