"""Track the saves that are being written, and decide when the next automatic save begins. Pure.

A save is *writing* from the first SaveStarted on. It is *finished* when all its parts are written, when a part could
not be written, when a rank that had not written its part is gone, or when a rank has not begun in time.

An automatic save begins between two cells or at a call of jdist.save_if_due(). Its phases are in docs/design/states.md.
While it is *asking*, calls of save_if_due on the ranks of a run are held until SaveAt, which is sent in every case.
Switching automatic saves off does not cancel saves that are being written.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from jdist.controller.model.model import Model
from jdist.controller.model.phases import SAVES, HasPhase, Lifecycle, SavesPhase, transition
from jdist.controller.model.runs import SAVE, Run
from jdist.controller.model.world import Node, Rank
from jdist.core.messages.base import Ack
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import CellSpec
from jdist.core.messages.saving import (
    Autosave,
    EndAnnounced,
    GiveUpSave,
    KeepAutosave,
    MayLeave,
    PartSaved,
    PrepareSave,
    SaveAt,
    SaveEnded,
    SaveOptions,
    SavePoint,
    SaveStarted,
)
from jdist.core.messages.status import Notice
from jdist.core.quantities import format_duration
from jdist.core.rank_code import save as save_code
from jdist.core.ranks import describe_ranks

_ALL_BEGUN = 60.0  # Seconds after the first rank's beginning in which every other must have begun.


@dataclass
class _Save:
    """A save that is being written, or is about to be."""

    size: int
    began_at: float
    begun: set[int] = field(default_factory=set)  # Workers.
    written: set[int] = field(default_factory=set)
    complete: PartSaved | None = None  # From the worker that completed it.
    seconds: float = 0.0


class Saves:
    """The saves that are being written, by id."""

    def __init__(self, model: Model):
        self._model = model
        self._saves: dict[str, _Save] = {}
        self.last: tuple[float, SaveEnded] | None = None  # When the last save ended, and how.
        self.on_end: Callable[[SaveEnded], None] = lambda _: None

    @property
    def is_writing(self) -> bool:
        return bool(self._saves)

    def expect(self, number: str, size: int) -> None:
        """A save of so many parts is about to begin; none of its ranks has to report that for it to end."""
        self._saves[number] = _Save(size, math.inf)

    def forget(self, number: str) -> None:
        """A save that was expected will not begin."""
        self._saves.pop(number, None)

    def fail(self, number: str, error: str) -> None:
        """A save that was expected has failed, if nothing has been heard of that yet."""
        if number in self._saves:
            self._finish(number, error)

    def handle_begun(self, _: Node, message: SaveStarted) -> None:
        save = self._saves.setdefault(message.save, _Save(message.world_size, self._model.now))
        save.began_at = min(save.began_at, self._model.now)
        save.begun.add(message.worker)

    def handle_part(self, node: Node, message: PartSaved) -> None:
        save = self._saves.get(message.save)
        if save is None:
            return  # it has been given up
        if message.error:
            rank = self._model.world.rank_of(node, message.worker)
            where = self._model.world.where(rank.rank) if rank is not None else f"worker {message.worker}"
            self._finish(message.save, f"{where}: {message.error}")
            return
        save.written.add(message.worker)
        save.seconds = max(save.seconds, message.seconds)
        if message.folder:
            save.complete = message
        if len(save.written) == save.size:
            missing = (
                "" if save.complete is not None else "no rank has completed it; is the folder shared by all nodes?"
            )
            self._finish(message.save, missing)

    def handle_loss(self, rank: Rank) -> None:
        """A rank's process has ended: what it had not written will not be."""
        for number, save in list(self._saves.items()):
            if rank.worker not in save.written:
                self._finish(number, f"{self._model.world.where(rank.rank)} was lost before its part was written")

    def handle_tick(self) -> None:
        for number, save in list(self._saves.items()):
            if len(save.begun) < save.size and self._model.now >= save.began_at + _ALL_BEGUN:
                missing = save.size - len(save.begun)
                self._finish(number, f"{missing} of {save.size} ranks have not begun to write it")

    def next_wakeup(self) -> float | None:
        """When a save may have to be given up, as far as is known now."""
        begun = [s.began_at + _ALL_BEGUN for s in self._saves.values() if 0 < len(s.begun) < s.size]
        return min(begun, default=None)

    def _finish(self, number: str, error: str) -> None:
        save = self._saves.pop(number)
        done = save.complete
        ended = SaveEnded(number, error=error)
        if not error and done is not None:
            ended = SaveEnded(number, done.folder, nbytes=done.nbytes, seconds=save.seconds)
        if ended.error:
            for node, workers in self._model.world.workers_by_node(self._model.world.ranks).items():
                self._model.send_to_node(node, GiveUpSave(number, workers))
        self.last = self._model.now, ended
        self._model.broadcast(ended)
        self.on_end(ended)


