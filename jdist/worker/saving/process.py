"""What this process, as a rank, contributes to saving and loading; connected when the rank starts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jdist.core.errors import UsageError
from jdist.core.messages.base import Message


@dataclass
class SavingRank:
    """A rank's own parts. ``send`` sends a message to its agent, from any thread."""

    worker: int
    shell: Any
    is_own_name: Callable[[str], bool]
    named_groups: Callable[[], tuple[dict[str, tuple[int, ...]], tuple[tuple[str, ...], tuple[int, ...]] | None]]
    send: Callable[[Message], None]
    give_up: Callable[[str], None] = lambda _save: None  # Removes what has been written of a save.
    setup: dict[str, None] = field(default_factory=dict)  # Setup cells that were run here, oldest first.

    def remember_setup(self, code: str) -> None:
        """A setup cell runs here; one that runs again becomes the newest."""
        self.setup.pop(code, None)
        self.setup[code] = None


_rank: list[SavingRank] = []


def connect(rank: SavingRank) -> None:
    """This process is that rank."""
    _rank[:] = [rank]


def this_rank() -> SavingRank:
    """Raises UsageError in a process that is no rank."""
    if not _rank:
        raise UsageError("sessions are saved and loaded on ranks; this process is none")
    return _rank[0]
