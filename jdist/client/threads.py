"""Threads: the client's event loop on a thread of its own, which blocking code calls, and calls beside that loop."""

import asyncio
import concurrent.futures
import contextlib
import functools
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from jdist.core.errors import UsageError, describe_error
from jdist.wire.awake_loop import AwakeLoop

R = TypeVar("R")

_UNDO = 20.0  # Seconds for a cancelled coroutine to undo what it began.
_LOOK = 0.2  # Seconds after which a wait on Windows sees a KeyboardInterrupt.


class Bridge:
    """An asyncio loop on a thread of its own. ``call`` runs a coroutine there and blocks for its result."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = AwakeLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="jdist-client", daemon=True)
        self._thread.start()
        self._waiting: list[queue.SimpleQueue[Callable[[], None] | None]] = []  # One for each blocked call.

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result. A KeyboardInterrupt cancels it, and is raised once it has undone what it began."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            work.close()
            where = "a process forked from" if os.getpid() != self._pid else "a callback on the client's thread of"
            raise UsageError(f"a cluster cannot be used in {where} the one that attached to it")
        future, ended = self.begin(work)
        questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        future.add_done_callback(lambda _: questions.put(None))
        self._waiting.append(questions)
        try:
            while (question := _next(questions)) is not None:
                question()
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            ended.wait(_UNDO)
            raise
        finally:
            self._waiting.remove(questions)

    async def ask(self, question: Callable[[], str]) -> str | None:
        """What ``question()`` returns on a thread that waits in ``call``; None if none does, or if it raises.

        Called on the loop. A KeyboardInterrupt ends the call in which it was asked.
        """
        if not self._waiting:
            return None
        answered: asyncio.Future[str | None] = self.loop.create_future()

        def settle(answer: str | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        def run() -> None:
            answer = None
            try:
                answer = question()
            except Exception:  # the front end takes no input
                answer = None
            finally:
                self.loop.call_soon_threadsafe(settle, answer)

        self._waiting[-1].put(run)
        return await answered

    def begin(self, work: Coroutine[Any, Any, R]) -> tuple[concurrent.futures.Future[R], threading.Event]:
        """The coroutine's future result, and an event set at its end, which comes later than a cancelled future's."""
        ended = threading.Event()

        async def noted() -> R:
            try:
                return await work
            finally:
                ended.set()

        return asyncio.run_coroutine_threadsafe(noted(), self.loop), ended


@functools.cache
def bridge() -> Bridge:
    """The process's one bridge."""
    return Bridge()


def result_of(future: concurrent.futures.Future[R], timeout: float | None = None) -> R:
    """Block for a future's result. Raises what it raises, or TimeoutError; a KeyboardInterrupt ends the wait."""
    if sys.platform == "win32":  # there, it does not end a wait for a lock
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        while not future.done() and (left := until - time.monotonic()) > 0:
            concurrent.futures.wait([future], min(left, _LOOK))
        timeout = 0.0
    return future.result(timeout)


def _next(questions: "queue.SimpleQueue[Callable[[], None] | None]") -> Callable[[], None] | None:
    """The next item; as in :func:`result_of`, a KeyboardInterrupt ends the wait."""
    while sys.platform == "win32":
        with contextlib.suppress(queue.Empty):
            return questions.get(timeout=_LOOK)
    return questions.get()


async def aside(call: Callable[[], R]) -> R:
    """Return or raise what ``call()`` does. If this is cancelled, the call goes on, and its result is dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(result: R | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:  # a BaseException, such as SystemExit, would end the loop
            done.set_exception(RuntimeError(describe_error(error)))

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as e:  # passed on to who waits
            error = e
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="jdist-aside", daemon=True).start()
    return await done
