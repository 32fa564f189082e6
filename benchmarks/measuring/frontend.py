"""FrontEnd: a real ipykernel and a client of it, as a notebook page is one. Times are what the page would see."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, Self

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

_TIMEOUT = 300.0

IDLE = 60
"""Seconds after which a cluster ends by itself when a benchmark was killed."""


class CellFailed(RuntimeError):
    """A cell of the benchmark raised."""


def private_runtime() -> tempfile.TemporaryDirectory[str]:
    """A Jupyter runtime directory of this script's own, so that it sees no other cluster of this user."""
    folder = tempfile.TemporaryDirectory(prefix="jdist-bench-")
    os.environ["JUPYTER_RUNTIME_DIR"] = folder.name
    return folder


class FrontEnd:
    """A kernel of this interpreter, over ipc; ``with`` ends it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="jdist-bench-")
        self._manager = KernelManager(
            transport="ipc",
            connection_file=os.path.join(self._folder.name, "kernel.json"),
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        )
        self._manager.start_kernel(cwd=self._folder.name)
        self._client: BlockingKernelClient = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.process.pid)

    def send(self, code: str) -> str:
        """Send a cell off; its name for :meth:`wait`."""
        return str(self._client.execute(code))

    def wait(self, name: str, until: Callable[[dict[str, Any]], bool] | None = None) -> float:
        """The moment (``time.perf_counter``) when the cell was idle, or when ``until`` first held of its messages."""
        while True:
            message = self._client.get_iopub_msg(timeout=_TIMEOUT)
            if message["parent_header"].get("msg_id") != name:
                continue
            if until is not None and until(message):
                return time.perf_counter()
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return time.perf_counter()

    def reply(self, name: str) -> dict[str, Any]:
        """The cell's reply."""
        while True:
            message = self._client.get_shell_msg(timeout=_TIMEOUT)
            if message["parent_header"].get("msg_id") == name:
                content: dict[str, Any] = message["content"]
                return content

    def run(self, code: str) -> float:
        """Seconds from sending the cell to the kernel's idle. Raises CellFailed."""
        began = time.perf_counter()
        name = self.send(code)
        ended = self.wait(name)
        reply = self.reply(name)
        if reply["status"] != "ok":
            raise CellFailed(f"{code!r}: {reply.get('ename')}: {reply.get('evalue')}")
        return ended - began

    def interrupt(self) -> None:
        """As the Stop button does."""
        self._manager.interrupt_kernel()

    def start(self, nproc: int) -> float:
        """Start a cluster; the seconds that it took."""
        self.run("%load_ext jdist")
        return self.run(f"%dist start -n {nproc} --idle-timeout {IDLE}")

    def stop(self) -> None:
        """Stop the cluster, and wait until it is gone."""
        self.run("%dist stop")
