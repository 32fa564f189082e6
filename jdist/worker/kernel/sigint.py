"""SIGINT that only ever stops user code: in the kernel's own code, a KeyboardInterrupt would lose a reply.

The handler inspects the stack that it interrupts. It raises only where the shell executes a cell, cancels a cell that
awaits, and otherwise does nothing; the sender repeats the signal until the run has ended.
"""

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jdist.worker.compat.ipykernel import replace_cancel_on_sigint
from jdist.worker.kernel import guarded


class SafeSigint:
    """The handler, bound to one kernel."""

    def __init__(self, kernel: Any):
        self._shell = kernel.shell
        # Both catch whatever user code below them raises, KeyboardInterrupt included.
        self._roots: set[CodeType] = {InteractiveShell.run_code.__code__, InteractiveShell.user_expressions.__code__}
        self._cancelled = False

    def __call__(self, _signum: int, frame: FrameType | None) -> None:
        if self.is_user_code(frame):
            raise KeyboardInterrupt

    def is_user_code(self, frame: FrameType | None) -> bool:
        """Whether the stack has a frame of the user's namespace below a function of the shell that runs cells, or any
        frame in a guarded call.
        """
        namespace = self._shell.user_global_ns
        seen_user, top = False, frame
        while frame is not None:
            if frame.f_code is guarded.CODE and frame is not top:
                return True
            seen_user = seen_user or frame.f_globals is namespace or frame.f_globals is self._shell.user_ns
            if seen_user and frame.f_code in self._roots:
                return True
            frame = frame.f_back
        return False

    def arm(self) -> None:
        """Make this the process's handler; on the main thread only."""
        signal.signal(signal.SIGINT, self)

    @contextlib.contextmanager
    def cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """On every SIGINT, cancel a cell that awaits or interrupt one that computes; ipykernel's own cancels once."""
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            if not future.done():
                self._cancelled = True
                future.cancel()

        def handle(_signum: int, frame: FrameType | None) -> None:
            if self.is_user_code(frame):
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(cancel)

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            self.arm()

    def keep_reply(self, do_execute: Any) -> Any:
        """Wrap ``do_execute`` so that it replies even when its cell was cancelled before it had begun."""

        async def kept(*args: Any, **kwargs: Any) -> dict[str, Any]:
            self._cancelled = False
            try:
                reply: dict[str, Any] = await do_execute(*args, **kwargs)
            except asyncio.CancelledError:
                if not self._cancelled:  # the kernel itself is being ended
                    raise
                return {
                    "status": "error",
                    "ename": "KeyboardInterrupt",
                    "evalue": "",
                    "traceback": ["KeyboardInterrupt"],
                    "execution_count": self._shell.execution_count,
                    "user_expressions": {},
                    "payload": [],
                }
            return reply

        # ipykernel looks at the signature to see which arguments it may pass.
        kept.__signature__ = inspect.signature(do_execute)  # type: ignore[attr-defined]
        return kept


def install(kernel: Any) -> SafeSigint:
    """Give the kernel the safe handler; on the main thread. ``kernel`` is an ipykernel ``IPythonKernel``."""
    handler = SafeSigint(kernel)
    kernel.pre_handler_hook = handler.arm
    kernel.post_handler_hook = handler.arm
    replace_cancel_on_sigint(kernel, handler.cancel_on_sigint)
    kernel.do_execute = handler.keep_reply(kernel.do_execute)
    handler.arm()
    return handler


def interrupt_main() -> None:
    """Send SIGINT to the main thread."""
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, signal.SIGINT)
