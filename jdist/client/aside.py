"""Calls that may run user code or block, each on a thread of its own, so that they cannot hold up the client's loop."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from jdist.core.errors import describe_error

T = TypeVar("T")


async def aside(call: Callable[[], T]) -> T:
    """Return or raise what ``call()`` does. If this is cancelled, the call goes on, and its result is dropped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
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
