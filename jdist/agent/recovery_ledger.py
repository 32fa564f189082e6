"""The recovery ledger: what this node's ranks hold, recorded from passing messages, for a restarted controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from jdist.agent.processes.kernel import Kernel
from jdist.core.messages.base import Message
from jdist.core.messages.groups import FormWorld, GroupMade, GroupSpec, WorldFormed
from jdist.core.messages.membership import HeldGeneration, HeldRank, Renumber
from jdist.core.messages.runs import ExecuteCell, RankDone


@dataclass
class _RankRecord:
    """What one rank holds, since its process was started."""

    incarnation: int
    generation: int = 0
    run: int = 0
    groups: list[GroupSpec] = field(default_factory=list)
    listeners: set[tuple[str, int]] = field(default_factory=set)


class RecoveryLedger:
    """Records ranks, groups and cells."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankRecord] = {}
        self._form: FormWorld | None = None
        self._last_run = 0
        self._setup: dict[str, tuple[int, tuple[int, ...]]] = {}

    def record_start(self, rank: int, incarnation: int) -> None:
        """A fresh process is being started for the rank."""
        self._ranks[rank] = _RankRecord(incarnation)

    def renumber(self, message: Renumber) -> None:
        """Ranks have other numbers, and the world another shape, which no rank holds until it is formed."""
        numbers = message.ranks
        self._ranks = {numbers[number]: rank for number, rank in self._ranks.items() if number in numbers}
        kept = {code: (run, tuple(numbers[r] for r in of if r in numbers)) for code, (run, of) in self._setup.items()}
        self._setup = {code: (run, of) for code, (run, of) in kept.items() if of}
        if self._form is not None:
            shape, generation = message.nproc_per_node, self._form.generation + 1
            self._form = msgspec.structs.replace(
                self._form,
                generation=generation,
                nproc_per_node=shape,
                node_of=message.node_of,
                named=message.named,
                mesh=None,
                replay=(),
            )

    def record(self, message: Message) -> None:
        """Record a message between the controller and a rank."""
        match message:
            case ExecuteCell():
                self._record_cell(message)
            case FormWorld():
                self._form = message
                for rank in self._records(message.ranks):
                    rank.groups, rank.listeners = list(message.replay), set()
            case RankDone():
                for rank in self._records((message.rank,)):
                    rank.run = 0 if rank.run == message.run else rank.run
            case WorldFormed():
                for rank in self._records((message.rank,)):
                    rank.generation = message.generation
                    rank.listeners |= set(message.listeners)
            case GroupMade():
                for rank in self._records((message.rank,)):
                    if message.generation == rank.generation:
                        del rank.groups[message.index :]
                        rank.groups.append(message.spec)
                        rank.listeners |= set(message.listeners)

    def _record_cell(self, cell: ExecuteCell) -> None:
        self._last_run = max(self._last_run, cell.run)
        for rank in self._records(cell.ranks):
            rank.run = cell.run
        if cell.is_setup:
            known = self._setup.pop(cell.code, (cell.run, ()))
            replayed = (known[0], tuple(sorted({*known[1], *cell.ranks})))
            self._setup[cell.code] = replayed if cell.is_internal else (cell.run, cell.ranks)

    def _records(self, ranks: tuple[int, ...]) -> list[_RankRecord]:
        return [self._ranks[r] for r in ranks if r in self._ranks]

    def describe(self, kernels: Mapping[int, Kernel], store: tuple[str, int] | None) -> HeldGeneration:
        """The present state, with the address of the rendezvous store."""
        ranks = []
        for number, rank in sorted(self._ranks.items()):
            kernel = kernels.get(number)
            held = HeldRank(
                rank=number,
                incarnation=rank.incarnation,
                pid=kernel.pid if kernel else 0,
                is_up=kernel is not None and kernel.is_up,
                generation=rank.generation,
                run=rank.run,
                groups=tuple(rank.groups),
                listeners=tuple(sorted(rank.listeners)),
            )
            ranks.append(held)
        setup = tuple((run, code, of) for code, (run, of) in self._setup.items())
        return HeldGeneration(tuple(ranks), self._form, store, self._last_run, setup)
