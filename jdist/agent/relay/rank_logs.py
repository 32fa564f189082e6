"""Rank logs: everything that the ranks of a node have written, in a file for each, as far as the disk has room."""

import logging
import os
import shutil
from collections import defaultdict
from pathlib import Path

_log = logging.getLogger("jdist.agent")

_AT_ONCE = 1 << 20  # Characters that are gathered at most before they are written.
_LIMIT = 256 << 20  # Bytes of a rank's log before the older half is dropped: at most so many,
_SHARE = 64  # and at most this part of the disk, on which the ranks' own files must have room, too.
_READ_LIMIT = 8 << 20  # Bytes of a log that are read at most for one answer.
_READ_STEP = 64 << 10


class RankLogs:
    """Appends to the logs in ``directory``, and reads their ends.

    Logging is best effort: what the disk does not take is counted, and the log says so as soon as it can. It must not
    hold up the output itself, nor the end of a cell.
    """

    def __init__(self, directory: Path, limit: int | None = None):
        """``limit``: bytes of a rank's log before it is set aside, in place of the one that was before it."""
        self._directory = directory
        self._limit = min(_LIMIT, shutil.disk_usage(directory).total // _SHARE) if limit is None else limit
        self._waiting: defaultdict[int, list[str]] = defaultdict(list)
        self._gathered = 0
        self._missing: dict[int, int] = {}  # Bytes of each worker that could not be written since the last that could.

    def path(self, worker: int) -> Path:
        return self._directory / f"worker-{worker}.log"

    def write(self, worker: int, text: str) -> None:
        """Write with the next flush."""
        self._waiting[worker].append(text)
        self._gathered += len(text)
        if self._gathered > _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting, self._gathered = self._waiting, defaultdict(list), 0
        for worker, texts in waiting.items():
            self._append(worker, "".join(texts).encode(errors="replace"))

    def _append(self, worker: int, data: bytes) -> None:
        path = self.path(worker)
        if (too_much := len(data) - self._limit) > 0:
            self._missing[worker] = self._missing.get(worker, 0) + too_much
            data = data[too_much:]
        try:
            with path.open("ab", buffering=0) as log:
                if missing := self._missing.get(worker):
                    log.write(b"[jdist: %d bytes are missing here: there was no room for them]\n" % missing)
                    del self._missing[worker]
                while data:
                    data = data[log.write(data) :]
                is_full = os.fstat(log.fileno()).st_size > self._limit
            if is_full:
                path.replace(path.with_suffix(".old.log"))
        except OSError as e:
            self._missing[worker] = self._missing.get(worker, 0) + len(data)
            _log.warning("the log of worker %d could not be written: %s", worker, e)

    def read(self, worker: int, lines: int) -> str:
        """The newest lines of the rank's log, as far as one message can carry them, ``\\r`` applied."""
        self.flush()
        path, data = self.path(worker), b""
        if lines <= 0 or not path.exists():
            return ""
        with path.open("rb") as f:
            start = f.seek(0, os.SEEK_END)
            while start and data.count(b"\n") <= lines and len(data) < _READ_LIMIT:
                step = min(start, _READ_STEP)
                start = f.seek(start - step)
                data = f.read(step) + data
        rows = data.decode(errors="replace").removesuffix("\n").split("\n")
        return "\n".join(row.rstrip("\r").rpartition("\r")[2] for row in rows[-lines:])
