"""Workers and their kernels: real processes that do nothing, spoken for by this one on the sockets of a worker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import zmq
from jupyter_client.session import Session

from jdist.agent.node import JoinOptions, NodeContext, node_facts
from jdist.agent.processes import handover
from jdist.agent.processes import kernel as kernel_module
from jdist.agent.processes import workers as module
from jdist.agent.processes.forkserver import ProcessRequest
from jdist.agent.processes.handover import OWN
from jdist.agent.processes.helpers import SIGNAL as STACK_SIGNAL
from jdist.agent.processes.kernel import Kernel, KernelMessage
from jdist.agent.processes.workers import Workers
from jdist.core.errors import LaunchError
from jdist.core.launchers import WORKER
from jdist.core.messages.base import Message
from jdist.core.messages.membership import (
    EndOverdue,
    LauncherTask,
    NamesSaved,
    RequestHandover,
    Shutdown,
    StartWorker,
    Welcome,
    WorkerDown,
    WorkerFails,
    WorkerHello,
    WorldFormed,
)
from jdist.core.messages.protocol import ToWorker
from jdist.core.messages.runs import AbortRun, InterruptHeard
from jdist.core.settings import WorkerSpec
from jdist.wire.processes import has_ended
from jdist.wire.transport.sockets import Port, dial_ipc, new_context
from jdist.wire.values.frames import Unpacker, pack
from jdist.worker.session.crash import connect

DEADLINE = 30.0
WELCOME = Welcome("here", 0, 1, 2, 0, 60.0, 0.0, 100, False)
SLEEP = "import time; time.sleep(1000)"


class Starter:
    """Starts Python with ``code`` in place of a worker; fails with ``error``."""

    def __init__(self) -> None:
        self.code = SLEEP
        self.error = ""
        self.requests: list[ProcessRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self, request: ProcessRequest) -> int:
        self.requests.append(request)
        await self.gate.wait()
        if self.error:
            raise LaunchError(self.error)
        return self._spawn(request.log)

    def _spawn(self, path: str) -> int:
        with open(path, "wb") as log:
            ignore = partial(signal.signal, STACK_SIGNAL, signal.SIG_IGN)  # it writes no stack
            process = subprocess.Popen([sys.executable, "-c", self.code], stderr=log, preexec_fn=ignore)  # noqa: PLW1509
        process.returncode = 0  # the reaper waits for it
        return process.pid

    def spec(self, n: int = -1) -> WorkerSpec:
        return msgspec.json.decode(self.requests[n].spec, type=WorkerSpec)

    def close(self) -> None:
        pass


class Reaper:
    """Waits for the workers alone: the children of this process are other tests' as well."""

    def status(self, pid: int) -> int | None:
        return os.waitpid(pid, 0)[1]

    def end_all(self, timeout: float) -> None:
        pass


