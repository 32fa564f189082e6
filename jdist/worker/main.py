"""The worker's process: a stock ipykernel with jdist's extension in it. Entered by fork, or by ``python -m``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

import msgspec
from ipykernel.kernelapp import IPKernelApp

from jdist.core.specs import WorkerSpec
from jdist.wire.processes import set_name
from jdist.worker.cells.fd_capture import capture_stream
from jdist.worker.control import Extension
from jdist.worker.kernel.iopub import flush_when_needed, look_for_subscriber, note_greetings, pack_quickly


class WorkerApp(IPKernelApp):
    """A kernel that drops nothing of what it publishes, however long its agent takes to listen."""

    def init_iopub(self, context: Any) -> None:
        """By default the 1001st message in a hurry is dropped, a cell's end among them.

        zmq takes over a limit for those who will connect when the socket is bound, so it must have none before.
        """
        context.sndhwm = 0
        super().init_iopub(context)  # type: ignore[no-untyped-call]
        del context.sndhwm


def main(spec_json: bytes) -> None:
    """Run the kernel until it is told to end."""
    spec = msgspec.json.decode(spec_json, type=WorkerSpec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the kernel runs user code
    set_name(f"jdist-rank-{spec.rank}")
    _set_threads(spec.threads)
    app: Any = WorkerApp.instance(
        connection_file=spec.connection_file,
        capture_fd_output=False,
        log_level=logging.WARNING,
        parent_handle=1,  # "the parent is watched by others": the agent's death ends us without ipykernel's help
    )
    app.config.HistoryManager.enabled = False  # no database of what was typed: the notebook has it
    note_greetings()
    app.initialize([])
    extension = Extension(spec, app, [capture_stream(1, sys.stdout), capture_stream(2, sys.stderr)])
    pack_quickly(app.session)
    for stream in (sys.stdout, sys.stderr):
        flush_when_needed(stream)
    extension.start()
    look_for_subscriber(app.iopub_thread)
    app.start()
    os._exit(0)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
