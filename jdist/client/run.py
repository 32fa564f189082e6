"""CellRun: one cell on some ranks, as the client sees it. ``watch`` and ``feed`` are called on the link's loop.

What ranks have written is kept for those who watch the run later, without displays that were replaced or cleared.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from jdist.client.metrics.logged import Metrics
from jdist.client.threads import result_of
from jdist.core.errors import CellError, CellInterrupted, CellTimeout, ConnectionLost, RankLost, Remedy
from jdist.core.messages.base import Message, PayloadWire
from jdist.core.messages.debug import RankPaused, RanksResumed, RunFollowed
from jdist.core.messages.observation import Verdict, VerdictChanged
from jdist.core.messages.runs import (
    Clear,
    CommSent,
    Display,
    MetricsLogged,
    Output,
    OutputItem,
    RankDone,
    RunEnded,
    RunStarted,
    Tail,
    Text,
    Waiter,
)
from jdist.core.messages.status import Notice, Stopped
from jdist.core.metrics import RunMetrics
from jdist.core.outcome import Outcome
from jdist.core.ranks import RankSet, describe_ranks
from jdist.core.topology import Topology
from jdist.wire.values.objects import decode


class PastOutput:
    """Messages of one run in their order. Of a capped stream's tails, sent at each flush, only the newest is kept."""

    def __init__(self, run: int):
        self._run = run
        self._next = 0
        self._kept: dict[int, Message] = {}  # By serial number; of output, each item by itself.
        self._tails: dict[tuple[int, str], Tail] = {}
        self._shown: defaultdict[str, list[int]] = defaultdict(list)  # Displays, by the area that shows them.
        self._by_id: defaultdict[str, list[int]] = defaultdict(list)  # Displays, and updates of others, by their ids.
        self._cleared: set[tuple[str, int]] = set()  # Areas and ranks whose next output clears what they show.

    def __iter__(self) -> Iterator[Message]:
        """The messages, as if each item of output had come by itself."""
        for kept in (*self._kept.values(), *self._tails.values()):
            yield Output(self._run, (kept,)) if isinstance(kept, OutputItem) else kept

    def add(self, message: Message) -> None:
        """Keep a message that belongs to the run."""
        if isinstance(message, Output):
            for item in message.items:
                self._add_item(item)
        else:
            self._keep(message)

    def _add_item(self, item: OutputItem) -> None:
        if isinstance(item, Tail):
            self._tails[item.rank, item.stream] = item
            return
        if isinstance(item, CommSent):  # for the widgets of this client only, which have seen it
            return
        of = {(item.area, rank) for rank in item.ranks}
        if isinstance(item, Display) and item.is_update:  # it clears nothing
            if self._update(item):
                return
        elif isinstance(item, Clear) and item.wait:
            self._cleared |= of
        else:
            self._drop_displays(item.area, item.ranks if isinstance(item, Clear) else self._due(of))
            self._cleared -= of
        self._keep(item)

    def _due(self, of: set[tuple[str, int]]) -> tuple[int, ...]:
        """The ranks of these whose displays are cleared by what they write next."""
        return tuple(rank for _, rank in self._cleared & of)

    def _keep(self, what: Message) -> None:
        self._kept[self._next] = what
        if isinstance(what, Display):
            if not what.is_update:
                self._shown[what.area].append(self._next)
            if what.display_id:
                self._by_id[what.display_id].append(self._next)
        self._next += 1

    def _drop_displays(self, area: str, ranks: Collection[int]) -> None:
        for number in list(self._shown.get(area, ())) if ranks else ():
            shown = self._display(number)
            if left := tuple(rank for rank in shown.ranks if rank not in ranks):
                self._kept[number] = replace(shown, ranks=left)
                continue
            del self._kept[number]
            self._shown[area].remove(number)
            if shown.display_id:
                self._by_id[shown.display_id].remove(number)

    def _update(self, update: Display) -> bool:
        """Put an update into the displays of its ranks that it changes; False if it has to be kept itself."""
        ranks = set(update.ranks)
        changed = [(n, d) for n in self._by_id.get(update.display_id, ()) if ranks & set((d := self._display(n)).ranks)]
        if not changed or any(not ranks.issuperset(shown.ranks) for _, shown in changed):
            return False
        for number, shown in changed:
            self._kept[number] = replace(shown, data=update.data, metadata=update.metadata)
        return ranks.issubset(rank for _, shown in changed for rank in shown.ranks)

    def _display(self, number: int) -> Display:
        shown = self._kept[number]
        assert isinstance(shown, Display)
        return shown


