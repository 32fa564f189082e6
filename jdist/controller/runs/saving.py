"""Saving: which saves are being written, and how each ends. Pure.

A save is *writing* from the first SaveStarted on. It is *finished* when all its parts have been written, when one could
not be written, when a rank that had not written its part is gone, or when a rank has not begun in time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from jdist.controller.model.model import Model
from jdist.controller.model.world import Node, Rank
from jdist.core.messages.saving import GiveUpSave, PartSaved, SaveEnded, SaveStarted

_ALL_BEGUN = 60.0  # Seconds after the first rank's beginning in which every other must have begun.


@dataclass
class _Save:
    """A save that is being written, or is about to be."""

    size: int
    began_at: float
    begun: set[int] = field(default_factory=set)  # Workers.
    written: set[int] = field(default_factory=set)
    complete: PartSaved | None = None  # From the worker that completed it.
    seconds: float = 0.0


class Saves:
    """The saves that are being written, by id."""

    def __init__(self, model: Model):
        self._model = model
        self._saves: dict[str, _Save] = {}
        self.last: tuple[float, SaveEnded] | None = None  # When the last save ended, and how.
        self.on_end: Callable[[SaveEnded], None] = lambda _: None

    @property
    def is_writing(self) -> bool:
        return bool(self._saves)

    def expect(self, number: str, size: int) -> None:
        """A save of so many parts is about to begin; none of its ranks has to report that for it to end."""
        self._saves[number] = _Save(size, math.inf)

    def forget(self, number: str) -> None:
        """A save that was expected will not begin."""
        self._saves.pop(number, None)

    def fail(self, number: str, error: str) -> None:
        """A save that was expected has failed, if nothing has been heard of that yet."""
        if number in self._saves:
            self._finish(number, error)

    def handle_begun(self, _: Node, message: SaveStarted) -> None:
        save = self._saves.setdefault(message.save, _Save(message.world_size, self._model.now))
        save.began_at = min(save.began_at, self._model.now)
        save.begun.add(message.worker)

    def handle_part(self, node: Node, message: PartSaved) -> None:
        save = self._saves.get(message.save)
        if save is None:
            return  # it has been given up
        if message.error:
            rank = self._model.world.rank_of(node, message.worker)
            where = self._model.world.where(rank.rank) if rank is not None else f"worker {message.worker}"
            self._finish(message.save, f"{where}: {message.error}")
            return
        save.written.add(message.worker)
        save.seconds = max(save.seconds, message.seconds)
        if message.folder:
            save.complete = message
        if len(save.written) == save.size:
            missing = (
                "" if save.complete is not None else "no rank has completed it; is the folder shared by all nodes?"
            )
            self._finish(message.save, missing)

    def handle_loss(self, rank: Rank) -> None:
        """A rank's process has ended: what it had not written will not be."""
        for number, save in list(self._saves.items()):
            if rank.worker not in save.written:
                self._finish(number, f"{self._model.world.where(rank.rank)} was lost before its part was written")

    def handle_tick(self) -> None:
        for number, save in list(self._saves.items()):
            if len(save.begun) < save.size and self._model.now >= save.began_at + _ALL_BEGUN:
                missing = save.size - len(save.begun)
                self._finish(number, f"{missing} of {save.size} ranks have not begun to write it")

    def next_wakeup(self) -> float | None:
        """When a save may have to be given up, as far as is known now."""
        begun = [s.began_at + _ALL_BEGUN for s in self._saves.values() if 0 < len(s.begun) < s.size]
        return min(begun, default=None)

    def _finish(self, number: str, error: str) -> None:
        save = self._saves.pop(number)
        done = save.complete
        ended = SaveEnded(number, error=error)
        if not error and done is not None:
            ended = SaveEnded(number, done.folder, nbytes=done.nbytes, seconds=save.seconds)
        if ended.error:
            for node, workers in self._model.world.workers_by_node(self._model.world.ranks).items():
                self._model.send_to_node(node, GiveUpSave(number, workers))
        self.last = self._model.now, ended
        self._model.broadcast(ended)
        self.on_end(ended)