class Listener:
    """Remembers events, as (name, arguments), and lets a test wait for so many."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._changed = asyncio.Event()

    def _add(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, count: int) -> list[tuple[Any, ...]]:
        async with asyncio.timeout(DEADLINE):
            while len(self.events) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.events

    def handle_kernel_message(self, kernel: Kernel, channel: str, message: KernelMessage) -> None:
        self._add("message", kernel.worker, channel, message.kind)

    def handle_worker_message(self, message: Any) -> None:
        self._add("says", message)

    def handle_up(self, kernel: Kernel) -> None:
        self._add("up", kernel.worker)

    def handle_exit(self) -> None:
        self._add("exit")

    def handle_down(self, down: WorkerDown) -> None:
        self._add("down", down.worker, down.incarnation, down.reason)

    def handle_overdue(self, overdue: EndOverdue) -> None:
        self._add("overdue", overdue)


class Bed:
    """The workers of a node, in a folder of their own."""

    def __init__(self, folder: Path, options: JoinOptions):
        self.folder = folder
        self.starter = Starter()
        self.listener = Listener()
        self.zmq = new_context()
        self.tasks: set[asyncio.Task[None]] = set()
        node = SimpleNamespace(
            zmq_context=self.zmq,
            endpoint=SimpleNamespace(cluster="c0ffee"),
            options=options,
            facts=msgspec.structs.replace(node_facts(("127.0.0.1", 1)), gpus=8),
            directory=folder,
            starter=self.starter,
            create_task=lambda work: self.tasks.add(asyncio.get_running_loop().create_task(work)),
        )
        self.workers = Workers(cast("NodeContext", node))
        self.workers.listener = self.listener
        self.workers.welcome = msgspec.structs.replace(WELCOME, address="127.0.0.1")

    async def started(self, *wanted: StartWorker) -> None:
        for each in wanted:
            assert self.workers.start(each)
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*self.tasks)

    async def until_greeted(self, worker: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while not self.workers.kernels[worker].has_greeted:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def pid(self, worker: int) -> int:
        return self.workers.kernels[worker].pid

    def close(self) -> None:
        pids = [k.pid for k in self.workers.kernels.values() if k.pid]
        self.workers.close()
        for pid in pids:
            os.waitpid(pid, 0)
        self.zmq.destroy(linger=0)


class PlayedWorker:
    """The sockets of a worker whose process does nothing; with them it is up."""

    def __init__(self, bed: Bed, number: int):
        self._bed = bed
        self._spec = bed.starter.spec(number)
        self.heard: list[Any] = []
        unpack: Unpacker[Any] = Unpacker(ToWorker)
        self._control = dial_ipc(
            bed.zmq, self._spec.agent_socket, lambda frames: self.heard.append(unpack(frames[-1])), self._spec.identity
        )
        self._iopub = bed.zmq.socket(zmq.XPUB)
        self._iopub.bind(f"ipc://{bed.folder / f'k{number}'}-2")

    async def be_up(self) -> None:
        self.say(WorkerHello(self._spec.worker, self._bed.pid(self._spec.worker)))
        await self._bed.until_greeted(self._spec.worker)
        while not self._iopub.poll(0):  # noqa: ASYNC110 — zmq subscribes on a thread of its own
            await asyncio.sleep(0.001)
        self.write("status")
        await self._bed.listener.until(len(self._bed.listener.events) + 2)
        assert ("up", self._spec.worker) in self._bed.listener.events

    def say(self, message: Message) -> None:
        self._control.send([pack(message)])

    def write(self, kind: str) -> None:
        session = Session(key=b"any")
        self._iopub.send_multipart([b"topic", *session.serialize(session.msg(kind, {}))])

    async def until_asked(self) -> Any:
        """The agent's first message."""
        async with asyncio.timeout(DEADLINE):
            while not self.heard:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return self.heard[0]

    def close(self) -> None:
        self._control.close(0)
        self._iopub.close(0)


Scene = Callable[[Bed], Coroutine[Any, Any, None]]
Play = Callable[..., None]