_log = logging.getLogger(__name__)


class Remote:
    """Stands for a value that stayed on its rank: too large to be sent unasked, or not picklable.

    ``cluster.pull(remote.expr, ranks=[remote.rank])`` brings it if it can be brought.
    """

    def __init__(self, rank: int, expr: str, summary: str, nbytes: int):
        self.rank = rank
        self.expr = expr
        self.summary = summary
        self.nbytes = nbytes

    def __repr__(self) -> str:
        size = f", {self.nbytes:,} bytes" if self.nbytes else ""
        return f"<{self.summary} on rank {self.rank}{size}; cluster.pull({self.expr!r}, ranks=[{self.rank}])>"


class CellRun:
    """One cell on some ranks.

    ``run.wait()`` blocks (``await run`` in async code) until every rank has an outcome; ``run.outcomes`` and
    ``run.values`` fill as ranks finish. Waiting raises nothing; :meth:`check` raises the run's :class:`CellError`, or
    ConnectionLost if the cluster went before the run ended.
    """

    def __init__(self, number: int, ranks: tuple[int, ...], topology: Topology, interrupt: Callable[[int], object]):
        self.number = number
        self.ranks = RankSet(ranks)
        self.topology = topology
        self.outcomes: dict[int, Outcome] = {}
        """``{rank: Outcome}`` of the ranks that are done."""
        self.behind: tuple[int, ...] = ()
        """Runs that must end before this one starts."""
        self.state = "queued"
        """queued, running, paused (at least one rank is), or done."""
        self.paused: dict[int, RankPaused] = {}
        """``{rank: RankPaused}`` of the ranks that are paused, and where."""
        self.reason = ""
        """Why the run was ended early: timeout, interrupted or lost."""
        self.seconds = 0.0
        self.timeout: float | None = None
        """Its deadline in seconds after its start, if it has one and it is known."""
        self.first_failure: int | None = None
        """The rank that failed first."""
        self.verdict: Verdict | None = None
        """Why the run makes no progress, or did not finish; None while nothing is wrong with it."""
        self.on_late: Callable[[Message], None] | None = None
        """Called with output that threads and children of the cell write after its end."""
        self.keeps_output = True
        """Whether what ranks write is kept for ``outcomes`` and for later watchers."""
        self.is_whole = True
        """Whether it is followed from its beginning."""
        self.logged = RunMetrics(number)  # Fed on the link's loop.
        self._began: float | None = None  # When it was seen to start (time.monotonic).
        self._has_paused = False
        self._interrupt = interrupt
        self._over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._changed = threading.Condition()  # Notified when a rank pauses, and at the end.
        self._text: defaultdict[tuple[int, str], list[str]] = defaultdict(list)  # Output by rank and stream.
        self._newest: dict[int, int] = {}  # The number of the newest message of output, by agent.
        self._watchers: list[Callable[[Message | None], None]] = []
        self._past = PastOutput(number)
        self._lost: Stopped | None = None
        self._lock = threading.Lock()

    @classmethod
    def followed(cls, found: RunFollowed, topology: Topology, interrupt: Callable[[int], object]) -> Self:
        """A run that was begun before, or by another client, as it is now. Values from before are not known."""
        run = cls(found.run, found.ranks, topology, interrupt)
        run.is_whole = False
        run.state = "running" if found.seconds >= 0 else "queued"
        run.seconds = max(0.0, found.seconds)
        run._began = time.monotonic() - found.seconds if found.seconds >= 0 else None
        run.verdict = found.verdict
        for rank in sorted(set(found.ranks) - set(found.pending)):
            run.outcomes[rank] = Outcome(kind=found.ended.get(rank, "value"))  # type: ignore[arg-type]
        for paused in found.paused:
            run.feed(paused)
        return run

    @property
    def values(self) -> dict[int, Any]:
        """``{rank: value}`` of the last expression, for the ranks that finished; a large one is a :class:`Remote`."""
        return {r: o.value for r, o in sorted(self.outcomes.items()) if o.ok}

    @property
    def metrics(self) -> Metrics:
        """What the ranks have logged with ``jdist.log`` up to now."""
        return Metrics(self.logged)

    def waiter(self, *, is_owner: bool) -> Waiter:
        """What a controller that has taken the run over cannot know. A run that was paused gets its full timeout."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        left = self.timeout if self.timeout is None or self._has_paused else max(0.0, self.timeout - seconds)
        return Waiter(is_owner, seconds, left)

    @property
    def is_done(self) -> bool:
        return self._over.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until every rank has an outcome; False if ``timeout`` seconds passed first."""
        try:
            result_of(self._over, timeout)
        except TimeoutError:
            return False
        return True

    def wait_paused(self, timeout: float | None = None) -> bool:
        """Block until a rank is paused, the run is over, or ``timeout`` seconds have passed; whether it is paused."""
        with self._changed:
            self._changed.wait_for(lambda: self.paused or self.is_done, timeout)
            return bool(self.paused)

    def __await__(self) -> Generator[Any, None, Self]:
        yield from asyncio.shield(asyncio.wrap_future(self._over)).__await__()  # a cancelled waiter must not end it
        return self

    def cancel(self) -> None:
        """Interrupt the run on every rank; namespaces are kept."""
        self._interrupt(self.number)

    def check(self) -> None:
        """Raise the run's error, if it has one."""
        if self._lost is not None:
            text = f"run {self.number}: its cluster was lost before it ended: {self._lost.reason}"
            raise ConnectionLost(text, remedies=self._lost.remedies)
        failed = {r: o for r, o in self.outcomes.items() if not o.ok}
        if not failed:
            return
        kinds = {o.kind for o in failed.values()}
        message = self._describe(failed)
        if "lost" in kinds:
            raise RankLost(message, self)
        if "error" in kinds:
            raise CellError(message, self)
        remedies = next((o.error.remedies for o in failed.values() if o.error is not None), ())
        raise (CellTimeout if "timeout" in kinds else CellInterrupted)(message, self, remedies=remedies)

    def _describe(self, failed: dict[int, Outcome]) -> str:
        """The first failure and the ranks that failed alike, the other failures, and what is kept."""
        causes = [r for r, o in failed.items() if o.kind in ("error", "lost") and not (o.error and o.error.is_echo)]
        first = self.first_failure if self.first_failure in failed else min(causes or failed)
        outcome = failed[first]
        if self.verdict is not None and self.verdict.kind == "mismatch" and not self.verdict.has_passed:
            return self.verdict.final_text
        if outcome.kind in ("timeout", "interrupted"):
            who = describe_ranks(failed, "were") if len(failed) > 1 else f"{self.topology.where(first)} was"
            why = " at the deadline" if outcome.kind == "timeout" else ""
            if outcome.error is not None and outcome.error.ename == "NotRun":
                return outcome.error.evalue
            verdict = f"\n{self.verdict.final_text}" if self.verdict is not None else ""
            return f"{who} interrupted{why}; every namespace is kept{verdict}"
        cause = {r: (o.kind, o.error.ename, o.error.cell_line) if o.error else (r,) for r, o in failed.items()}
        alike = [r for r in failed if cause[r] == cause[first]]
        where = self.topology.where(first) if len(alike) == 1 else describe_ranks(alike)
        error = outcome.error
        if outcome.kind == "lost":
            what = f"{where} lost: {error.evalue if error else 'no process'}"
        else:
            line = f" at cell line {error.cell_line}" if error and error.cell_line else ""
            line = line or (f" in {error.source.partition(':')[0]}" if error and error.source else "")
            what = f"{where} failed{line}: {error.ename}: {error.evalue}" if error else f"{where} failed"
        more = _others({r: o for r, o in sorted(failed.items()) if r not in alike}, causes)
        kept = ". The other ranks' values are in .values" if self.values else ""
        return f"{what}{more}{kept}"

    def watch(self, watcher: Callable[[Message | None], None]) -> None:
        """Call ``watcher`` with every message about this run, the past ones first, and with None at the end.

        The run's lock is held during the calls for past messages, so that no newer one overtakes them.
        """
        with self._lock:
            for message in self._past:
                watcher(message)
            if self._over.done():
                watcher(None)
            else:
                self._watchers.append(watcher)

    def feed(self, message: Message) -> None:
        """Handle a message about this run; output that it already has is left out."""
        if isinstance(message, Output) and message.number is not None:
            newest = self._newest.get(message.number.agent, 0 if self.is_whole else message.number.previous)
            if message.number.value <= newest:
                return
            self._newest[message.number.agent] = message.number.value
            if message.number.previous > newest:
                self.feed(_gap(message, self.ranks))
        self._apply(message)
        if self.is_done:
            return
        with self._lock:
            if not isinstance(message, MetricsLogged) and (self.keeps_output or not isinstance(message, Output)):
                self._past.add(message)  # metrics are in `logged`
            watchers = list(self._watchers)
        for watcher in watchers:
            _tell(watcher, message)
        if self.state == "done":
            with self._lock:
                self._over.set_result(None)
                watchers, self._watchers = self._watchers, []
            with self._changed:
                self._changed.notify_all()
            for watcher in watchers:
                _tell(watcher, None)

    def _apply(self, message: Message) -> None:
        match message:
            case RunStarted():
                self.state = "running"
                self._began = time.monotonic()
            case Output():
                for item in message.items:
                    if isinstance(item, Text) and self.keeps_output:
                        for rank in item.ranks:
                            self._text[rank, item.stream].append(item.text)
                self._tell_late(message)
            case MetricsLogged():
                self.logged.feed(message)
                self._tell_late(message)
            case RankDone():
                self.outcomes[message.rank] = self._outcome(message)
                self._set_paused({r: p for r, p in self.paused.items() if r != message.rank})
            case RankPaused() if message.rank not in self.outcomes:
                self._has_paused = True
                self._set_paused(self.paused | {message.rank: message})
            case RanksResumed():
                self._set_paused({r: p for r, p in self.paused.items() if r not in message.ranks})
            case VerdictChanged():
                self.verdict = message.verdict
            case RunEnded():
                self.paused = {}
                self.state = "done"
                self.reason = message.reason
                self.seconds = message.seconds
                self.first_failure = message.first_failure if message.first_failure >= 0 else None
            case Stopped():
                self.paused = {}
                self.state = "done"
                self.reason = "lost"
                self._lost = message
                self.outcomes.update({r: Outcome(kind="lost") for r in self.ranks if r not in self.outcomes})

    def _tell_late(self, message: Message) -> None:
        if self.is_done and self.on_late is not None:
            _tell(self.on_late, message)

    def _set_paused(self, paused: dict[int, RankPaused]) -> None:
        self.paused = paused
        if self.state != "done":
            self.state = "paused" if paused else "running"
        with self._changed:
            self._changed.notify_all()

    def _outcome(self, done: RankDone) -> Outcome:
        return Outcome(
            kind=done.kind,  # type: ignore[arg-type]
            read_value=None if done.payload is None else partial(_value, done.rank, done.payload, done.held),
            error=done.error,
            stdout="".join(self._text[done.rank, "stdout"]),
            stderr="".join(self._text[done.rank, "stderr"]),
            duration=done.duration,
        )

    def __repr__(self) -> str:
        done = f"{len(self.outcomes)} of {len(self.ranks)} done"
        return f"<CellRun {self.number} on ranks {self.ranks}: {self.state}, {done}>"


