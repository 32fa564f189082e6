"""Logging: a logger for each floor (``jdist.agent``, …), quiet by default, and the newest records kept in memory.

Every process calls :func:`configure` once. Warnings and errors go to standard error, which is the process's log file,
each kind a limited number of times; ``JDIST_LOG=debug`` lets everything through.
"""

import collections
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from jdist.core.messages.values import DebugRecord

VARIABLE = "JDIST_LOG"
_KEPT = 2000  # Records in memory.
_AT_ONCE = 20
_PERIOD = 10.0  # So many warnings of one kind pass in so many seconds.
_LONGEST = 400  # Characters of a message: part of it may come from an unauthenticated peer.
_VERBOSE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} jdist \w+ (DEBUG|INFO): ")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class RateLimit(logging.Filter):
    """Drops warnings of a kind that come too often; the next that passes says how many were dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._clock = clock
        self._periods: dict[tuple[str, str], tuple[float, int]] = {}  # By kind: its period's start, and records in it.

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.exc_info:
            return True  # one with a traceback always passes
        kind, now = (record.name, str(record.msg)), self._clock()  # a kind: one logger's records of one template
        began, count = self._periods.get(kind, (now, 0))
        if now - began >= _PERIOD:
            if count > _AT_ONCE:
                record.dropped = count - _AT_ONCE
            began, count = now, 0
        self._periods[kind] = (began, count + 1)
        return count < _AT_ONCE


class LogHandler(logging.Handler):
    """Keeps the newest records, and writes those of ``stream_level`` or above to a stream."""

    def __init__(self, process: str, stream: TextIO | None, clock: Callable[[], float] = time.monotonic):
        """``process``: "controller", "agent", …; ``stream``: None for standard error as it is at the time."""
        super().__init__()
        self.stream_level = logging.WARNING
        self.records: collections.deque[DebugRecord] = collections.deque(maxlen=_KEPT)
        self._process = process
        self._stream = stream
        self.addFilter(RateLimit(clock))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = _text(record)
            self.records.append(DebugRecord(record.created, record.levelname, record.name.removeprefix("jdist."), text))
            # jdist is a library in the client's process: the user's own handlers show the record, if there are any.
            is_for_others = self._process == "client" and logging.getLogger().hasHandlers()
            if record.levelno >= self.stream_level and not is_for_others:
                stream = self._stream or sys.stderr
                stream.write(f"{self._prefix(record)}: {text}\n")
                stream.flush()
        except Exception:
            self.handleError(record)

    def _prefix(self, record: logging.LogRecord) -> str:
        if self.stream_level >= logging.WARNING:
            return f"jdist {self._process}"
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{at}.{int(record.msecs):03} jdist {self._process} {record.levelname}"


def _text(record: logging.LogRecord) -> str:
    """The message on one line, with control characters spelled out, and the traceback, if any, on lines of its own."""
    message = record.getMessage()
    text = _printable(message[:_LONGEST]) + "…" * (len(message) > _LONGEST)
    if dropped := getattr(record, "dropped", 0):
        text += f" … and {dropped} more like that"
    if record.exc_info and record.exc_info[0] is not None:
        lines = logging.Formatter().formatException(record.exc_info).splitlines()
        text = "\n".join([text, *map(_printable, lines)])
    return text


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def configure(process: str, stream: TextIO | None = None, level: str = "") -> None:
    """Set up logging in this process, once. ``level``: as JDIST_LOG, which it takes the place of where it is given."""
    logger = logging.getLogger("jdist")
    if _handler() is None:
        handler = LogHandler(process, stream)
        logger.addHandler(handler)
        logger.propagate = process == "client"
        if process in ("controller", "agent"):
            logging.getLogger("asyncio").addHandler(handler)
    set_level(level or os.environ.get(VARIABLE, ""))


def set_level(name: str) -> None:
    """Log everything from this level on: "debug", "info", …; "" for the default."""
    handler, level = _handler(), _LEVELS.get(name.lower(), logging.WARNING)
    if handler is not None:
        handler.stream_level = level
        logging.getLogger("jdist").setLevel(min(level, logging.INFO))


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable that another process of the cluster needs to log as this one does."""
    return {VARIABLE: environ[VARIABLE]} if environ.get(VARIABLE) else {}


@contextlib.contextmanager
def logged_faults(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log a fault in the block, and go on behind it: what follows is worth more than what failed."""
    try:
        yield
    except Exception:
        logger.exception("%s", what)


def newest(lines: int) -> tuple[DebugRecord, ...]:
    """The newest records of this process, oldest first."""
    handler = _handler()
    return tuple(handler.records)[-lines:] if handler is not None and lines > 0 else ()


def without_verbose(lines: list[str]) -> list[str]:
    """Lines of a log file without those that are there only because of JDIST_LOG."""
    return [line for line in lines if not _VERBOSE.match(line)]


def _handler() -> LogHandler | None:
    return next((h for h in logging.getLogger("jdist").handlers if isinstance(h, LogHandler)), None)
