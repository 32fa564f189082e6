"""Waiting for facts about other processes, whose changes wake nobody here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SETTLE = 30.0
"""Seconds within which what a test has ended must be gone. Generous, since a wait ends as soon as it can."""


def eventually(is_so: Callable[[], Any], timeout: float = SETTLE) -> Any:
    """What ``is_so`` returns as soon as that is true, or at the deadline."""
    deadline = time.monotonic() + timeout
    while not (found := is_so()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
