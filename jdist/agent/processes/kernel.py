"""Start, connect to and reap one worker process, an ipykernel, and read its Jupyter messages.

Of a Jupyter message, only the fields are read that jdist needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from jupyter_client.session import Session
from msgspec import Struct

from jdist.agent.node import NodeContext
from jdist.agent.processes.exits import is_dying
from jdist.agent.processes.forkserver import ProcessRequest
from jdist.agent.processes.helpers import SIGNAL as STACK_SIGNAL
from jdist.agent.processes.helpers import read_place
from jdist.agent.processes.starter import Starter
from jdist.core.errors import ProtocolError
from jdist.core.messages.base import AGENT_IDENTITY, MESSAGE_ID
from jdist.core.messages.membership import StartWorker
from jdist.core.messages.nodes import Lack
from jdist.core.settings import WorkerSpec
from jdist.wire.transport.sockets import dial_ipc, subscribe_ipc

_DELIMITER = b"<IDS|MSG>"


class KernelMessage(Struct, frozen=True):
    """A message from a kernel's iopub or stdin socket."""

    kind: str
    run: int  # 0 when no run of jdist is its parent.
    content: msgspec.Raw
    buffers: tuple[bytes, ...]


class StreamContent(Struct):
    """Text written to a stream."""

    name: Literal["stdout", "stderr"]
    text: str


class DisplayContent(Struct):
    """A display or a result."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class ClearContent(Struct):
    """A request to clear the output."""

    wait: bool = False


class CommMessage(Struct):
    """A message of a comm, such as that of a widget."""

    comm_id: str = ""
    target_name: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")

    def state_set(self) -> dict[str, Any]:
        """What it sets in a widget's state, if that is all that it does."""
        try:
            change = msgspec.json.decode(self.data, type=_WidgetChange)
        except msgspec.DecodeError:
            return {}
        return change.state if change.method in ("update", "echo_update") else {}


class _WidgetChange(Struct):
    method: str = ""
    state: dict[str, Any] = {}


class InputContent(Struct):
    """A request for a line of input."""

    prompt: str = ""
    password: bool = False


class _Header(Struct):
    msg_type: str = ""
    msg_id: str = ""


_header = msgspec.json.Decoder(_Header)
_C = TypeVar("_C", bound=Struct)


def parse(frames: list[bytes]) -> KernelMessage:
    """Raises ProtocolError for frames that are no Jupyter message."""
    try:
        at = frames.index(_DELIMITER)
        header = _header.decode(frames[at + 2])
        parent = _header.decode(frames[at + 3])
        content = msgspec.Raw(frames[at + 5])
    except (ValueError, IndexError, msgspec.MsgspecError, RecursionError) as e:
        raise ProtocolError(f"not a message of a kernel's: {e}") from None
    run = parent.msg_id.removeprefix(MESSAGE_ID)
    number = int(run) if run != parent.msg_id and run.isdecimal() else 0
    return KernelMessage(header.msg_type, number, content, tuple(frames[at + 6 :]))


def read_content(message: KernelMessage, kind: type[_C]) -> _C:
    """A message's content. Text that is not UTF-8 (a file name, say) is sent as it is. Raises ProtocolError."""
    try:
        return msgspec.json.decode(message.content, type=kind)
    except (UnicodeDecodeError, msgspec.DecodeError):
        try:
            return msgspec.json.decode(bytes(message.content).decode(errors="replace"), type=kind)
        except (msgspec.DecodeError, RecursionError) as e:
            raise ProtocolError(f"a kernel's message cannot be read: {e}") from None


_HEARD = 0.2  # Seconds for a control thread to hear of an interrupt, before the agent interrupts the process itself.
_LAST_OUTPUT = 1.0  # Seconds from a process's end until its output has been read, where its socket's end is not seen.
_PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}


