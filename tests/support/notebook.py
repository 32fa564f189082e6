"""A notebook for tests: a real kernel behind jupyter_client, and what each cell leaves in the file."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

DEADLINE = 60.0


class Cell:
    """One executed cell: how it ended, and its outputs as they stand at the end."""

    def __init__(self) -> None:
        self.status = ""
        self.ename = ""
        self.evalue = ""
        self.traceback: list[str] = []
        self.stdout = ""
        self.stderr = ""
        self.displays: list[dict[str, Any]] = []
        self.updates = 0
        self.message = ""  # The id of the request that it was executed by.
        self._ids: dict[str, int] = {}

    @property
    def text(self) -> str:
        """Everything that is shown, as plain text."""
        return "\n".join([self.stdout, *(d["text/plain"] for d in self.displays)])

    @property
    def html(self) -> str:
        return "\n".join(d.get("text/html", "") for d in self.displays)

    def take(self, message: dict[str, Any]) -> None:
        """An iopub message."""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif kind in ("display_data", "execute_result"):
            key = content.get("transient", {}).get("display_id")
            if key:
                self._ids[key] = len(self.displays)
            self.displays.append(content["data"])
        elif kind == "update_display_data":
            self.updates += 1
            self.displays[self._ids[content["transient"]["display_id"]]] = content["data"]


class Notebook:
    """A kernel with jdist loaded."""

    def __init__(self, directory: Path | None = None, kernel: str = "python3") -> None:
        """``directory``: the kernel's working directory; by default, that of this process. ``kernel``: a kernelspec."""
        # Over TCP, a kernel binds ports that were chosen before it started, or that its predecessor had. Tests that
        # run beside this one may have taken them by then.
        self._sockets = tempfile.TemporaryDirectory(dir="/tmp")
        self.manager = KernelManager(kernel_name=kernel, transport="ipc", ip=f"{self._sockets.name}/kernel")
        self.manager.start_kernel(cwd=str(directory or Path.cwd()))
        self.client = self.manager.blocking_client()
        self._seen: dict[str, Cell] = {}  # Every cell as a front end shows it, by its request.
        self.connect()
        # jupyter_client keeps an event loop for calls from within an output hook: made here, once.
        self.execute("print()", lambda _: self.manager.is_alive() and None)

    def connect(self) -> None:
        """Start talking to the kernel, also after its restart."""
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE)
        self._watcher = self.manager.blocking_client()  # It gets what comes after a cell's end, too.
        self._watcher.start_channels(shell=False, stdin=False, hb=False, control=False)
        self.run("%load_ext jdist")

    def execute(
        self, code: str, on_output: Callable[[Cell], None] = lambda _: None, answers: Iterable[str] | None = None
    ) -> Cell:
        """Run a cell; ``on_output`` is called after each of its outputs, ``answers`` are typed when it asks."""
        cell = Cell()

        def hook(message: dict[str, Any]) -> None:
            cell.take(message)
            on_output(cell)

        typed = iter(answers or ())
        reply = self.client.execute_interactive(
            code,
            timeout=DEADLINE,
            output_hook=hook,
            allow_stdin=answers is not None,
            stdin_hook=lambda _: self.client.input(next(typed)),
        )
        cell.message = reply["parent_header"]["msg_id"]
        cell.status = reply["content"]["status"]
        cell.ename = reply["content"].get("ename", "")
        cell.evalue = reply["content"].get("evalue", "")
        cell.traceback = reply["content"].get("traceback", [])
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell that must end well."""
        cell = self.execute(code)
        assert cell.status == "ok", (code, cell.ename, cell.evalue, cell.text)
        return cell

    def until(self, cell: Cell, is_so: Callable[[str], object]) -> str:
        """The text of an executed cell as soon as it is so, also after its end."""
        deadline = time.monotonic() + DEADLINE
        while not is_so(text := self._seen.setdefault(cell.message, Cell()).text):
            left = deadline - time.monotonic()
            assert left > 0, f"the cell shows: {text}"
            with contextlib.suppress(queue.Empty):
                message = self._watcher.get_iopub_msg(timeout=left)
                self._seen.setdefault(message["parent_header"].get("msg_id", ""), Cell()).take(message)
        return text

    def value(self, expression: str) -> str:
        """An expression's repr in the notebook."""
        reply = self.client.execute(
            "", user_expressions={"v": expression}, silent=True, store_history=False, reply=True, timeout=DEADLINE
        )
        found = reply["content"]["user_expressions"]["v"]
        assert found["status"] == "ok", found
        return str(found["data"]["text/plain"])

    def interrupt_when(self, is_time: Callable[[Cell], bool]) -> Callable[[Cell], None]:
        """An ``on_output`` that presses the Stop button once."""
        pressed = threading.Event()

        def look(cell: Cell) -> None:
            if not pressed.is_set() and is_time(cell):
                pressed.set()
                self.manager.interrupt_kernel()

        return look

    def restart(self) -> None:
        self.client.stop_channels()
        self._watcher.stop_channels()
        self.manager.restart_kernel(now=True)
        self.client = self.manager.blocking_client()
        self.connect()

    def close(self) -> None:
        self.client.stop_channels()
        self._watcher.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self._sockets.cleanup()
