"""Points at which a running cell can be saved: calls of jdist.save_if_due(), counted, the same on all ranks.

A rank is *free*, *held* (PrepareSave has come: it has told its number of calls and makes no further one) or *bound*
(SaveAt has come: it saves at the call of that number). PrepareSave and SaveAt come on the control thread, calls on the
thread of the cell; a lock guards all. A rank that is held for too long goes free.

:func:`this_rank` is what this process contributes to saving and loading; it is connected when the rank starts.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jdist.core.errors import UsageError
from jdist.core.messages.base import Message
from jdist.core.messages.saving import PartSaved, PrepareSave, SaveAt, SavePoint, SaveStarted


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


_LONGEST_HOLD = 30.0  # Seconds; the controller gives up sooner, but it may be out of reach for a while.

_points: list["SavePoints"] = []  # That of this process, if it is a rank.


def save_if_due() -> None:
    """Save the session here if an automatic save is due; for the end of each step of a training loop.

    Call it on all ranks, at the same place of the program: each saves at its call of the same number. Takes a
    microsecond if nothing is due, and does nothing outside of a cluster. Names of the session are saved, and no local
    variables of functions.
    """
    for points in _points:
        points.call()


class SavePoints:
    """Counts the calls of one rank. ``save`` saves on this rank, together with all others."""

    def __init__(
        self,
        worker: int,
        present_run: Callable[[], int],
        send: Callable[[Message], None],
        save: Callable[[SaveAt], object],
    ) -> None:
        self._worker = worker
        self._present_run = present_run
        self._send = send
        self._save = save
        self._lock = (
            threading.RLock()
        )  # Taken itself: an interrupt cannot come between taking it and what gives it back.
        self._changed = threading.Condition(self._lock)
        self._run = 0
        self._calls = 0
        self._held = ""  # The save for which it is held.
        self._bound: SaveAt | None = None

    def connect(self) -> None:
        """Have :func:`save_if_due` call this."""
        _points[:] = [self]

    def call(self) -> None:
        """One call of save_if_due."""
        run = self._present_run()
        with self._lock:
            if run != self._run:
                self._run, self._calls = run, 0
            self._wait_while_held()
            self._calls += 1
            at = self._bound
            if at is None or at.run != run or at.call != self._calls:
                return
            self._bound = None
        try:
            self._save(at)
        except UsageError as e:  # the cell goes on
            self._fail(at.save, str(e))

    def _wait_while_held(self) -> None:
        until = time.monotonic() + _LONGEST_HOLD
        while self._held and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)
        self._held = ""

    def prepare(self, message: PrepareSave) -> None:
        """Hold the next call of the run, and tell how many there were."""
        with self._lock:
            calls = self._calls if self._run == message.run == self._present_run() else 0
            self._held = message.save if calls else ""
        self._send(SavePoint(self._worker, message.save, calls))

    def bind(self, message: SaveAt) -> None:
        """Save at a call to come; or at none."""
        with self._lock:
            self._held = ""
            is_late = self._run == message.run == self._present_run() and 0 < message.call <= self._calls
            self._bound = message if message.call and not is_late else None
            self._changed.notify_all()
        if is_late:
            self._fail(
                message.save, f"it was to save at call {message.call} of save_if_due, and heard of it after that"
            )

    def _fail(self, save: str, why: str) -> None:
        self._send(SaveStarted(self._worker, save, 0))
        self._send(PartSaved(self._worker, save, why))
