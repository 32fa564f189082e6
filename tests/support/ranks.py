"""Ranks for tests: processes forked from one that has imported torch, each with a cell thread and a control thread.

The test's process holds the rendezvous store and stands in for the controller. A rank ends with its pipe. Every wait
has a deadline.
"""

from __future__ import annotations

import gc
import linecache
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from jdist.core.messages.membership import FormWorld, GroupSpec, WorldFormed
from jdist.core.messages.observation import Observation
from jdist.worker.escalation import free_main_thread
from jdist.worker.groups import patches
from jdist.worker.groups.registry import GroupRegistry
from jdist.worker.observe.main_thread import frames_of, operation, store_port, store_wait
from jdist.worker.observe.observer import Observer, RunSpans

PRELOAD = [
    "torch",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch._dynamo",
    "jdist.worker.groups.registry",
    "jdist.worker.escalation",
    "jdist.worker.observe.observer",
]
DEADLINE = 60.0
SOON = 10.0
"""Seconds in which ranks are freed on a busy machine: far less than the grace that they are given."""


# ---------------------------------------------------------------- in the rank


class CellFiles:
    """The file names of this module's cells."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("<cell ")


class Where(NamedTuple):
    """Where the main thread is."""

    line: int | None
    op: str | None
    in_store_wait: bool
    store_port: int | None


class RankProcess:
    """One rank: its main thread runs cells, its control thread obeys the test."""

    def __init__(self, rank: int, connection: Connection):
        self.rank = rank
        self._connection = connection
        self._sending = threading.Lock()
        self._cells: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_running = False
        self._idle = threading.Event()
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.groups = GroupRegistry(self.namespace)
        self.groups.on_group_made = self._group_made
        self.groups.log.cells = CellFiles()
        self.spans = RunSpans()
        self.observer = Observer(self.groups.log, self.groups.labels, self.spans)

    def main(self) -> None:
        signal.signal(signal.SIGINT, self._on_sigint)
        patches.install(self.groups)
        threading.Thread(target=self._control, daemon=True).start()
        number = 0
        while True:
            code = self._cells.get()
            number += 1
            file = f"<cell {number}>"
            linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
            outcome: tuple[str, Any] = ("value", None)
            self.spans.begin(number)
            try:
                self._run_user_code(compile(code, file, "exec"))
                outcome = ("value", self.namespace.pop("_", None))
            except BaseException as e:
                outcome = (type(e).__name__, str(e) or traceback.format_exc())
                e.__traceback__ = None
            self._is_running = False
            self.spans.end(number)
            self._idle.set()
            self._send("done", outcome)

    def _run_user_code(self, code: Any) -> None:
        exec(code, self.namespace)

    def _on_sigint(self, _signum: int, frame: Any) -> None:
        seen_user = False
        while frame is not None:
            seen_user = seen_user or frame.f_globals is self.namespace
            if seen_user and frame.f_code is RankProcess._run_user_code.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def _group_made(self, index: int, spec: GroupSpec, listeners: Any) -> None:
        self._send("group", (index, spec, tuple(listeners)))

    def _send(self, kind: str, body: Any) -> None:
        with self._sending:
            self._connection.send((kind, body))

    def _control(self) -> None:
        while True:
            try:
                kind, body = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            if kind == "run":
                self._idle.clear()
                self._is_running = True
                self._cells.put(body)
            else:
                threading.Thread(target=self._obey, args=(kind, body), daemon=True).start()

    def _obey(self, kind: str, body: Any) -> None:
        try:
            answer = getattr(self, kind)(body)
        except Exception as e:
            answer = e
        self._send(kind, answer)

    def form(self, form: FormWorld) -> WorldFormed:
        return self.groups.form(form, self.rank, self.rank)

    def halt(self, body: tuple[set[tuple[str, int]], float]) -> tuple[bool, float]:
        listeners, grace = body
        began = time.monotonic()
        deadline = began + grace
        came_back = free_main_thread(lambda: self._is_running, self._idle, listeners, self.groups, lambda: deadline)
        return came_back, time.monotonic() - began

    def side(self, code: str) -> Any:
        scope = {"G": self.groups, "O": self.observer, "R": self.spans, "ns": self.namespace, "at": self._where()}
        exec(code, scope)
        return scope.get("_")

    def _where(self) -> Where:
        frames = frames_of(threading.main_thread().ident or 0)
        waiting = store_wait(frames)
        return Where(
            next((f.f_lineno for f in frames if f.f_code.co_filename in CellFiles()), None),
            operation(frames),
            waiting is not None,
            store_port(waiting) if waiting is not None else None,
        )


def rank_main(rank: int, connection: Connection) -> None:
    import torch

    gc.freeze()  # as the agent's forkserver does: what was imported need not be walked at each forming
    torch.set_num_threads(1)
    RankProcess(rank, connection).main()


# ---------------------------------------------------------------- in the test


class Ranks:
    """A world of ranks, and what a controller would know about it."""

    def __init__(self, world_size: int):
        import torch.distributed as dist

        os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
        self.world_size = world_size
        self.generation = 0
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.listeners: set[tuple[str, int]] = set()
        self.logs: list[list[GroupSpec]] = [[] for _ in range(world_size)]
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self.processes: list[Any] = [None] * world_size
        self._pipes: list[Any] = [None] * world_size
        self._stash: list[list[tuple[str, Any]]] = [[] for _ in range(world_size)]
        for rank in range(world_size):
            self.start(rank)

    def start(self, rank: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=rank_main, args=(rank, theirs), daemon=True)
        process.start()
        theirs.close()
        self.processes[rank], self._pipes[rank], self._stash[rank] = process, ours, []

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join(DEADLINE)
        self._pipes[rank].close()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join(DEADLINE)

    def ask(self, rank: int, kind: str, body: Any) -> None:
        self._pipes[rank].send((kind, body))

    def answer(self, rank: int, kind: str, timeout: float = DEADLINE) -> Any:
        """The next answer of this kind; raises what the rank raised, TimeoutError when none comes."""
        end = time.monotonic() + timeout
        while True:
            for i, (found, body) in enumerate(self._stash[rank]):
                if found == kind:
                    del self._stash[rank][i]
                    if isinstance(body, Exception):
                        raise body
                    return body
            if not self._pipes[rank].poll(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"rank {rank} has not answered {kind!r} within {timeout} s")
            found, body = self._pipes[rank].recv()
            if found == "group":
                index, spec, listeners = body
                del self.logs[rank][index:]
                self.logs[rank].append(spec)
                self.listeners |= set(listeners)
            else:
                self._stash[rank].append((found, body))

    def run(self, code: str | dict[int, str], timeout: float = DEADLINE) -> list[Any]:
        """Run a cell on all ranks, or a cell each; the values by rank. Raises AssertionError for any that failed."""
        cells = code if isinstance(code, dict) else dict.fromkeys(range(self.world_size), code)
        for rank, text in cells.items():
            self.ask(rank, "run", text)
        outcomes = {rank: self.answer(rank, "done", timeout) for rank in cells}
        failed = {r: o for r, o in outcomes.items() if o[0] != "value"}
        assert not failed, failed
        return [o[1] for o in outcomes.values()]

    def side(self, rank: int, code: str) -> Any:
        self.ask(rank, "side", code)
        return self.answer(rank, "side")

    def form(self, timeout: float = 30.0, **fields: Any) -> list[WorldFormed]:
        """Form the next generation, with the groups that all ranks made in this one."""
        replay = []
        for specs in zip(*self.logs, strict=False):
            if any(s != specs[0] for s in specs):
                break
            replay.append(specs[0])
        self.generation += 1
        cut = tuple(self.listeners)
        for rank in range(self.world_size):
            self.ask(rank, "form", self.spec(timeout, replay=tuple(replay), cut=cut, **fields))
        reports = [self.answer(rank, "form", timeout + 5) for rank in range(self.world_size)]
        self.listeners = {at for report in reports for at in report.listeners}
        self.logs = [list(replay) for _ in range(self.world_size)]
        return reports

    def spec(self, timeout: float = 30.0, **fields: Any) -> FormWorld:
        known: dict[str, Any] = {
            "generation": self.generation,
            "workers": tuple(range(self.world_size)),
            "backend": "gloo",
            "init_method": "env://",
            "store_host": "127.0.0.1",
            "store_port": self.store.port,
            "world_size": self.world_size,
            "nproc_per_node": (self.world_size,),
            "timeout": timeout,
            "replay": (),
            "named": {},
            "mesh": None,
            "cut": (),
        }
        return FormWorld(**{**known, **fields})

    def look(self, rank: int, recent: int = 0) -> Observation:
        """What the rank is doing now."""
        found: Observation = self.side(rank, f"_ = O.observe('cpu', 1, {recent})")
        return found

    def comes_to(self, rank: int, claim: Callable[[Observation], bool], timeout: float = DEADLINE) -> Observation:
        """Look until the claim is true of what the rank says."""
        end = time.monotonic() + timeout
        while True:
            look = self.look(rank)
            if claim(look):
                return look
            assert time.monotonic() < end, f"rank {rank} never came there: {look}"
            threading.Event().wait(0.05)

    def interrupt(self, grace: float = 30.0) -> float:
        """Climb the ladder on all ranks; returns the slowest rank's seconds. AssertionError if one stays stuck."""
        for rank in range(self.world_size):
            self.ask(rank, "halt", (self.listeners, grace))
        answers = [self.answer(rank, "halt", grace + 5) for rank in range(self.world_size)]
        assert all(came_back for came_back, _ in answers), answers
        return max(seconds for _, seconds in answers)

    def until(self, rank: int, condition: str, timeout: float = DEADLINE) -> None:
        """Wait until an expression over ``at``, where the main thread is, is true."""
        code = f"_ = ({condition}, str(at))"
        end = time.monotonic() + timeout
        seen = (False, "")
        while not seen[0]:
            assert time.monotonic() < end, f"rank {rank} never came to {condition}: {seen[1]}"
            seen = self.side(rank, code)