class Kernel:
    """One worker's process and sockets. ``number`` is the process's serial number on this agent."""

    def __init__(
        self,
        node: NodeContext,
        number: int,
        wanted: StartWorker,
        gpu_index: int,
        on_frames: Callable[[Kernel, str, list[bytes]], None],  # Called with the kernel, the channel and the message.
        on_exit: Callable[[Kernel], None],  # Called once, when the process has ended; it is not reaped here.
    ):
        self.wanted = wanted
        self.worker = wanted.worker  # Its id, for life.
        self.gpu_index = gpu_index  # The GPU that is its own: the lowest that none of the node's other workers has.
        self.identity = b"w-%d" % number  # At the agent's socket.
        self.connection_file = node.directory / f"kernel-{number}.json"
        # What the process itself writes outside of any cell, such as the traceback of a crash.
        self.raw_log = node.directory / f"kernel-{number}.raw.log"
        self.stack_file = node.directory / f"kernel-{number}.stack"
        self.pid = 0
        self.is_dismissed = False  # The agent has ended it, or is about to: its end is not reported.
        self.is_overdue = False  # It has said that it did not end within its grace.
        self.is_subscribed = False  # Its output is received.
        self.has_greeted = False
        self.lacks: tuple[Lack, ...] = ()  # What its torch lacks, as it said then.
        self.fatal_text = ""  # What faulthandler wrote when a signal was about to end the process.
        self.is_stuck = False  # It was ended because it could neither hand its names over nor end by itself.
        self.why_stuck = ""  # Why it could not, as far as is known.
        self.successor: StartWorker | None = None  # What is to be started once this process has ended.
        self.inherits = False  # It takes over the names of the process before it.
        self.why_fresh = ""  # Why the process before it did not hand its names over.
        self.device = ""  # As its worker reported it last: "cpu", "cuda:0".
        self._on_exit = on_exit
        self._pidfd = -1
        self._is_killed = False
        self._unheard: asyncio.TimerHandle | None = None  # It was not heard yet that its main thread is interrupted.
        self._has_all_output = False  # Its output has ended, as its process has, or is about to.
        self._waits_for_output: asyncio.TimerHandle | None = None  # Its process has ended, and is reported then.
        self._session = Session(key=os.urandom(16).hex().encode(), check_pid=False)
        self._session.pack = msgspec.json.encode  # a tenth of the time of the default
        prefix = str(node.directory / f"k{number}")
        self._files = [self.connection_file, self.stack_file, *(Path(f"{prefix}-{n}") for n in _PORTS.values())]
        info = {"transport": "ipc", "ip": prefix, **_PORTS, "key": self._session.key.decode()}
        with open(os.open(self.connection_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(msgspec.json.encode({**info, "signature_scheme": "hmac-sha256", "kernel_name": "jdist"}))

        on_stdin, on_iopub = partial(on_frames, self, "stdin"), partial(on_frames, self, "iopub")
        context = node.zmq_context
        self._stdin = dial_ipc(context, f"{prefix}-{_PORTS['stdin_port']}", on_stdin, identity=AGENT_IDENTITY)
        self._iopub = subscribe_ipc(context, f"{prefix}-{_PORTS['iopub_port']}", on_iopub, self._handle_output_end)

    async def start(self, starter: Starter, spec: WorkerSpec, env: dict[str, str]) -> None:
        """Start the process; ``on_exit`` is called once when it ends. Raises LaunchError."""
        request = ProcessRequest("jdist.worker.main:main", msgspec.json.encode(spec), str(self.raw_log), env)
        self.pid = await starter.start(request)
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._handle_exit)
        if self._is_killed:
            self.kill()

    @property
    def is_up(self) -> bool:
        return self.is_subscribed and self.has_greeted

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended, or is ending after it was killed."""
        return bool(self.pid) if self._pidfd < 0 else is_dying(self._pidfd)

    def reply_input(self, text: str) -> None:
        self._stdin.send(self._session.serialize(self._session.msg("input_reply", {"value": text, "status": "ok"})))

    def kill(self) -> None:
        """SIGKILL, as soon as the process is there; ``on_exit`` follows."""
        self._is_killed = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal; to a process that has ended, nothing."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)  # type: ignore[attr-defined,unused-ignore]

    async def find_place(self) -> str:
        """Where the main thread is, in words, also while Python cannot run there; "" if that cannot be found."""
        if not self.is_up:  # the signal could end a process that has not been set up for it
            return ""
        return await read_place(self.stack_file, lambda: self.signal(STACK_SIGNAL))

    async def explain_silence(self) -> str:
        """Why a process that is to be killed has not answered."""
        place = await self.find_place()
        return f"C code held the interpreter lock at {place}" if place else "it did not even react to a signal"

    def await_interrupt(self) -> None:
        """Interrupt the process from outside unless its control thread hears of the interrupt soon.

        While C code holds the interpreter's lock, that thread cannot run; but much of such code looks for signals. A
        process that was stopped (SIGSTOP) is continued, as it could not be interrupted otherwise.
        """
        self.handle_interrupt_heard()
        self.signal(signal.SIGCONT)
        loop = asyncio.get_running_loop()
        self._unheard = loop.call_later(_HEARD, self.signal, signal.SIGINT)

    def handle_interrupt_heard(self) -> None:
        """The control thread has heard of the interrupt."""
        if self._unheard is not None:
            self._unheard.cancel()

    def _handle_exit(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        with contextlib.suppress(OSError):  # what its cells have started ends with it, as under torchrun
            os.killpg(self.pid, signal.SIGKILL)
        self._waits_for_output = loop.call_later(0 if self._has_all_output else _LAST_OUTPUT, self._report_exit)

    def _handle_output_end(self) -> None:
        self._has_all_output = True
        if self._waits_for_output is not None:
            self._waits_for_output.cancel()
            self._report_exit()

    def _report_exit(self) -> None:
        self._waits_for_output = None
        self._iopub.drain()
        self.close()
        self._on_exit(self)

    def close(self) -> None:
        """Close sockets and remove the files; the process is not touched."""
        self.handle_interrupt_heard()
        if self._waits_for_output is not None:
            self._waits_for_output.cancel()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._stdin.close()
        self._iopub.close()
        for path in self._files:
            path.unlink(missing_ok=True)