@pytest.fixture
def play(runtime_directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(module, "ChildReaper", Reaper)
    monkeypatch.setattr(module, "_TOGETHER", 0.01)

    def play(scene: Scene, options: JoinOptions | None = None) -> None:
        folder = runtime_directory / f"agent-{os.urandom(4).hex()}"
        folder.mkdir()

        async def main() -> None:
            bed = Bed(folder, options or JoinOptions())
            try:
                await scene(bed)
            finally:
                bed.close()

        asyncio.run(main())
        left = {path.name for path in folder.iterdir() if not path.name.endswith(".raw.log")}
        assert left <= {"agent", "names"}, "no socket and no connection file of a worker stays"
        shutil.rmtree(folder)

    return play


def read(path: str) -> tuple[int, dict[str, Any]]:
    return stat.S_IMODE(os.stat(path).st_mode), json.loads(Path(path).read_text())


ONE, TWO = StartWorker(10, 0, 0), StartWorker(11, 1, 4)


def test_a_worker_gets_its_spec_its_environment_and_the_lowest_gpu_that_is_free(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE, TWO)
        await bed.started(StartWorker(10, 0, 1))
        one, two, again = (bed.starter.spec(n) for n in range(3))
        assert (one.worker, one.rank, one.gpu_index, two.gpu_index, again.gpu_index) == (10, 0, 0, 1, 0)
        assert len({one.identity, two.identity, again.identity}) == 3
        assert two.agent_socket == str(bed.folder / "agent")
        assert await bed.listener.until(1) == [("exit",)]
        assert bed.starter.requests[1].entry == "jdist.worker.main:main"
        assert bed.starter.requests[1].env.items() >= {WORKER: "1", "RANK": "1", "OMP_NUM_THREADS": "1"}.items()

    play(scene)


@pytest.mark.parametrize(("gpu", "index"), [(3, 3), (-1, 8)])
def test_a_task_has_the_gpu_that_its_launcher_gave_it_or_none(play: Play, gpu: int, index: int) -> None:
    async def scene(bed: Bed) -> None:
        bed.workers.welcome = msgspec.structs.replace(bed.workers.welcome, is_task=True, keeps_launcher=True)
        await bed.started(ONE)
        assert bed.starter.spec().gpu_index == index
        assert bed.starter.requests[0].env["PMIX_RANK"] == "5"

    play(scene, JoinOptions(task=LauncherTask("mpirun", 5, 8, gpu=gpu), launcher={"PMIX_RANK": "5"}))


def test_the_connection_file_is_the_users_alone_and_names_sockets_in_the_folder(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        mode, info = read(bed.starter.spec().connection_file)
        assert mode == 0o600
        assert (info["transport"], info["ip"]) == ("ipc", str(bed.folder / "k0"))

    play(scene)


def test_a_worker_is_up_by_its_hello_and_its_output(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        spec = bed.starter.spec()
        heard: list[list[bytes]] = []
        control = dial_ipc(bed.zmq, spec.agent_socket, heard.append, identity=spec.identity)
        iopub = bed.zmq.socket(zmq.XPUB)
        iopub.bind(f"ipc://{bed.folder / 'k0'}-2")
        try:
            control.send([pack(WorkerHello(10, bed.pid(10)))])
            await bed.until_greeted(10)
            assert bed.listener.events == [], "its output may still be lost"
            while not iopub.poll(0):  # noqa: ASYNC110 — zmq subscribes on a thread of its own
                await asyncio.sleep(0.001)
            session = Session(key=b"any")
            iopub.send_multipart([b"topic", *session.serialize(session.msg("status", {}))])
            assert await bed.listener.until(2) == [("up", 10), ("message", 10, "iopub", "status")]

            control.send([pack(WorldFormed(10, 1, "cpu", ()))])
            assert (await bed.listener.until(3))[2] == ("says", WorldFormed(10, 1, "cpu", ()))
            assert bed.workers.send(10, Shutdown())
            assert not bed.workers.send(77, Shutdown())
            async with asyncio.timeout(DEADLINE):
                while not heard:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert heard == [[pack(Shutdown())]]
        finally:
            control.close(0)
            iopub.close(0)

    play(scene)


def give_time(bed: Bed, grace: float) -> None:
    bed.workers.welcome = msgspec.structs.replace(bed.workers.welcome, end_grace=grace)


def test_a_worker_is_asked_to_end_before_its_successor_starts(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        give_time(bed, 30.0)
        await bed.started(ONE)
        pid, worker = bed.pid(10), PlayedWorker(bed, 0)
        try:
            await worker.be_up()
            assert bed.workers.start(StartWorker(10, 0, 1))
            assert (await worker.until_asked()).grace == 30.0
            assert len(bed.starter.requests) == 1
            assert not has_ended(pid)
            worker.write("last words")
            worker.say(WorldFormed(10, 1, "cpu", ()))
            before = len(bed.listener.events)
            os.kill(pid, signal.SIGKILL)
            worker.close()
            events = await bed.listener.until(before + 2)
            assert events[before:] == [("message", 10, "iopub", "last words"), ("exit",)]
            async with asyncio.timeout(DEADLINE):
                while len(bed.starter.requests) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        finally:
            worker.close()

    play(scene)


def test_a_second_request_does_not_wait_for_the_end(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        give_time(bed, 30.0)
        await bed.started(ONE)
        pid, worker = bed.pid(10), PlayedWorker(bed, 0)
        try:
            await worker.be_up()
            assert bed.workers.start(StartWorker(10, 0, 1))
            await worker.until_asked()
            await bed.started(StartWorker(10, 0, 2))
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it was killed
            assert len(bed.starter.requests) == 2
        finally:
            worker.close()

    play(scene)


@pytest.mark.parametrize("doing", ["it was in the exit function f", "it did not even react to a signal"])
def test_workers_end_side_by_side_and_who_is_late_is_reported_and_killed(
    play: Play, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    monkeypatch.setattr(module, "_OVERDUE", 1.0)
    grace = 1.0  # in which one of them is killed, and that is seen

    async def scene(bed: Bed) -> None:
        await bed.started(ONE, TWO)
        workers = PlayedWorker(bed, 0), PlayedWorker(bed, 1)
        pids = bed.pid(10), bed.pid(11)
        try:
            for worker in workers:
                await worker.be_up()
            ending = asyncio.ensure_future(bed.workers.end_all(grace))
            assert [(await worker.until_asked()).grace for worker in workers] == [grace] * 2
            assert not bed.workers.kernels, "they get no cells any more"
            workers[1].say(InterruptHeard(11))
            os.kill(pids[0], signal.SIGKILL)
            if "exit function" in doing:
                workers[1].say(EndOverdue(11, 1, grace, doing))
            await ending
            overdue = [event for event in bed.listener.events if event[0] == "overdue"]
            assert overdue == [("overdue", EndOverdue(11, 1, grace, doing))]
            assert all(has_ended(pid) for pid in pids)
        finally:
            for worker in workers:
                worker.close()

    play(scene)


def test_a_worker_that_is_not_up_yet_is_killed(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        pid = bed.pid(10)
        await bed.workers.end_all(30.0)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    play(scene)


def test_what_a_replaced_worker_still_says_is_dropped(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        old = bed.starter.spec()
        await bed.started(StartWorker(10, 0, 1))
        late = dial_ipc(bed.zmq, old.agent_socket, lambda _: None, identity=old.identity)
        fresh = dial_ipc(bed.zmq, old.agent_socket, lambda _: None, identity=bed.starter.spec().identity)
        try:
            late.send([pack(WorkerHello(10, 1))])
            fresh.send([pack(WorkerHello(10, 2))])
            await bed.until_greeted(10)
            assert await bed.listener.until(1) == [("exit",)], "the end of the one that was replaced is not reported"
        finally:
            late.close(0)
            fresh.close(0)

    play(scene)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGSEGV, "killed by signal 11 (SIGSEGV)"), (signal.SIGTERM, "killed by signal 15 (SIGTERM)")],
)
def test_the_end_of_a_process_is_explained(play: Play, number: int, reason: str) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE, TWO)
        os.kill(bed.pid(11), number)
        assert await bed.listener.until(2) == [("exit",), ("down", 11, 4, reason)]
        assert list(bed.workers.kernels) == [10]

    play(scene)


def test_its_last_lines_are_part_of_the_reason(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        bed.starter.code = "import sys; sys.exit('no torch here')"
        await bed.started(ONE)
        await bed.listener.until(2)
        assert bed.listener.events[-1] == ("down", 10, 0, "exited with code 1; it last wrote: no torch here")

    play(scene)


def test_a_worker_that_fails_is_down_at_once_and_its_successor_starts_when_it_has_ended(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        pid, spec = bed.pid(10), bed.starter.spec()
        with connect(spec.names_socket, spec.identity) as line:
            line.send(OWN + pack(WorkerFails(6, None)))
            assert await bed.listener.until(2) == [("exit",), ("down", 10, 0, "killed by signal 6 (SIGABRT)")]
            assert bed.workers.start(StartWorker(10, 0, 1))
            assert len(bed.starter.requests) == 1, "it still hands its names over"
            fd = os.memfd_create("names")
            socket.send_fds(line, [OWN + pack(NamesSaved(5))], [fd])
            os.close(fd)
            os.kill(pid, signal.SIGABRT)
            await bed.listener.until(3)
            await bed.started()
            assert (bed.starter.spec().inherits, spec.inherits) == (True, False)
        assert bed.workers.kernels[10].inherits
        await bed.started(StartWorker(10, 0, 2))
        assert bed.starter.spec().inherits, "they have not been asked for yet"

    play(scene)


def greeting(bed: Bed, worker: int, heard: list[list[bytes]]) -> Port:
    """A worker's socket, which has said hello."""
    spec = bed.starter.spec()
    control = dial_ipc(bed.zmq, spec.agent_socket, heard.append, identity=spec.identity)
    control.send([pack(WorkerHello(worker, bed.pid(worker)))])
    return control


def test_a_worker_that_cannot_be_freed_is_asked_for_its_names_and_keeps_its_gpu(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(StartWorker(9, 1, 0), ONE)
        pid, spec = bed.pid(10), bed.starter.spec()
        heard: list[list[bytes]] = []
        control = greeting(bed, 10, heard)
        try:
            await bed.until_greeted(10)
            assert bed.workers.start(StartWorker(10, 0, 1, keeps_names=True))
            async with asyncio.timeout(DEADLINE):
                while not heard:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert heard == [[pack(RequestHandover())]]
            assert not bed.workers.have_processes((10,))
            await bed.started(StartWorker(9, 1, 1))
            with connect(spec.names_socket, spec.identity) as line:
                fd = os.memfd_create("names")
                socket.send_fds(line, [OWN + pack(NamesSaved(5))], [fd])
                os.close(fd)
                line.send(OWN + pack(WorkerFails(6, None)))  # it fails as well, which changes nothing
                await bed.listener.until(1)
                assert len(bed.starter.requests) == 3, "it still hands its names over"
                os.kill(pid, signal.SIGKILL)
                assert await bed.listener.until(2) == [("exit",), ("exit",)], "neither end is reported"
                await bed.started()
        finally:
            control.close(0)
        assert (bed.starter.spec().inherits, bed.starter.spec().gpu_index) == (True, 1)
        assert {k.worker: k.wanted.incarnation for k in bed.workers.kernels.values()} == {9: 1, 10: 1}

    play(scene)


def test_a_worker_that_does_not_answer_is_ended_and_one_that_cannot_be_asked_at_once(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_ANSWER", 0.05)

    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        await bed.started(StartWorker(10, 0, 1, keeps_names=True))
        assert await bed.listener.until(1) == [("exit",)]
        assert len(bed.starter.requests) == 2
        pid = bed.pid(10)
        control = greeting(bed, 10, [])
        try:
            await bed.until_greeted(10)
            assert bed.workers.start(StartWorker(10, 0, 2, keeps_names=True))
            assert await bed.listener.until(2) == [("exit",), ("exit",)]
            await bed.started()
        finally:
            control.close(0)
        assert has_ended(pid)
        assert not bed.starter.spec().inherits
        assert bed.workers.kernels[10].wanted.incarnation == 2

    play(scene)


def test_a_second_request_does_not_wait_for_a_worker_that_fails(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        pid, spec = bed.pid(10), bed.starter.spec()
        with connect(spec.names_socket, spec.identity) as line:
            line.send(OWN + pack(WorkerFails(11, None)))
            await bed.listener.until(2)
            assert bed.workers.start(StartWorker(10, 0, 1))
            await bed.started(StartWorker(10, 0, 2))
        assert await bed.listener.until(3) == [("exit",), ("down", 10, 0, "killed by signal 11 (SIGSEGV)"), ("exit",)]
        assert has_ended(pid)
        assert not bed.starter.spec().inherits
        assert [k.wanted.incarnation for k in bed.workers.kernels.values()] == [2]

    play(scene)


def test_a_worker_that_cannot_be_started_is_down(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        bed.starter.error = "no forks left"
        await bed.started(ONE)
        assert bed.listener.events == [("down", 10, 0, "no forks left")]
        assert not bed.workers.kernels

    play(scene)


def test_one_that_is_ended_is_not_reported(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        await bed.started(ONE, TWO)
        pid = bed.pid(10)
        bed.workers.end((10, 77))
        assert await bed.listener.until(1) == [("exit",)]
        assert has_ended(pid)
        assert list(bed.workers.kernels) == [11]

    play(scene)


def test_one_that_is_ended_before_its_process_is_there_is_killed_when_it_comes(play: Play) -> None:
    async def scene(bed: Bed) -> None:
        bed.starter.gate.clear()
        assert bed.workers.start(ONE)
        kernel = bed.workers.kernels[10]
        await asyncio.sleep(0)
        bed.workers.end((10,))
        bed.starter.gate.set()
        assert await bed.listener.until(1) == [("exit",)]
        assert has_ended(kernel.pid)

    play(scene)


def test_one_that_does_not_get_ready_is_ended(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UP_TIMEOUT", 0.05)

    async def scene(bed: Bed) -> None:
        await bed.started(ONE)
        events = await bed.listener.until(2)
        assert events[-1][:3] == ("down", 10, 0)
        assert "signal 9" in events[-1][3]

    play(scene)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_worker_that_does_not_hear_of_an_interrupt_is_interrupted_from_outside(
    play: Play, is_heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_module, "_HEARD", 1.0)

    async def scene(bed: Bed) -> None:
        bed.starter.code = "import signal, sys; signal.sigwait([signal.SIGINT]) and sys.exit(42)"
        blocking = bed.folder / "blocking.raw.log"
        block = f"signal.pthread_sigmask(0, [signal.SIGINT]); open({str(blocking)!r}, 'w').close()"
        bed.starter.code = f"import signal; {block}\n{bed.starter.code}"
        await bed.started(ONE)
        worker = PlayedWorker(bed, 0)
        try:
            await worker.be_up()
            async with asyncio.timeout(DEADLINE):
                while not blocking.exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            began = time.monotonic()
            bed.workers.abort(AbortRun(7, (10,), (), 5.0))
            asked = await worker.until_asked()
            assert began <= asked.at <= time.monotonic()
            if is_heard:
                worker.say(InterruptHeard(10))
                await asyncio.sleep(1.5 * kernel_module._HEARD)
                assert not has_ended(bed.pid(10))
            else:
                before = len(bed.listener.events)
                await bed.listener.until(before + 2)
                assert bed.listener.events[-1] == ("down", 10, 0, "exited with code 42")
        finally:
            worker.close()

    play(scene)
