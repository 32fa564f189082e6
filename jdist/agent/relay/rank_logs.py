"""Rank logs: everything that a worker writes, in a file on its node."""

import os
from pathlib import Path
from typing import BinaryIO

_LOG_LIMIT = 256 << 20  # Bytes of a rank's log before the older half is dropped.
_READ_LIMIT = 8 << 20  # Bytes of a log that are read at most for one answer.
_READ_STEP = 64 << 10


class RankLogs:
    """Appends to the logs in ``directory``, and reads their ends."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._logs: dict[int, BinaryIO] = {}

    def path(self, worker: int) -> Path:
        return self._directory / f"worker-{worker}.log"

    def write(self, worker: int, text: str) -> None:
        log = self._logs.get(worker)
        if log is None:
            log = self._logs[worker] = self.path(worker).open("ab")
        log.write(text.encode(errors="replace"))
        if log.tell() > _LOG_LIMIT:
            log.close()
            self.path(worker).replace(self.path(worker).with_suffix(".old.log"))
            del self._logs[worker]

    def flush(self) -> None:
        for log in self._logs.values():
            log.flush()

    def read(self, worker: int, lines: int) -> str:
        """The newest lines of the rank's log, ``\\r`` applied."""
        path = self.path(worker)
        if lines <= 0 or not path.exists():
            return ""
        self.flush()
        rows = _read_end(path, lines).decode(errors="replace").removesuffix("\n").split("\n")
        return "\n".join(row.rstrip("\r").rpartition("\r")[2] for row in rows[-lines:])

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def _read_end(path: Path, lines: int) -> bytes:
    """The end of a file with its last ``lines`` lines in it, as far as one message can carry them."""
    data = b""
    with path.open("rb") as f:
        start = f.seek(0, os.SEEK_END)
        while start and data.count(b"\n") <= lines and len(data) < _READ_LIMIT:
            step = min(start, _READ_STEP)
            start = f.seek(start - step)
            data = f.read(step) + data
    return data