SHORTEST = 1.0  # Seconds between two automatic saves.
_PATIENCE = 3.0  # Seconds in which ranks have to answer, after which they are asked again, and after which runs are
# interrupted if the job is about to end. Ranks that have agreed on a call then have three times as long to come to it.
_SOON = 0.3  # Seconds until they are asked again if the job is about to end: a loop may just have begun.
_AFTER_FAILURE = 60.0  # Seconds after a save that failed before the next, if that is not due later anyway.


class Autosaver(HasPhase[SavesPhase]):
    """The automatic saves of a cluster."""

    def __init__(self, model: Model, saves: Saves, new_name: Callable[[], str], abort: Callable[[Run], None]):
        self._model = model
        self._saves = saves
        self._new_name = new_name
        self._abort = abort  # Interrupts a run.
        self.lifecycle = Lifecycle("automatic saves", "off", SAVES)
        self.options: SaveOptions | None = None
        self.every = 0.0
        self.due_at: float | None = None
        self._save = ""  # The id of the save that is being asked about, placed, run or written.
        self._run = 0  # The run in which it is placed, or the controller's own.
        self._answers: dict[int, int] = {}  # Calls of save_if_due, by worker.
        self._until: float | None = None  # The end of *asking*, of the wait for another try, or of a run.
        self._has_told = 0  # The run of which a notice has said that the save waits for its end.
        self._interrupt_at: float | None = None  # When runs are interrupted that a save must not wait for.
        self._told: list[SaveEnded] = []  # The last save of which clients were told as it was before an end.
        self._waiters: list[Callable[[SaveEnded | None], None]] = []  # Of a save that must not wait.
        saves.on_end = self._handle_end

    # ------------------------------------------------------------ what clients and schedulers ask for

    def handle_autosave(self, client: str, message: Autosave) -> None:
        m = self._model
        if message.options is not None and message.every < SHORTEST:
            m.refuse(client, message.request, f"automatic saves are at least {SHORTEST:.0f} s apart")
            return
        self.set(message.options, message.every)
        for node_rank in m.world.nodes:
            m.send_to_node(node_rank, self._kept)
        m.send(client, RankReply(message.request, -1, Ack()))

    def set(self, options: SaveOptions | None, every: float) -> None:
        """Save so from now on, for the first time after ``every`` seconds; without options, no more.

        A save that is placed goes on like one that has begun: ranks may be waiting in it for the others already.
        """
        self.options, self.every = options, every
        self.due_at = None if options is None else self._model.now + every
        if self.phase == "asking":
            self._release()
        if self.phase in ("waiting", "due"):
            transition(self, "off", "asked for by a client")
        if self.phase == "off" and options is not None:
            transition(self, "waiting", "asked for by a client")

    def greet(self, node: Node) -> None:
        """A node has joined: it keeps what the others keep."""
        if self.options is not None:
            self._model.send(node.agent, self._kept)

    @property
    def _kept(self) -> KeepAutosave:
        return KeepAutosave(self.options, self.every, self._model.settings.leave_grace)

    def handle_end_announced(self, node: Node, message: EndAnnounced) -> None:
        """A scheduler is about to end a node's job: save, and let the node leave then."""
        m = self._model
        what = f"the job of {node.name} is about to end ({message.signal})"
        if not self._waiters and self.options is not None:
            m.broadcast(Notice(f"{what}: the session is being saved to {self.options.directory}"))

        def leave(ended: SaveEnded | None) -> None:
            if node.is_here:
                m.send(node.agent, MayLeave())
            if ended is not None and ended not in self._told:
                self._told = [ended]
                result = f"could not be saved: {ended.error}" if ended.error else f"was saved to {ended.folder}"
                m.broadcast(Notice(f"before the end of its job, the session {result}"))

        self.save_now(leave)

    def save_now(self, on_end: Callable[[SaveEnded | None], None]) -> None:
        """Save at once, as the job is about to end; runs without calls of save_if_due are interrupted for it.

        ``on_end`` is called once with the result; None if there are no automatic saves.
        """
        if self.options is None:
            on_end(None)
            return
        self._waiters.append(on_end)
        self.due_at = self._model.now
        if self.phase in ("waiting", "due"):
            self._become_due()
        self._interrupt_at = self._model.now + _PATIENCE

    # ------------------------------------------------------------ when the time has come

    def handle_tick(self) -> None:
        m = self._model
        if self.phase == "waiting" and self.due_at is not None and m.now >= self.due_at:
            self._become_due()
        elif self.phase == "asking" and self._until is not None and m.now >= self._until:
            self._release()
        elif self.phase == "placed" and self._until is not None and m.now >= self._until:
            self._saves.forget(self._save)
            self._become_due("the run has ended before that call")
        if self._interrupt_at is not None and m.now >= self._interrupt_at:
            self._interrupt_at = None
            if self._waiters and self.phase in ("due", "asking", "placed"):
                self._release()
                for run in list(m.runs.running.values()):
                    self._abort(run)

    def next_wakeup(self) -> float | None:
        """When :meth:`handle_tick` or :meth:`begin_if_possible` has something to do, as far as is known now."""
        times = [self._interrupt_at]
        if self.phase == "waiting":
            times.append(self.due_at)
        if self.phase in ("asking", "placed") or (self.phase == "due" and self._is_possible):
            times.append(self._until)
        return min((t for t in times if t is not None), default=None)

    @property
    def _is_possible(self) -> bool:
        """Whether ranks can save at all; what ends the obstacle is an event."""
        return self._model.phase == "ready" and not self._model.is_dirty and not self._saves.is_writing

    def _become_due(self, why: str = "the time has come", wait: float = 0.0) -> None:
        transition(self, "due", why)
        self._until = self._model.now + wait
        if self.options is None:
            transition(self, "off", "a client has asked for no more")

    def begin_if_possible(self) -> None:
        """Begin a save that is due, if the ranks are free or are in one run together; called after each event."""
        m = self._model
        if self._run not in m.runs.running:
            if self.phase == "asking":
                self._release()
                self._until = m.now
            elif self.phase == "placed" and self._until is None:
                self._until = m.now + _PATIENCE  # its beginning may be heard of after the end of the run
        if self.phase != "due" or self.options is None or not self._is_possible:
            return
        if not m.runs.running:
            self._begin_run(self.options)
        elif self._until is not None and m.now >= self._until:
            self._until = m.now + _PATIENCE
            run = next(iter(m.runs.running.values()))
            if len(m.runs.running) == 1 and set(run.ranks) == run.pending == set(m.world.ranks):
                self._ask(run)
            else:
                self._tell_of_wait()

    def _begin_run(self, options: SaveOptions) -> None:
        m = self._model
        self._save = self._new_name()
        code = save_code(options.directory, options.names, self._save, options.keep)
        run = Run(m.runs.new_number(), "", CellSpec(code, is_internal=True), tuple(m.world.ranks), purpose=SAVE)
        m.runs.queued.insert(0, run)
        transition(self, "copying", f"run {run.number}")
        self._run = run.number
        self._saves.expect(self._save, len(m.world.ranks))

    def _ask(self, run: Run) -> None:
        if run.is_own or run.abort_reason or run.paused:
            return
        m = self._model
        transition(self, "asking", f"the ranks are in run {run.number}")
        self._save, self._run = self._new_name(), run.number
        self._answers, self._until = {}, m.now + _PATIENCE
        for node_rank, workers in m.world.workers_by_node(m.world.ranks).items():
            m.send_to_node(node_rank, PrepareSave(self._save, run.number, workers))

    def handle_point(self, _: Node, message: SavePoint) -> None:
        """A rank waits at its next call; once all do, each is told at which call it saves."""
        m = self._model
        if self.phase != "asking" or message.save != self._save:
            return
        self._answers[message.worker] = message.calls
        if len(self._answers) < len(m.world.ranks):
            return
        run = m.runs.running.get(self._run)
        if run is None or run.pending != set(m.world.ranks) or run.abort_reason or min(self._answers.values()) < 1:
            self._release()
            if run is not None:
                self._tell_of_wait()
            return
        self._saves.expect(self._save, len(m.world.ranks))
        self._send_call(max(self._answers.values()) + 1)
        transition(self, "placed", "all have answered")
        self._until = None
        if self._waiters:
            self._interrupt_at = m.now + 3 * _PATIENCE

    def _send_call(self, call: int) -> None:
        m = self._model
        for node_rank, workers in m.world.workers_by_node(m.world.ranks).items():
            m.send_to_node(node_rank, SaveAt(self._save, self._run, workers, call, self.options))

    def _release(self) -> None:
        """Let the ranks go on that were asked; the save is due still."""
        if self.phase == "placed":
            self._saves.forget(self._save)
        if self.phase in ("asking", "placed"):
            self._send_call(0)
            self._become_due("the ranks go on", _SOON if self._waiters else _PATIENCE)

    def _tell_of_wait(self) -> None:
        """Say once for each run that a save has to wait for its end."""
        m = self._model
        number = max(m.runs.running, default=0)
        if number and number != self._has_told and not self._waiters:
            self._has_told = number
            run = m.runs.running[number]
            on = f"run {number}" + ("" if set(run.ranks) == set(m.world.ranks) else f" on {describe_ranks(run.ranks)}")
            m.broadcast(
                Notice(
                    f"an automatic save waits for the end of {on}; to save during a loop, call jdist.save_if_due() "
                    "in it at the end of each step, on all ranks"
                )
            )

    # ------------------------------------------------------------ what becomes of it

    def handle_started(self, message: SaveStarted) -> None:
        """A rank has begun to write."""
        if message.save == self._save and self.phase == "placed":
            transition(self, "writing", "a rank has begun to write")

    def handle_run_ended(self, run: Run) -> None:
        """A run of the controller's own is over: the ranks write, or could not even begin."""
        if self.phase != "copying" or run.number != self._run:
            return
        failed = any(end.kind != "value" for end in run.ends.values())
        transition(self, "writing", "the ranks have copied their values")
        if failed:
            self._saves.fail(self._save, "the ranks could not copy their values")

    def handle_loss(self, _: Rank) -> None:
        """A rank's process has ended: its answer is not waited for."""
        self._release()

    def _handle_end(self, ended: SaveEnded) -> None:
        if ended.save != self._save or self.phase not in ("writing", "copying", "placed"):
            return
        m = self._model
        waiters, self._waiters, self._interrupt_at = self._waiters, [], None
        transition(self, "off" if self.options is None else "waiting", ended.error or "the save is complete")
        wait = min(self.every, _AFTER_FAILURE) if ended.error else self.every
        self.due_at = m.now + wait
        if ended.error and self.options is not None and not waiters:
            again = f"the next is tried in {format_duration(wait)}"
            m.broadcast(Notice(f"an automatic save failed: {ended.error}; older saves are unchanged, and {again}"))
        for tell in waiters:
            tell(ended)

    @property
    def waits_for(self) -> str:
        """What a save that is due waits for; "" if none is, or it is under way."""
        running = self._model.runs.running
        if self.phase != "due" or not running:
            return ""
        return f"run {max(running)}"