def _gap(output: Output, of_run: RankSet) -> Notice:
    """Output is missing before this: the agent and the controller keep only so much that cannot be sent yet."""
    ranks = RankSet({rank for item in output.items for rank in ([item.rank] if isinstance(item, Tail) else item.ranks)})
    ranks = ranks or of_run  # nothing is left of a message whose displays have been replaced
    text = f"some of what {describe_ranks(ranks)} wrote before this is missing"
    why = "while a connection was broken, more was written than is kept"
    return Notice(f"{text}: {why}", output.run, (Remedy("logs", "see it", ranks=str(ranks)),))


def _tell(watcher: Callable[[Any], None], message: Message | None) -> None:
    """What shows a run may fail; the run ends all the same, and is shown by the others."""
    try:
        watcher(message)
    except Exception:
        _log.exception("a message about a run could not be shown")


def _value(rank: int, payload: PayloadWire, held: str) -> Any:
    if payload.buffers is None or held:
        return Remote(rank, held, payload.summary, payload.nbytes)
    try:
        return decode(payload, [bytearray(b) for b in payload.buffers])
    except Exception as e:  # the value's class may not be importable here; the run must not fail for that
        return Remote(rank, "_", f"{payload.summary}, not readable here ({type(e).__name__}: {e})", 0)


def _others(failed: dict[int, Outcome], causes: list[int]) -> str:
    """The ranks that failed by themselves in another way, and those that could not finish because of a failure."""
    own, along = [r for r in failed if r in causes], [r for r in failed if r not in causes]
    text = ""
    if own:
        error = failed[own[0]].error
        with_ = f"rank {own[0]} with " if len(own) > 1 else ""
        text = f"; {describe_ranks(own)} failed otherwise{f': {with_}{error.ename}: {error.evalue}' if error else ''}"
    return text + (f"; {describe_ranks(along)} did not finish because of it" if along else "")
