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


class Question:
    """A prompt that a blocked thread shows to its user. It is made on the loop, which awaits ``answered``."""

    def __init__(self, prompt: Callable[[], str], loop: asyncio.AbstractEventLoop):
        self.answered: asyncio.Future[str | None] = loop.create_future()
        self._prompt = prompt
        self._loop = loop

    def ask(self) -> None:
        """Show the prompt, and answer with what the user types; with None if the front end takes no input."""
        answer = None
        try:
            with contextlib.suppress(Exception):
                answer = self._prompt()
        finally:
            self.answer(answer)

    def answer(self, answer: str | None) -> None:
        """Settle the question; may be called from any thread."""

        def settle() -> None:
            if not self.answered.done():
                self.answered.set_result(answer)

        self._loop.call_soon_threadsafe(settle)


Questions = queue.SimpleQueue[Question | None]  # None: the call is over.


class Bridge:
    """An asyncio loop on a thread of its own. ``call`` runs a coroutine there and blocks for its result."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = AwakeLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="jdist-client", daemon=True)
        self._thread.start()
        self._waiting: list[tuple[concurrent.futures.Future[Any], Questions]] = []  # One for each blocked call.
        self._lock = threading.Lock()  # Guards that list.

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """The coroutine's result. A KeyboardInterrupt cancels it, and is raised once it has undone what it began."""
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            work.close()
            where = "a process forked from" if os.getpid() != self._pid else "a callback on the client's thread of"
            raise UsageError(f"a cluster cannot be used in {where} the one that attached to it")
        future, ended = self.begin(work)
        questions: Questions = queue.SimpleQueue()
        future.add_done_callback(lambda _: questions.put(None))
        with self._lock:
            self._waiting.append((future, questions))
        try:
            while (question := _next(questions)) is not None:
                question.ask()
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            ended.wait(_UNDO)
            raise
        finally:
            with self._lock:
                self._waiting.remove((future, questions))
            while not questions.empty():
                if (question := questions.get()) is not None:
                    question.answer(None)

    async def ask(self, prompt: Callable[[], str]) -> str | None:
        """Call ``prompt`` on a thread that waits in ``call``, and return the user's answer.

        None if no thread waits, or if ``prompt`` raises. Called on the loop.
        """
        question = Question(prompt, self.loop)
        with self._lock:
            waiting = [questions for future, questions in self._waiting if not future.done()]
            if not waiting:
                return None
            waiting[-1].put(question)
        return await question.answered

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


def _next(questions: Questions) -> Question | None:
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
