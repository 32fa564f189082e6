"""The worker's process: a stock ipykernel with jdist's control thread in it. Entered by fork, or by ``python -m``."""

import atexit
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import torch
from ipykernel.kernelapp import IPKernelApp

from jdist.core.settings import WorkerSpec
from jdist.wire import log
from jdist.wire.processes import set_name
from jdist.wire.values.frames import encodable
from jdist.worker.cells.output import FdCapture, OwnStreams
from jdist.worker.compat.ipykernel import (
    flush_when_needed,
    open_pipes,
    poll_until_subscribed,
    refuse_children,
    remember_subscribers,
    use_own_streams,
)
from jdist.worker.control import ControlThread
from jdist.worker.ending import Ending

_SUBSCRIBER_POLL = 0.02


class WorkerApp(IPKernelApp):
    """A kernel that drops no output, however long its agent takes to subscribe, up to the end of its process."""

    own_streams: tuple[Any, ...] = ()

    def init_iopub(self, context: Any) -> None:
        """Lift the limit on waiting messages: by default the 1001st is dropped, a cell's end among them.

        zmq takes over a limit for those who will connect when the socket is bound, so it must have none before.
        """
        context.sndhwm = 0
        super().init_iopub(context)  # type: ignore[no-untyped-call]
        del context.sndhwm

    def init_shell(self) -> None:
        """Make the shell, and flush at exit, after the shell's own exit function: releasing names may print."""
        atexit.register(self._flush)
        super().init_shell()  # type: ignore[no-untyped-call]

    def _flush(self) -> None:
        for stream in self.own_streams:
            stream.flush()


def main(spec_json: bytes) -> NoReturn:
    """Run the kernel until the agent ends it."""
    spec = msgspec.json.decode(spec_json, type=WorkerSpec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the kernel runs user code
    log.configure("worker", os.fdopen(os.dup(2), "w", errors="replace"))  # the log file; 2 becomes cells' stderr
    ending = Ending()
    if spec.stack_file:
        faulthandler.register(spec.stack_signal, open(spec.stack_file, "a"), all_threads=False)  # noqa: SIM115
    set_name(f"jdist-rank-{spec.rank}")
    sys.argv = [""]  # as at Python's prompt; it still has the forkserver's
    torch.set_num_threads(spec.threads)
    _seed()
    app: Any = WorkerApp.instance(
        connection_file=spec.connection_file,
        capture_fd_output=False,
        log_level=logging.WARNING,
        parent_handle=1,  # "the parent is watched by others": the agent's death ends us without ipykernel's help
        ignore_cwd=True,  # the kernels that send cells say where modules are: see worker/cells/imports
    )
    app.config.HistoryManager.enabled = False  # no database of what was typed: the notebook has it
    refuse_children()
    remember_subscribers()
    app.initialize([])
    app.own_streams = sys.stdout, sys.stderr
    for stream in app.own_streams:
        flush_when_needed(stream)  # each write to one flushes the other, and a flush is a wait for another thread
    captures = out, err = FdCapture(1, sys.stdout), FdCapture(2, sys.stderr)
    out.keep_order_with([err])
    err.keep_order_with([out])
    use_own_streams(sys.stdout, sys.stderr)
    control = ControlThread(spec, app, OwnStreams(captures), ending)
    _pack_fast(app.session)
    gc.freeze()  # collections, and searches for old process groups, skip what the kernel is made of
    control.start()
    poll_until_subscribed(app.iopub_thread, _SUBSCRIBER_POLL)
    open_pipes(app.iopub_thread)
    app.start()
    ending.finish()


def _seed() -> None:
    """Seed torch and numpy anew, because a forked process has the generators' state of the forkserver.

    Python's own generator sees to itself, and those of GPUs are made when they are first used.
    """
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _pack_fast(session: Any) -> None:
    """Have a Session pack by msgspec, as all ranks of a node pack at once; by its own packer, what msgspec refuses.

    That lets the bytes of a file name pass that are no UTF-8, but no other text that is not valid Unicode.
    """
    own: Callable[[Any], bytes] = session.pack

    def pack(part: Any) -> bytes:
        try:
            return msgspec.json.encode(part)
        except (TypeError, ValueError, msgspec.MsgspecError):
            pass
        try:
            return own(part)
        except UnicodeEncodeError:
            return own(encodable(part))

    session.pack = pack
