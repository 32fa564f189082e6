"""Crossing: from the server's loop to the client's and back. What waits for a cluster never holds up the server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from jdist.client.blocking import bridge

T = TypeVar("T")


async def cross(work: Coroutine[Any, Any, T], within: float) -> T:
    """What ``work`` gives on the client's loop. Raises TimeoutError after ``within`` seconds, and cancels it then."""
    future, _ = bridge().begin(work)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), within)
    finally:
        future.cancel()
