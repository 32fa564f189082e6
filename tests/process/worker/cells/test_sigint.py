"""SIGINT at any moment stops the cell or does nothing; the kernel always answers and goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jdist.worker.cells import signals

INSTALL = "from jdist.worker.cells import signals as _s\n_handler = _s.install(get_ipython().kernel)"


class Kernel:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient):
        self._client = client
        self.pid = manager.provisioner.process.pid

    def send(self, code: str, **options: Any) -> str:
        return self._client.execute(code, stop_on_error=False, **options)

    def reply(self, request: str, timeout: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while True:
            message = self._client.get_shell_msg(timeout=max(0.01, end - time.monotonic()))
            if message["parent_header"].get("msg_id") == request:
                return message["content"]

    def run(self, code: str) -> dict[str, Any]:
        return self.reply(self.send(code))

    def value(self, expression: str) -> str:
        reply = self.reply(self.send("", user_expressions={"v": expression}))
        return reply["user_expressions"]["v"]["data"]["text/plain"]

    def printed(self, request: str, text: str, timeout: float = 60.0) -> None:
        """Wait until the cell has printed ``text``."""
        end = time.monotonic() + timeout
        seen = ""
        while text not in seen:
            message = self._client.get_iopub_msg(timeout=max(0.01, end - time.monotonic()))
            if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
                seen += message["content"]["text"]

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    root = str(Path(__file__).parents[3])
    directory = tmp_path_factory.mktemp("k")
    manager = KernelManager(
        kernel_name="python3", connection_file=str(directory / "k.json"), transport="ipc", ip=str(directory / "kernel")
    )
    manager.start_kernel(env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}, cwd="/tmp")
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        k = Kernel(manager, client)
        assert k.run(INSTALL)["status"] == "ok"
        yield k
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(1000)",
    "function": "def f():\n    while True: pass\nf()",
    "magic": "%timeit -n 1 -r 1 __import__('time').sleep(1000)",
    "script": "%run -i {script}",
    "runpy": "import runpy\nrunpy.run_path('{script}', run_name='__main__')",
    "display hook": "class R:\n    def __repr__(self):\n        while True: pass\nR()",
    "exec elsewhere": "exec('while True: pass', {{}})",
    "library": "import threading\nthreading.Event().wait()",
    "await, computing": "import asyncio\nawait asyncio.sleep(0)\nwhile True: pass",
}
AWAITING = {
    "sleep": "import asyncio\nprint('go')\nawait asyncio.sleep(1000)",
    "future": "import asyncio\nprint('go')\nawait asyncio.Future()",
    "swallows one cancel": (
        "import asyncio\nprint('go')\ntry:\n    await asyncio.sleep(1000)\n"
        "except asyncio.CancelledError:\n    await asyncio.sleep(1000)"
    ),
}


def _interrupt_until_done(kernel: Kernel, request: str) -> dict[str, Any]:
    """As the ladder does: a signal every 100 ms until the reply is there."""
    done = threading.Event()

    def again() -> None:
        while not done.wait(0.1):
            kernel.interrupt()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        return kernel.reply(request)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", ENDLESS)
def test_user_code_is_stopped(kernel: Kernel, name: str, tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text("while True: pass\n")
    kernel.run("keep = 1")
    code = ENDLESS[name].format(script=script)
    request = kernel.send(code if code.startswith("%") else f"print('go')\n{code}")
    if not code.startswith("%"):
        kernel.printed(request, "go")
    reply = _interrupt_until_done(kernel, request)
    if name not in {"display hook", "script"}:  # IPython shows these interrupts and calls the cell done
        assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt")
    assert kernel.value("keep") == "1"


# Each of these swallows every interrupt. That of a library passes through the library's own handlers first.
SWALLOWING = {
    "in a loop": "while True:\n    try: wait()\n    except: pass",
    "after handlers that raise it again": (
        "def library():\n    try: wait()\n    except ValueError: pass\n    finally: ended.append(1)\n"
        "while True:\n    try: library()\n    except: pass"
    ),
    "in a function": "def f():\n    try: wait()\n    except: return\nwhile True: f()",
    "in a context manager": "while True:\n    with contextlib.suppress(BaseException): wait()",
    "in a handler": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    while True:\n        try: wait()\n        except: pass"
    ),
}
WAIT = "import contextlib, time\nended = []\ndef wait():\n    print('go')\n    time.sleep(1000)\n"


@pytest.mark.parametrize("name", SWALLOWING)
def test_one_insistent_signal_ends_a_loop_that_swallows_each_interrupt(kernel: Kernel, name: str) -> None:
    kernel.run(f"{WAIT}_handler.is_insistent = True")
    request = kernel.send(SWALLOWING[name])
    kernel.printed(request, "go")
    kernel.interrupt()
    reply = kernel.reply(request)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert kernel.value("len(ended)") == str(int("library" in SWALLOWING[name])), "handlers run to their end"
    kernel.run("_handler.forget()")
    assert kernel.value("__import__('sys').gettrace()") == "None"


@pytest.mark.parametrize("name", AWAITING)
def test_awaiting_cell_is_cancelled(kernel: Kernel, name: str) -> None:
    request = kernel.send(AWAITING[name])
    kernel.printed(request, "go")
    reply = _interrupt_until_done(kernel, request)
    assert reply["status"] == "error"
    assert reply["ename"] in {"CancelledError", "KeyboardInterrupt"}
    assert kernel.value("1 + 1") == "2"


def test_users_own_task_does_not_take_the_loop_down(kernel: Kernel) -> None:
    request = kernel.send(
        "import asyncio, time\n"
        "async def busy():\n    while True:\n        time.sleep(0.005)\n        await asyncio.sleep(0)\n"
        "task = asyncio.create_task(busy())\nprint('go')\nawait asyncio.sleep(1000)"
    )
    kernel.printed(request, "go")
    assert _interrupt_until_done(kernel, request)["status"] == "error"
    assert kernel.run("task.cancel()")["status"] == "ok"


def test_signals_at_any_moment_lose_no_reply(kernel: Kernel) -> None:
    chance = random.Random(7)
    awaiting = "import asyncio\nawait asyncio.sleep(0.002)"
    cells = ["1 + 1", awaiting, "for i in range(20000): i * i", "raise ValueError(1)"]
    stop = threading.Event()

    def shower() -> None:
        while not stop.wait(chance.random() * 0.004):
            kernel.interrupt()

    thread = threading.Thread(target=shower)
    thread.start()
    try:
        replies = [kernel.run(cells[i % len(cells)])["status"] for i in range(150)]
    finally:
        stop.set()
        thread.join()
    assert len(replies) == 150
    assert set(replies) <= {"ok", "error"}
    assert "error" in replies
    assert kernel.value("6 * 7") == "42"


def test_idle_kernel_ignores_it(kernel: Kernel) -> None:
    for _ in range(20):
        kernel.interrupt()
        time.sleep(0.002)
    assert kernel.value("2 + 3") == "5"


class Shell:
    def __init__(self) -> None:
        self.user_ns = self.user_global_ns = {"__name__": "__main__"}
        self.execution_count = 3


class CancelledKernel:
    """Its cell's coroutine ends with CancelledError, as one does that is cancelled before it has begun."""

    def __init__(self) -> None:
        self.shell = Shell()
        self.by_signal = True

    async def do_execute(self, code: str) -> dict[str, Any]:
        future = asyncio.ensure_future(asyncio.sleep(20))
        with self._cancel_on_sigint(future):
            if self.by_signal:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                future.cancel()
            await future
        return {"status": "ok"}


@pytest.fixture
def saved_handler() -> Iterator[None]:
    saved = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, saved)


def test_cell_whose_coroutine_was_cancelled_is_answered(saved_handler: None) -> None:
    kernel = CancelledKernel()
    signals.install(kernel)
    reply = asyncio.run(kernel.do_execute("x"))
    assert (reply["status"], reply["ename"], reply["execution_count"]) == ("error", "KeyboardInterrupt", 3)
    kernel.by_signal = False  # the kernel itself is being ended: that must not be held up
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(kernel.do_execute("x"))
