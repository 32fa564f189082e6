"""Accept, start, interrupt and end runs, including the controller's own. Pure.

The controller's own runs are setup cells, which run again on fresh ranks, and callbacks after a re-forming. They are
queued when the world has been formed, ahead of all cells of users, setup cells first.

A *launch conflict* is a cell whose ranks launch the processes of a world although they are such processes themselves.
It is recognised by what goes wrong, as the ranks write or raise it, whichever launcher they used.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from jdist.controller.model.model import Model
from jdist.controller.model.phases import transition
from jdist.controller.model.runs import ON_REFORM, SETUP, AbortReason, Run
from jdist.controller.model.world import Node, Numbering
from jdist.controller.runs.silent_mismatch import SilentMismatch
from jdist.core.errors import Remedy
from jdist.core.messages import runs as messages
from jdist.core.messages.base import Ack
from jdist.core.messages.code import ModuleReply, ModuleRequest
from jdist.core.messages.debug import RanksResumed
from jdist.core.messages.observation import VerdictChanged
from jdist.core.messages.protocol import RankReply
from jdist.core.messages.runs import CellSpec, MetricsLogged, Output, ReadRun, RunRecord, Tail, Text
from jdist.core.messages.status import Notice
from jdist.core.outcome import FORKED, ErrorInfo
from jdist.core.rank_code import call_on_reform
from jdist.core.ranks import describe_ranks


class OwnRuns:
    """Remembers setup cells, the newest last (one that is run again becomes that), and queues the controller's runs."""

    def __init__(self, model: Model):
        self._model = model
        self._cells: dict[str, tuple[int, ...]] = {}  # `{code: workers that ran it}`.

    def remember(self, run: Run) -> None:
        """The cell was run with ``--setup``."""
        self._cells.pop(run.spec.code, None)
        self._cells[run.spec.code] = tuple(self._model.world.ranks[r].worker for r in run.ranks)

    def restore(self, cells: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """The cells that an earlier controller remembered, oldest first, with the workers that ran them."""
        self._cells = dict(cells) | self._cells

    def grow(self, added: tuple[int, ...]) -> None:
        """Ranks are new in the world: what all others have run is for them, too."""
        ranks = self._model.world.ranks
        new = tuple(ranks[r].worker for r in added)
        others = {rank.worker for rank in ranks.values()} - set(new)
        self._cells = {code: (*ran, *new) if others.issubset(ran) else ran for code, ran in self._cells.items()}

    def handle_removal(self, numbering: Numbering) -> None:
        """Ranks have been removed and the others have new ones: what was run on none that is left is forgotten."""
        m = self._model
        workers = {rank.worker for rank in m.world.ranks.values()}
        self._cells = {code: ran for code, ran in self._cells.items() if workers.intersection(ran)}
        for run in m.runs.queued:
            run.ranks = numbering.kept(run.ranks)
        m.runs.queued = [run for run in m.runs.queued if run.ranks]

    def drop_replays(self, rank: int) -> None:
        """The rank is replaced again: what waits to be replayed on it will be queued anew."""
        for run in self._model.runs.queued:
            if run.is_own:
                run.ranks = tuple(r for r in run.ranks if r != rank)
        self._model.runs.queued = [run for run in self._model.runs.queued if run.ranks]

    def queue(self) -> None:
        """The world has been formed: queue the setup cells for the ranks that need them, then the callbacks."""
        m = self._model
        fresh = [r for _, r in sorted(m.world.ranks.items()) if r.needs_setup]
        own = []
        for code, workers in self._cells.items():
            wanted = tuple(r.rank for r in fresh if r.worker in workers)
            if wanted:
                spec = CellSpec(code, is_setup=True, is_internal=True)
                own.append(Run(m.runs.new_number(), "", spec, wanted, purpose=SETUP))
        for rank in fresh:
            rank.needs_setup = False
        if self._calls_functions():
            code = call_on_reform(m.generation)
            own.append(
                Run(m.runs.new_number(), "", CellSpec(code, is_internal=True), tuple(m.world.ranks), purpose=ON_REFORM)
            )
        m.runs.queued = [*own, *(run for run in m.runs.queued if run.purpose != ON_REFORM)]

    def _calls_functions(self) -> bool:
        """Whether functions of jdist.on_reform are to be called; not if they have just been ended in the middle."""
        m = self._model
        was_ended, m.reform_ended = m.reform_ended, False
        if not any(r.wants_reform for r in m.world.ranks.values()):
            return False
        if was_ended:
            what = "the functions of jdist.on_reform were ended before they were done"
            m.broadcast(Notice(f"{what}, and are not called again for that; call them in a cell"))
        return not was_ended


_SEVERAL = (  # Signs where several ranks run the cell; a single one may launch what it likes.
    "The server socket has failed to listen on",  # torch: another process has the address of the rendezvous store
    "To launch a multi-device training from your notebook, the `Accelerator`",  # accelerate
    "You have to specify the number of devices you would like to use",  # accelerate
)
_TEXT = (
    "the processes that a rank has launched cannot form a world: the ranks are the processes already. Call the "
    'function itself in the cell, without notebook_launcher or mp.spawn; with Lightning, use strategy="ddp"'
)
_RUN = Remedy("run", "run a script on the ranks", name="SCRIPT.py")


def find(text: str, run: int, ranks: tuple[int, ...]) -> Notice | None:
    """What the user should know if ``text``, which a rank of the run has written or raised, is such a sign."""
    signs = (FORKED, *_SEVERAL) if len(ranks) > 1 else (FORKED,)
    return Notice(_TEXT, run, (_RUN,)) if any(sign in text for sign in signs) else None


_MOST_QUEUED = 1000
_MOST_CHARS = 64 << 20  # Cells that wait, and characters of theirs.
_TOGETHER = 0.3  # Seconds in which what several ranks do after an interrupt is collected.
_LAST_LINE = 200  # Characters of a rank's last line that are remembered.


class RunLifecycle:
    """Accepts, starts, interrupts and ends runs."""

    def __init__(self, model: Model, own_runs: OwnRuns, silent_mismatch: SilentMismatch):
        self._model = model
        self._own_runs = own_runs
        self._silent_mismatch = silent_mismatch
        self.on_own_end: Callable[[Run], None] = lambda _: None  # Called with a run of the controller's own.
        self.on_users_end: Callable[[], None] = lambda: None  # Called when any other run has ended.

    def handle_run_cell(self, client: str, message: messages.RunCell) -> None:
        m = self._model
        reason = self._refusal(message)
        if reason:
            m.refuse(client, message.request, reason)
            return
        ranks = tuple(sorted(set(message.ranks)))
        spec = replace(message.spec, allow_stdin=message.spec.allow_stdin and len(ranks) == 1)
        run = Run(m.runs.new_number(), client, spec, ranks)
        if not spec.is_internal:
            m.records.begin(run.number, ranks, spec.timeout)
        m.send(client, messages.RunAccepted(message.request, run.number, m.runs.add(run)))
        if m.awaited_ranks() and not spec.is_internal:
            m.tell(run, Notice(f"the cell waits: {m.missing_nodes()}", run.number, remedies=m.remedies()))

    def _refusal(self, message: messages.RunCell) -> str:
        m = self._model
        waiting = sum(len(run.spec.code) for run in m.runs.queued)
        if len(m.runs.queued) >= _MOST_QUEUED or waiting + len(message.spec.code) > _MOST_CHARS:
            return f"{len(m.runs.queued)} cells wait already; the cell was not run"
        if message.ranks and m.runs.paused().keys() >= set(message.ranks):
            return ""  # it runs where they are paused, whatever else the world lacks
        if m.phase == "failed" and not m.is_unformed:
            return f"the world is not formed: {m.reason}"
        missing = m.missing_nodes()
        if missing and not m.awaited_ranks():
            return f"{missing}; the cell was not run, and the other ranks keep their names"
        missing = m.missing_ranks()
        if missing:
            return f"the cell was not run: {missing}; the other ranks keep their names, which can be pulled"
        return m.unknown_ranks(message.ranks)

    def start_ready(self) -> None:
        """Start the runs whose ranks are free or paused; while the world is being formed, only in paused frames.

        In a world that could not be formed, users' cells run without it.
        """
        m = self._model
        is_unformed = m.is_unformed
        is_ready = m.phase == "ready" and not m.is_dirty
        for run in m.runs.startable(is_ready=is_ready, is_unformed=is_unformed):
            m.runs.start(run, m.now)
            if run.spec.is_setup and not run.is_own:
                self._own_runs.remember(run)
            m.tell(run, messages.RunStarted(run.number))
            if is_unformed and not run.spec.is_internal:
                what = "the world is not formed, so calls of torch.distributed fail in this cell"
                m.tell(run, Notice(f"{what}: {m.reason}", run.number))
            for number in run.ranks:
                m.world.ranks[number].last_run = run.number
            for around in sorted({run.inside.get(rank, 0) for rank in run.ranks}):
                self._send_cell(run, around)

    def _send_cell(self, run: Run, around: int) -> None:
        """Send the cell to those of its ranks that are paused in the run ``around``; 0: that are in no other run."""
        ranks = [rank for rank in run.ranks if run.inside.get(rank, 0) == around]
        for node_rank, workers in self._model.world.workers_by_node(ranks).items():
            unformed = self._model.reason if self._model.is_unformed else ""
            cell = messages.ExecuteCell(run.number, workers, run.spec, around, unformed)
            self._model.send_to_node(node_rank, cell)

    def handle_output(self, _: Node, output: Output) -> None:
        """Forward output to the run's client; that of a thread which an earlier cell left, to all clients."""
        m = self._model
        for item in output.items:
            if not isinstance(item, Text | Tail) or not item.text.strip("\n"):
                continue
            last_line = item.text.rstrip("\n").rpartition("\n")[2][:_LAST_LINE]
            for number in item.ranks if isinstance(item, Text) else (item.rank,):
                m.world.ranks[number].last_line = last_line
            self._tell_launch(m.runs.running.get(output.run), item.text)
        self._forward(output)

    def _tell_launch(self, run: Run | None, text: str) -> None:
        """Tell the client once if the text is the sign of a launch conflict."""
        if run is None or run.has_told_launch:
            return
        notice = find(text, run.number, run.ranks)
        if notice is not None:
            run.has_told_launch = True
            self._model.tell(run, notice)

    def handle_metrics(self, _: Node, metrics: MetricsLogged) -> None:
        """Forward what ranks logged, as their output."""
        self._forward(metrics)

    def _forward(self, message: Output | MetricsLogged) -> None:
        m = self._model
        run = m.runs.running.get(message.run)
        if run is not None:
            m.tell(run, message)
        else:
            m.records.add(message.run, message)
            m.broadcast(message)

    def handle_input_request(self, _: Node, message: messages.InputRequest) -> None:
        """A rank reads a line: forward the request to its run's client."""
        run = self._model.runs.running.get(message.run)
        if run is None:
            return
        if run.client in self._model.clients:
            run.asking.add(message.rank)
            self._model.tell(run, message)
        else:
            self.abort(run, "interrupted")  # no client is there to answer

    def handle_input_reply(self, _client: str, message: messages.InputReply) -> None:
        rank = self._model.world.ranks.get(message.rank)
        run = self._model.runs.running.get(message.run)
        if run is not None:
            run.asking.discard(message.rank)
        if rank is not None:
            self._model.send_to_node(rank.node_rank, replace(message, rank=rank.worker))

    def handle_module_request(self, node: Node, message: ModuleRequest) -> None:
        """A rank lacks a module that the run's client has: forward the request to it."""
        run = self._model.runs.running.get(message.run)
        if run is not None and run.client in self._model.clients:
            self._model.send(run.client, message)
            return
        where = f"{message.name} is not on node {node.node_rank}"
        text = f"{where}, and the client that has it is gone; `sync` copies it"
        self.handle_module_reply("", ModuleReply(message.rank, message.name, text))

    def handle_module_reply(self, _client: str, message: ModuleReply) -> None:
        rank = self._model.world.ranks.get(message.rank)
        if rank is not None:
            self._model.send_to_node(rank.node_rank, replace(message, rank=rank.worker))

    def record_rank_done(self, done: messages.RankDone) -> None:
        """A rank's part of a run is over; with the last one, so is the run."""
        m = self._model
        if m.phase == "stopping" and done.kind == "error":
            return  # Ranks interrupt their cells to end. The run is lost with its cluster, which clients are told.
        run = m.runs.running.get(done.run)
        settled = run.record(done, m.now) if run is not None else None
        if run is None or settled is None:
            return
        if settled.error is not None:
            self._tell_launch(run, settled.error.evalue)
        m.tell(run, settled)
        if done.has_broken_group:
            m.is_dirty = True
            m.was_aborted = m.was_aborted or bool(run.abort_reason)
        if run.is_own and settled.kind == "error" and settled.error is not None:
            what = f"{settled.error.ename}: {settled.error.evalue}"
            at = f" at line {settled.error.cell_line}" if settled.error.cell_line else ""
            m.broadcast(Notice(f"{run.purpose} failed on {m.world.where(done.rank)}{at}: {what}"))
        self.end_if_over(run)
        for other in m.runs.running.values():
            if other.is_stalled:
                other.poll_no_later_than(m.now)  # it may have waited for this rank

    def end_if_over(self, run: Run) -> None:
        """End a run of which every rank has ended, unless something about it has still to be found out."""
        if run.is_over and run.phase != "diagnosing" and not self._silent_mismatch.delays_end(run):
            self._end(run)

    def end_diagnosis(self, run: Run) -> None:
        """The loss of a rank has been explained as far as it can be: free the others, if any still runs."""
        if run.pending:
            self.abort(run, "lost")
        else:
            self._end(run)

    def _end(self, run: Run) -> None:
        m = self._model
        transition(run, "ended", run.reason or "each rank's part has ended")
        m.runs.end(run, m.now)
        has_ended_well = all(end.kind == "value" for end in run.ends.values())
        if run.verdict is not None and has_ended_well and not run.verdict.has_passed:
            m.tell(run, VerdictChanged(run.number, None))
        seconds = m.now - (run.started_at or m.now)
        m.tell(run, messages.RunEnded(run.number, run.reason, seconds, run.first_to_blame))
        if run.is_own:
            self.on_own_end(run)
        else:
            self.on_users_end()

    def handle_interrupt(self, client: str, message: messages.Interrupt) -> None:
        """Abort runs, of some ranks or one by its number; queued ones end at once."""
        wanted = set(message.ranks)
        unfinished = self._model.runs.running.keys() | {run.number for run in self._model.runs.queued}
        if message.run and message.request and message.run not in unfinished:
            over = f"run {message.run} is over: there is nothing to interrupt"
            self._model.refuse(client, message.request, self._model.runs.why_unknown(message.run) or over)
            return
        for run in list(self._model.runs.running.values()):
            if message.run in (0, run.number) and (not wanted or wanted & run.pending):
                self._insist(run)
                self.abort(run, "interrupted")
        for run in list(self._model.runs.queued):
            if message.run in (0, run.number) and (not wanted or wanted & set(run.ranks)) and not run.is_own:
                self._end_queued(run)
        if message.request:
            self._model.send(client, RankReply(message.request, -1, Ack()))

    def handle_read_run(self, client: str, message: ReadRun) -> None:
        """Send the record of a run to a client that may not have been there."""
        m = self._model
        number = message.run or m.records.newest
        found = m.records.find(number)
        if found is None:
            forgotten = f"the output of run {number} is not kept any more"
            m.refuse(client, message.request, m.runs.why_unknown(number) or forgotten)
            return
        ranks, timeout, told = found
        seconds = next((end.seconds for end in reversed(told) if isinstance(end, messages.RunEnded)), -1.0)
        run = m.runs.running.get(number)
        if run is not None and run.started_at is not None:
            seconds = m.now - run.started_at
        if run is not None and message.waiter is not None:
            run.add_waiter(client, message.waiter, m.now)
        m.send(client, RunRecord(message.request, number, ranks, told, seconds, timeout))

    def abort(self, run: Run, reason: AbortReason) -> None:
        """Free every rank that is still in the run, of inner runs first; a second abort does nothing.

        A run in paused frames is only interrupted: the group is formed again if that has broken it (see RankDone).
        """
        m = self._model
        if run.abort_reason or not run.pending:
            return
        for inner in m.runs.inner(run):
            self.abort(inner, reason)
        for waiting in [r for r in m.runs.queued if run.number in r.within]:
            self._end_queued(waiting)
        transition(run, "aborting", reason)
        run.abort_reason = reason
        m.reform_ended = m.reform_ended or run.purpose == ON_REFORM
        run.give_up_at = m.now + m.settings.interrupt_grace
        if not run.inside:
            m.is_dirty = m.was_aborted = True
        paused = tuple(sorted(run.paused))
        run.end_pauses(run.ranks, m.now)
        if paused:
            m.tell(run, RanksResumed(run.number, paused))
        self._send_abort(run)

    def _send_abort(self, run: Run) -> None:
        m, settings = self._model, self._model.settings
        listeners, times = m.world.listeners(), (settings.interrupt_grace, settings.handler_grace)
        for node_rank, workers in m.world.workers_by_node(sorted(run.pending)).items():
            is_inner = bool(run.inside)
            abort = messages.AbortRun(run.number, workers, listeners, *times, run.is_insistent, is_inner)
            m.send_to_node(node_rank, abort)

    def _insist(self, run: Run) -> None:
        """The user has interrupted the run again: interrupt the cell's own handlers as well, if any are running."""
        if run.handlers and run.pending and not run.is_insistent:
            run.is_insistent = True
            run.handlers = {}
            run.give_up_at = self._model.now + self._model.settings.interrupt_grace
            self._send_abort(run)

    def handle_handler_run(self, node: Node, message: messages.HandlerRun) -> None:
        """A rank's cell goes on after the interrupt: give it the time that it may take, and tell the client."""
        m = self._model
        run, rank = m.runs.running.get(message.run), m.world.rank_of(node, message.worker)
        if run is None or rank is None or rank.rank not in run.pending or run.is_insistent or run.give_up_at is None:
            return
        run.handlers[rank.rank] = m.now + message.seconds + m.settings.interrupt_grace
        what = "handling the interrupt" if message.is_handler else "still running after the cell caught the interrupt,"
        at = f" at cell line {message.line}" if message.line else ""
        source = f": {message.source}" if message.source else ""
        limit = f"for {message.seconds:.0f} s at most; interrupt again to cut it off"
        run.untold[rank.rank] = f"{what}{at}{source} ({limit})"
        run.tell_at = run.tell_at or m.now + _TOGETHER

    def _tell(self, run: Run) -> None:
        """Tell the client what the cell does after the interrupt, once for all ranks that do the same."""
        untold, run.untold, run.tell_at = run.untold, {}, None
        for text in dict.fromkeys(untold.values()):
            ranks = describe_ranks([r for r, what in sorted(untold.items()) if what == text and r in run.pending], "is")
            if run.pending & {r for r, what in untold.items() if what == text}:
                self._model.tell(run, Notice(f"{ranks} {text}"))

    def end_waiting(self, reason: str) -> None:
        """End every queued run of a user, because the world will not be formed soon; replays stay queued."""
        text = f"the cell was not run: {reason}"
        for run in list(self._model.runs.queued):
            if not run.is_own:
                self._end_queued(run, ErrorInfo("NotRun", text, remedies=self._model.remedies()))

    def _end_queued(self, run: Run, error: ErrorInfo | None = None) -> None:
        transition(run, "ended", error.evalue if error is not None else "interrupted")
        self._model.runs.queued.remove(run)
        for rank in run.ranks:
            self._model.tell(run, messages.RankDone(run.number, rank, "interrupted", error=error))
        self._model.tell(run, messages.RunEnded(run.number, "interrupted", 0.0))

    def handle_tick(self) -> None:
        """Halt the runs whose time is up."""
        for run in list(self._model.runs.running.values()):
            if run.tell_at is not None and self._model.now >= run.tell_at:
                self._tell(run)
            if run.phase == "comparing":
                self.end_if_over(run)
            elif run.deadline is not None and self._model.now >= run.deadline:
                self.abort(run, "timeout")
