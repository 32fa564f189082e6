"""Starter: the interface of what starts a node's processes, and the messages between an agent and its forkserver."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from msgspec import Struct

CreateTask = Callable[[Coroutine[Any, Any, None]], object]  # Runs a coroutine as a task until the agent ends.


class ProcessRequest(Struct, frozen=True):
    """Start ``module:function`` with ``spec`` in a new process; its raw output goes to the file ``log``, if any."""

    entry: str
    spec: bytes
    log: str
    env: dict[str, str]


class ProcessStarted(Struct, frozen=True):
    """The new process, or why there is none."""

    pid: int
    error: str = ""


class ImportsDone(Struct, frozen=True):
    """Sent once, when everything has been imported; or why that failed."""

    error: str = ""


class Starter(Protocol):
    """Starts a node's processes: by forking (`ForkStarter`), or as fresh interpreters (`SpawnStarter`)."""

    async def start(self, request: ProcessRequest) -> int:
        """Return the new process's pid. Raises LaunchError."""

    async def warm(self) -> None:
        """Import ahead what the next workers need. Called when the node is idle, also when nothing is left to do."""

    def pause(self) -> None:
        """Suspend what `warm` has begun, because a cell starts."""

    def resume(self) -> None:
        """Continue what `warm` has begun, because the node is idle."""

    def close(self) -> None:
        """End the processes that are no workers."""
