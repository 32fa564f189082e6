"""Handlers: what an agent does for each message of its controller and each event of its workers, with parts made up."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from jdist.agent.handlers import AgentParts, ControllerHandlers, WorkerHandlers
from jdist.agent.node import JoinOptions, NodeContext, node_facts
from jdist.agent.processes.kernel import KernelMessage
from jdist.agent.recovery_ledger import RecoveryLedger
from jdist.agent.relay.iopub import OutputRelay, RankLogs
from jdist.core.import_path import ImportPath
from jdist.core.messages.base import Message
from jdist.core.messages.code import CodeSynced, UseImportPath
from jdist.core.messages.debug import PauseRanks, RankPaused, ResumeRanks
from jdist.core.messages.membership import (
    AgentHello,
    EndWorkers,
    FormWorld,
    GroupMade,
    GroupSpec,
    LivenessRenewed,
    Rejected,
    Shutdown,
    StartStore,
    StartWorker,
    Welcome,
    WorkerDown,
    WorkerUp,
    WorldFormed,
)
from jdist.core.messages.observation import StackFrame, Stalled
from jdist.core.messages.protocol import ToAgent
from jdist.core.messages.runs import (
    AbortRun,
    CellRefused,
    CellSpec,
    ExecuteCell,
    InputReply,
    InputRequest,
    Output,
    RankDone,
    Text,
)
from jdist.core.messages.saving import GiveUpSave, PrepareSave, SaveAt
from jdist.core.settings import END_DELAY
from jdist.wire.values.frames import pack

FIRST, SECOND = StartWorker(10, 2, 0), StartWorker(11, 3, 0)
WELCOME = Welcome("here", 1, 2, 2, 2, 60.0, 10.0, 100, False, (FIRST, SECOND))
CELL = ExecuteCell(7, (11, 12), CellSpec("x = 1"))


def form(generation: int, workers: tuple[int, ...], nproc_per_node: tuple[int, ...]) -> FormWorld:
    shape = (len(workers), nproc_per_node, 60.0, (), {}, None, ())
    return FormWorld(generation, workers, "gloo", "env://", "127.0.0.1", 29500, *shape)


class Double:
    """Stands for a part: remembers what it was called with, as (name, arguments)."""

    def __init__(self, **known: Any):
        self.calls: list[tuple[Any, ...]] = []
        self.answers = {name: value for name, value in known.items() if callable(value)}
        self.__dict__.update({name: value for name, value in known.items() if not callable(value)})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            return self.answers[name](*args) if name in self.answers else None

        return call

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, *args in self.calls if called == name]  # type: ignore[misc]


class Bed:
    """Handlers with two workers of an agent, 10 and 11, whose parts are doubles where they would act."""

    def __init__(self, folder: Path):
        self.sent: list[Message] = []
        self.finished: list[int] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.is_ending = False
        self.is_dying = False
        self.is_sent: asyncio.Event | None = None
        self.kernels: dict[int, Any] = {}
        node = SimpleNamespace(
            facts=node_facts(("127.0.0.1", 1)),
            options=JoinOptions(nproc=2, node_rank=-1),
            send=self._send,
            create_task=self.tasks.append,
        )
        self.link, self.prewarmer = Double(ends={}), Double()
        self.resources = Double(with_gpu=lambda message: message)
        self.workers = Double(kernels=self.kernels, awaited=set(), welcome=None, start=self._start, end=self._end)
        self.workers.answers["have_processes"] = lambda _workers: not self.is_dying
        self.store = Double(address=("10.0.0.1", 29500), start=lambda *_: "the store's start")
        self.rank_queries, self.node_queries = Double(record_reply=lambda m: m != Stalled(10, 99)), Double()
        self.code_sync = Double(folder=SimpleNamespace(folders=()))
        self.logs = RankLogs(folder)
        self.ledger = RecoveryLedger()
        parts = AgentParts(
            *(cast("Any", part) for part in (self.link, self.workers, self.store, self.prewarmer)),
            self.ledger,
            OutputRelay(self._send, self.logs),
            *(cast("Any", part) for part in (self.resources, self.rank_queries, self.node_queries, self.code_sync)),
        )
        self.graces: list[float] = []
        self.waits: list[float] = []  # Seconds for which each message that was sent may wait for others.
        self.controller = ControllerHandlers(cast("NodeContext", node), parts, self._finish)
        self.events = WorkerHandlers(cast("NodeContext", node), parts, lambda: self.is_ending)

    def _send(self, message: Message, within: float = 0.0) -> None:
        self.waits.append(within)
        if isinstance(message, Output):  # the number of its agent is random
            message = msgspec.structs.replace(message, number=None)
        self.sent.append(message)
        if self.is_sent is not None:
            self.is_sent.set()

    def _finish(self, code: int, grace: float) -> None:
        self.finished.append(code)
        self.graces.append(grace)

    def _start(self, wanted: StartWorker) -> bool:
        self.kernels[wanted.worker] = kernel(wanted)
        return wanted.incarnation < 9

    def _end(self, workers: tuple[int, ...]) -> None:
        for worker in tuple(workers):
            self.kernels.pop(worker, None)

    def gets(self, *messages: Message) -> None:
        for message in messages:
            self.controller.handle(pack(message))


def kernel(wanted: StartWorker) -> Any:
    return Double(
        worker=wanted.worker, pid=4000 + wanted.worker, wanted=wanted, is_up=True, inherits=False, why_fresh=""
    )


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


# ---------------------------------------------------------------- the controller's messages


def test_every_message_of_the_controller_has_a_handler(bed: Bed) -> None:
    forwarded = {ExecuteCell, FormWorld, AbortRun, PauseRanks, ResumeRanks, PrepareSave, SaveAt, GiveUpSave}
    assert set(bed.controller._handlers) | forwarded == set(typing.get_args(ToAgent))


def test_a_welcome_sets_limits_and_starts_the_workers_that_it_names(bed: Bed) -> None:
    bed.gets(msgspec.structs.replace(WELCOME, address="10.0.0.9"))
    assert bed.workers.welcome == msgspec.structs.replace(WELCOME, address="10.0.0.9")
    assert bed.workers.calls == [("end", bed.kernels), ("start", FIRST), ("start", SECOND)]
    assert bed.link.grace == 60.0
    assert bed.link.calls == [("dial_liveness", "here")]
    assert bed.prewarmer.is_enabled is False


def test_a_second_welcome_without_workers_keeps_those_that_there_are(bed: Bed) -> None:
    bed.gets(WELCOME)
    bed.workers.calls.clear()
    bed.gets(msgspec.structs.replace(WELCOME, workers=()))
    assert bed.workers.calls == []
    assert list(bed.kernels) == [10, 11]


def test_the_first_hello_asks_for_a_place_and_a_later_one_describes_what_is_held(bed: Bed) -> None:
    first = bed.controller.hello()
    assert isinstance(first, AgentHello)
    assert (first.nproc, first.node_rank, first.held) == (2, -1, None)
    bed.gets(WELCOME, CELL)
    later = bed.controller.hello()
    assert later.node_rank == 1
    assert later.held is not None
    assert [(w.worker, w.pid, w.run) for w in later.held.workers] == [(10, 4010, 0), (11, 4011, 7)]
    assert later.held.store == ("10.0.0.1", 29500)


def test_a_worker_that_could_not_be_started_is_not_held(bed: Bed) -> None:
    bed.gets(WELCOME, StartWorker(10, 2, 9))
    held = bed.controller.hello().held
    assert held is not None
    assert [(w.worker, w.incarnation) for w in held.workers] == [(10, 0), (11, 0)]
    bed.gets(EndWorkers((10,)))
    held = bed.controller.hello().held
    assert held is not None
    assert [w.worker for w in held.workers] == [11]


def test_an_interrupt_is_passed_on_by_what_sees_to_it_that_it_arrives(bed: Bed) -> None:
    bed.gets(WELCOME, AbortRun(7, (11,), (), 5.0))
    assert bed.workers.called("abort") == [[AbortRun(7, (11,), (), 5.0)]]


@pytest.mark.parametrize("message", [CELL, form(3, (8, 9, 10, 11), (2, 2))])
def test_what_is_for_workers_is_forwarded_as_it_came(bed: Bed, message: Any) -> None:
    bed.gets(WELCOME)
    bed.workers.calls.clear()
    bed.gets(message)
    assert bed.workers.called("forward") == [[message.workers, pack(message)]]


def test_a_cell_ends_the_warming_up_of_the_workers_that_are_here(bed: Bed) -> None:
    bed.gets(WELCOME, CELL)
    assert [list(workers) for (workers,) in bed.prewarmer.called("record_started")] == [[11]]


def test_a_world_of_another_size_may_give_the_node_another_place(bed: Bed) -> None:
    bed.gets(WELCOME, form(4, (10, 11), (2,)))
    assert bed.controller.hello().node_rank == 0


def test_the_store_is_started_at_the_address_that_other_nodes_reach(bed: Bed) -> None:
    bed.gets(msgspec.structs.replace(WELCOME, address="10.0.0.9"), StartStore("", 0), StartStore("localhost", 0))
    assert bed.tasks == ["the store's start"] * 2
    assert bed.store.called("start") == [
        [StartStore("", 0), "10.0.0.9", "node 1"],
        [StartStore("localhost", 0), "localhost", "node 1"],
    ]


def test_typed_input_goes_to_its_kernel(bed: Bed) -> None:
    bed.gets(WELCOME, InputReply(7, 10, "yes"), InputReply(7, 77, "for no one here"))
    assert bed.kernels[10].calls == [("reply_input", "yes")]


def test_a_liveness_connection_is_dialled_again(bed: Bed) -> None:
    bed.gets(LivenessRenewed("there"))
    assert bed.link.calls == [("dial_liveness", "there")]


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [(Rejected("torch is missing"), 1, "torch is missing"), (Shutdown(3.0), 0, "has been stopped")],
)
def test_the_ends(bed: Bed, capsys: pytest.CaptureFixture[str], message: Message, code: int, says: str) -> None:
    bed.gets(message)
    assert bed.finished == [code]
    assert bed.graces == [getattr(message, "grace", 0.0)]
    assert says in capsys.readouterr().err


# ---------------------------------------------------------------- the workers' events


EMPTY = msgspec.Raw(b"{}")


def stream(text: str, run: int = 7) -> KernelMessage:
    return KernelMessage("stream", run, msgspec.Raw(msgspec.json.encode({"name": "stdout", "text": text})), ())


def done(worker: int, run: int = 7) -> KernelMessage:
    return KernelMessage("jdist_done", run, EMPTY, (pack(RankDone(run, worker, "value")),))


def play(scene: Callable[[], None]) -> None:
    async def main() -> None:
        scene()

    asyncio.run(main())


def test_a_rank_is_paused_or_done_after_all_that_it_wrote(bed: Bed) -> None:
    bed.gets(WELCOME, CELL)
    worker, pause = bed.kernels[11], RankPaused(7, 11, "breakpoint", StackFrame("f", "", 3), 0)
    made = GroupMade(11, 0, 0, GroupSpec((2, 3)), ())

    def scene() -> None:
        bed.events.handle_kernel_message(worker, "iopub", stream("one\n"))
        bed.events.handle_kernel_message(worker, "iopub", stream("two\n"))
        assert bed.sent == [], "it waits for what other ranks write"
        bed.events.handle_kernel_message(worker, "iopub", KernelMessage("jdist_group", 7, EMPTY, (pack(made),)))
        bed.events.handle_kernel_message(worker, "iopub", KernelMessage("jdist_paused", 7, EMPTY, (pack(pause),)))
        bed.events.handle_kernel_message(worker, "iopub", done(11))

    play(scene)
    assert bed.sent == [Output(7, (Text((11,), "stdout", "one\ntwo\n"),)), made, pause, RankDone(7, 11, "value")]
    assert bed.prewarmer.called("record_ended") == [[11]]
    held = bed.controller.hello().held
    assert held is not None
    assert [w.run for w in held.workers] == [0, 0]
    assert [w.groups for w in held.workers] == [(), (made.spec,)], "a controller that is started again is told, too"


def test_the_end_of_a_cell_waits_for_others_but_not_that_on_the_last_rank(bed: Bed) -> None:
    bed.gets(WELCOME, ExecuteCell(7, (10, 11), CellSpec("x = 1")))
    sent = len(bed.waits)

    def scene() -> None:
        for worker in (10, 11):
            bed.events.handle_kernel_message(bed.kernels[worker], "iopub", done(worker))

    play(scene)
    assert bed.waits[sent:] == [END_DELAY, 0.0]


def test_output_is_sent_soon_without_the_end_of_a_cell(bed: Bed) -> None:
    bed.gets(WELCOME)

    async def main() -> None:
        is_sent = bed.is_sent = asyncio.Event()
        bed.events.handle_kernel_message(bed.kernels[10], "iopub", stream("one\n"))
        await asyncio.wait_for(is_sent.wait(), 20)

    asyncio.run(main())
    assert bed.sent == [Output(7, (Text((10,), "stdout", "one\n"),))]


def test_a_question_of_a_cell_comes_after_its_output(bed: Bed) -> None:
    bed.gets(WELCOME)
    content = msgspec.Raw(b'{"prompt": "name? ", "password": true}')

    def scene() -> None:
        bed.events.handle_kernel_message(bed.kernels[10], "iopub", stream("one\n"))
        bed.events.handle_kernel_message(bed.kernels[10], "stdin", KernelMessage("input_request", 7, content, ()))

    play(scene)
    assert bed.sent == [Output(7, (Text((10,), "stdout", "one\n"),)), InputRequest(7, 10, "name? ", True)]


def test_a_worker_that_comes_up_is_reported_and_imports_what_was_synced(bed: Bed) -> None:
    bed.gets(WELCOME)
    greetings = (UseImportPath(ImportPath("/work", ("/src",))), CodeSynced(("/code",), ()))
    bed.code_sync.greetings = lambda: greetings
    bed.events.handle_up(bed.kernels[10])
    assert bed.workers.called("send") == [[10, message] for message in greetings]
    assert bed.sent == [WorkerUp(10, 4010, 0)]


def test_what_a_worker_says_is_recorded_and_forwarded_unless_it_is_late(bed: Bed) -> None:
    bed.gets(WELCOME)
    formed = WorldFormed(10, 5, "cpu", ())
    bed.events.handle_worker_message(formed)
    bed.events.handle_worker_message(Stalled(10, 99))  # the double of the queries calls it late
    assert bed.resources.called("with_gpu") == [[formed]]
    held = bed.controller.hello().held
    assert held is not None
    assert [w.generation for w in held.workers] == [5, 0]


def test_a_cell_for_a_worker_that_dies_is_begun_on_none_and_its_loss_says_which_was_the_last(bed: Bed) -> None:
    bed.gets(WELCOME, CELL)
    bed.is_dying = True
    bed.gets(ExecuteCell(8, (10, 11), CellSpec("y = 2")))
    bed.events.handle_down(WorkerDown(10, 0, "killed"))
    assert bed.sent == [CellRefused(8, (10, 11)), WorkerDown(10, 0, "killed", last_run=7)]
    assert len(bed.workers.called("forward")) == 1


def test_a_lost_worker_is_reported_unless_the_agent_ends(bed: Bed) -> None:
    bed.events.handle_down(WorkerDown(10, 3, "killed"))
    bed.is_ending = True
    bed.events.handle_down(WorkerDown(11, 0, "killed with the agent"))
    assert bed.sent == [WorkerDown(10, 3, "killed", last_run=0)]
    assert bed.prewarmer.called("record_ended") == [[10]]
