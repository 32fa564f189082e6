"""The recovery ledger: what this node's ranks hold, recorded from passing messages, for a restarted controller."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jdist.agent.processes.kernel import Kernel
from jdist.core.messages.base import Message
from jdist.core.messages.groups import FormWorld, GroupMade, GroupSpec, WorldFormed
from jdist.core.messages.membership import HeldGeneration, HeldWorker, StartWorker
from jdist.core.messages.runs import ExecuteCell, RankDone


@dataclass
class _WorkerRecord:
    """What one worker holds, since its process was started."""

    incarnation: int
    generation: int = 0
    run: int = 0
    groups: list[GroupSpec] = field(default_factory=list)
    listeners: set[tuple[str, int]] = field(default_factory=set)


class RecoveryLedger:
    """Records workers, groups and cells."""

    def __init__(self) -> None:
        self._workers: dict[int, _WorkerRecord] = {}
        self._form: FormWorld | None = None
        self._ended: set[int] = set()  # Workers, on any node, that were removed from the world since it was formed.
        self._last_run = 0
        self._setup: dict[str, tuple[int, tuple[int, ...]]] = {}

    def record_start(self, wanted: StartWorker) -> None:
        """A fresh process is being started for the worker."""
        self._workers[wanted.worker] = _WorkerRecord(wanted.incarnation)

    def record_end(self, workers: Iterable[int]) -> None:
        """These workers, of this node or others, are ended for good."""
        for worker in workers:
            self._ended.add(worker)
            self._workers.pop(worker, None)

    def record(self, message: Message) -> None:
        """Record a message between the controller and a rank."""
        match message:
            case ExecuteCell():
                self._last_run = max(self._last_run, message.run)
                for worker in self._records(message.workers):
                    worker.run = message.run
                if message.is_setup:
                    self._record_setup(message)
            case FormWorld():
                self._form, self._ended = message, set()
                for worker in self._records(message.workers):
                    worker.groups, worker.listeners = list(message.replay), set()
            case RankDone():
                for worker in self._records((message.rank,)):
                    worker.run = 0 if worker.run == message.run else worker.run
            case WorldFormed():
                for worker in self._records((message.worker,)):
                    worker.generation = message.generation
                    worker.listeners |= set(message.listeners)
            case GroupMade():
                for worker in self._records((message.worker,)):
                    if message.generation == worker.generation:
                        del worker.groups[message.index :]
                        worker.groups.append(message.spec)
                        worker.listeners |= set(message.listeners)

    def _record_setup(self, cell: ExecuteCell) -> None:
        known = self._setup.pop(cell.code, (cell.run, ()))
        replayed = (known[0], tuple(sorted({*known[1], *cell.workers})))
        self._setup[cell.code] = replayed if cell.is_internal else (cell.run, cell.workers)

    def _records(self, workers: tuple[int, ...]) -> list[_WorkerRecord]:
        return [self._workers[w] for w in workers if w in self._workers]

    def describe(self, kernels: Mapping[int, Kernel], store: tuple[str, int] | None) -> HeldGeneration:
        """The present state, with the address of the rendezvous store."""
        workers = []
        for number, worker in sorted(self._workers.items()):
            kernel = kernels.get(number)
            held = HeldWorker(
                worker=number,
                incarnation=worker.incarnation,
                pid=kernel.pid if kernel else 0,
                is_up=kernel is not None and kernel.is_up,
                generation=worker.generation,
                run=worker.run,
                groups=tuple(worker.groups),
                listeners=tuple(sorted(worker.listeners)),
            )
            workers.append(held)
        setup = tuple((run, code, of) for code, (run, of) in self._setup.items())
        return HeldGeneration(tuple(workers), self._form, store, self._last_run, setup, tuple(sorted(self._ended)))
