"""The recovery ledger: what this node's ranks hold, recorded from passing messages, for a restarted controller."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from jdist.agent.processes.kernel import Kernel
from jdist.core.messages.base import Message
from jdist.core.messages.debug import RankPaused, ResumeRanks
from jdist.core.messages.membership import FormWorld, GroupMade, HeldGeneration, HeldWorker, StartWorker, WorldFormed
from jdist.core.messages.runs import AbortRun, ExecuteCell, RankDone
from jdist.core.messages.saving import KeepAutosave

_AT_BEGIN: dict[str, Any] = {"paused": None, "resumes": 0, "inner_run": 0, "is_aborted": False}  # Of a worker's run.

_T = TypeVar("_T", int, tuple[str, int])


class RecoveryLedger:
    """Records workers, groups and cells."""

    def __init__(self) -> None:
        self._workers: dict[int, HeldWorker] = {}  # What each holds since its process was started.
        self._form: FormWorld | None = None
        self._ended: set[int] = set()  # Workers, on any node, that were removed from the world since it was formed.
        self.last_run = 0  # The last run whose cell was sent to workers.
        self._setup: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.autosave = KeepAutosave(None)

    def record_start(self, wanted: StartWorker) -> None:
        """A fresh process is being started for the worker."""
        self._workers[wanted.worker] = HeldWorker(
            wanted.worker, wanted.incarnation, pid=0, is_up=False, is_fresh=wanted.incarnation > 0
        )

    def record_end(self, workers: Iterable[int]) -> None:
        """These workers, of this node or others, are ended for good."""
        for worker in workers:
            self._ended.add(worker)
            self._workers.pop(worker, None)

    def record(self, message: Message) -> None:
        """Record a message between the controller and a rank."""
        self._record_run(message)
        match message:
            case FormWorld():
                self._form, self._ended = message, set()
                self._change(message.workers, groups=message.replay, listeners=())
            case KeepAutosave():
                self.autosave = message
            case WorldFormed():
                held = self._workers.get(message.worker)
                if held is not None:
                    listeners = _union(held.listeners, message.listeners)
                    is_fresh = held.is_fresh and not (message.carried and message.carried.count)
                    formed = {"generation": message.generation, "listeners": listeners, "is_fresh": is_fresh}
                    self._change((message.worker,), **formed)
            case GroupMade():
                held = self._workers.get(message.worker)
                if held is not None and message.generation == held.generation:
                    groups = (*held.groups[: message.index], message.spec)
                    listeners = _union(held.listeners, message.listeners)
                    self._change((message.worker,), groups=groups, listeners=listeners)

    def is_in_run(self, worker: int, run: int) -> bool:
        """Whether the worker has been sent a run's cell, and its end has not passed."""
        held = self._workers.get(worker)
        return held is not None and run in (held.run, held.inner_run)

    def has_run(self, run: int) -> bool:
        """Whether any worker here has been sent a run's cell, and its end has not passed."""
        return any(run in (held.run, held.inner_run) for held in self._workers.values())

    def _record_run(self, message: Message) -> None:
        """Record a message about a cell."""
        match message:
            case ExecuteCell():
                self.last_run = max(self.last_run, message.run)
                if message.in_run:
                    self._change(message.workers, inner_run=message.run)
                else:
                    self._change(message.workers, run=message.run, **_AT_BEGIN)
                if message.spec.is_setup:
                    run, workers = self._setup.pop(message.spec.code, (message.run, ()))
                    replayed = (run, _union(workers, message.workers))
                    is_replay = message.spec.is_internal
                    self._setup[message.spec.code] = replayed if is_replay else (message.run, message.workers)
            case RankDone():
                held = self._workers.get(message.rank)
                if held is not None and held.run == message.run:
                    self._change((message.rank,), run=0, **_AT_BEGIN)
                elif held is not None and held.inner_run == message.run:
                    self._change((message.rank,), inner_run=0)
            case RankPaused():
                held = self._workers.get(message.rank)
                if held is not None and held.run == message.run and not held.is_aborted:
                    self._change((message.rank,), paused=message if held.resumes <= message.resumes else None)
            case ResumeRanks():
                for worker in self._in_run(message.run, message.workers):
                    self._change((worker,), paused=None, resumes=self._workers[worker].resumes + 1)
            case AbortRun():
                self._change(self._in_run(message.run, message.workers), paused=None, is_aborted=True)

    def _in_run(self, run: int, workers: Iterable[int]) -> tuple[int, ...]:
        return tuple(w for w in workers if w in self._workers and self._workers[w].run == run)

    def _change(self, workers: tuple[int, ...], **changes: Any) -> None:
        self._workers |= {w: replace(self._workers[w], **changes) for w in workers if w in self._workers}

    def describe(
        self,
        kernels: Mapping[int, Kernel],
        store: tuple[str, int] | None,
        awaited: Iterable[int] = (),
        ends: Iterable[RankDone] = (),
    ) -> HeldGeneration:
        """The present state, with the address of the rendezvous store.

        ``awaited``: workers whose processes start by themselves once those before them have ended. ``ends``: of cells,
        of which the controller has still to be told.
        """
        workers = dict(sorted(self._workers.items()))
        for done in ends:
            held = workers.get(done.rank)
            if held is not None and not held.run:
                workers[done.rank] = replace(held, run=done.run)
            elif held is not None and not held.inner_run and held.paused is not None:
                workers[done.rank] = replace(held, inner_run=done.run)
        workers |= {w: replace(workers[w], is_awaited=True) for w in awaited if w in workers}
        for worker in kernels.keys() & workers.keys():
            kernel, held = kernels[worker], workers[worker]
            inherits = kernel.inherits and held.generation == 0
            workers[worker] = replace(held, pid=kernel.pid, is_up=kernel.is_up, inherits=inherits)
        setup = tuple((run, code, of) for code, (run, of) in self._setup.items())
        ended = tuple(sorted(self._ended))
        return HeldGeneration(tuple(workers.values()), self._form, store, self.last_run, setup, ended, self.autosave)


def _union(some: Iterable[_T], others: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(sorted(set(some) | set(others)))
