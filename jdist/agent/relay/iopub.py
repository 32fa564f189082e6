"""Merge the output of a node's kernels into `Output` messages, and keep it in a log file for each rank.

Equal output of several ranks within a moment crosses the network once. When a stream exceeds its limit, the output
continues in the rank's log on this node, as far as the disk has room, and only its newest lines travel from then on,
with the exact count of those left out.
"""

import copy
import heapq
import itertools
import logging
import math
import os
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from jdist.agent.processes.kernel import (
    ClearContent,
    CommMessage,
    DisplayContent,
    KernelMessage,
    StreamContent,
    read_content,
)
from jdist.core.messages.base import Message
from jdist.core.messages.runs import (
    Clear,
    CommSent,
    Display,
    MetricPoints,
    MetricsLogged,
    Output,
    OutputItem,
    OutputNumber,
    Tail,
    Text,
)
from jdist.core.messages.widgets import CommContent
from jdist.core.outcome import WIDGET_VIEW
from jdist.core.waiting_output import Arrived, WaitingOutput
from jdist.wire.values.frames import Unpacker, encodable

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


_STREAMS: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
_TAIL_LINES = 40
_TAIL_CHARS = 8000
_CHARS_PER_LINE = 200  # The limit on characters is the limit on lines times this.
_REWRITES = 4  # With what is written over, the limit on characters times this.
_BACK = re.compile(r"\r(?!\n)|(\x1b\[\d*[AF])")  # Back to the line's beginning, or to the line above.
_DISPLAY_LIMIT = 4 << 20  # Bytes of displays of one rank in one run that travel.
_SMALL_DISPLAY = 64 << 10  # Bytes of a display that has room when larger ones have used up the limit:
_SMALL_LIMIT = 5 << 20  # this many bytes together with those.
_LONGEST_NAME = 60  # Characters of the name of a widget.
_LONGEST_ID = 1000  # Characters of a display's id.
_LEVELS = 300  # Levels of nesting by which a display stays below what can be encoded.
_PIECE = 1 << 20  # Characters of one item of text; a longer one travels in pieces.
_PARCEL = 4 << 20  # Characters and bytes in one message. Another item, a display say, may still begin below that.
_RUNS = 1000  # Runs whose last message is remembered; older ones only have threads that still write.

_metrics: Unpacker[MetricsLogged] = Unpacker(MetricsLogged)


class _TextMeter:
    """Counts the lines and characters that remain visible, without what was overwritten."""

    def __init__(self) -> None:
        self.lines = 0
        self._chars = 0
        self._line_chars = 0  # Of these, the characters of the line that is not ended yet.
        self._pending = ""  # A carriage return, until it is known that no newline follows.

    @property
    def chars(self) -> int:
        return self._chars + len(self._pending)

    def add(self, text: str) -> None:
        text = self._pending + text
        self._pending = "\r" if text.endswith("\r") else ""
        at, end = 0, len(text) - len(self._pending)
        for back in _BACK.finditer(text, 0, end):
            self._count(text[at : back.start()])
            self._chars -= self._line_chars
            self._line_chars = 0
            self.lines = max(0, self.lines - (back[1] is not None))
            at = back.end()
        self._count(text[at:end])

    def _count(self, text: str) -> None:
        newline = text.rfind("\n")
        self.lines += text.count("\n")
        self._chars += len(text)
        self._line_chars = len(text) + (self._line_chars if newline < 0 else -newline - 1)


class _CappedStream:
    """One rank's stdout or stderr in one run, against its limit. Overwritten text, such as progress bars, counts once.

    The client that submitted the run keeps all that is sent, so a second, larger limit applies to the raw text.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._chars_left = limit * _CHARS_PER_LINE * _REWRITES
        self._admitted = _TextMeter()
        self._is_capped = False
        self._withheld = _TextMeter()
        self._tail = ""
        self.has_new_tail = False

    def admit(self, text: str) -> str:
        """The part of ``text`` within the limit; the rest is counted and the newest of it kept."""
        head = self._within_limit(text)
        if len(head) < len(text):
            self._is_capped = True
            rest = text[len(head) :]
            self._withheld.add(rest)
            self._tail = (self._tail + rest)[-_TAIL_CHARS - 1 :]
            self.has_new_tail = True
        return head

    def _within_limit(self, text: str) -> str:
        if self._is_capped:
            return ""
        after = copy.copy(self._admitted)
        after.add(text)
        fits = after.chars <= self._limit * _CHARS_PER_LINE and len(text) <= self._chars_left
        if fits and after.lines + (not text.endswith("\n")) <= self._limit:
            head = text
        else:
            lines = max(0, self._limit - self._admitted.lines)
            chars = max(0, self._limit * _CHARS_PER_LINE - self._admitted.chars)
            head = text[: min(chars, self._chars_left)]
            if head.count("\n") >= lines:
                head = head[: len(head) - len(head.split("\n", lines)[-1])]
        self._chars_left -= len(head)
        self._admitted.add(head)
        return head

    def tail(self, worker: int, stream: Literal["stdout", "stderr"]) -> Tail:
        """The newest whole lines, and the count of what is neither in them nor was sent."""
        self.has_new_tail = False
        lines = self._tail.splitlines(keepends=True)
        if len(self._tail) > _TAIL_CHARS and len(lines) > 1:
            lines = lines[1:]  # its beginning is gone
        shown = "".join(lines[-_TAIL_LINES:])[-_TAIL_CHARS:]
        counted = _TextMeter()
        counted.add(shown)
        left_out = max(0, self._withheld.lines - counted.lines), max(0, self._withheld.chars - counted.chars)
        return Tail(worker, stream, *left_out, shown)


class _CappedDisplays:
    """One rank's displays in one run, against their limit.

    Only what travels counts, so a display that is too large takes no room from later ones. Large ones leave some to
    small ones.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._sizes: dict[str, int] = {}  # Of those that can be replaced, by their ids.
        self._is_full = False

    def admit(self, data: dict[str, Any], size: int, display_id: str) -> dict[str, Any]:
        """``data`` within the limit, a line in its place, or nothing where even such lines have become too many."""
        self._bytes -= self._sizes.pop(display_id, 0)  # what is shown again takes the place of what it replaces
        if self._bytes + size > (_SMALL_LIMIT if size <= _SMALL_DISPLAY else _DISPLAY_LIMIT):
            left_out = f"[a display of {size:,} bytes was left out: a rank shows at most 4 MB in a run]"
            data, size = {"text/plain": left_out}, len(left_out)
        if self._bytes + size > _SMALL_LIMIT:
            if self._is_full:
                return {}
            self._is_full = True
            data, size = {"text/plain": "[this and all later displays of this rank in this run were left out]"}, 0
        self._bytes += size
        if display_id:
            self._sizes[display_id] = size
        return data


class _RankOutput:
    """One rank's part of a run, waiting to be sent on."""

    def __init__(self, limit: int):
        self._waiting = WaitingOutput()
        self.points: list[MetricPoints] = []
        self.streams = {name: _CappedStream(limit) for name in _STREAMS}
        self.displays = _CappedDisplays()
        self.area = ""  # The comm of the output widget that captures what is written now.

    def add(self, arrived: int, item: OutputItem) -> None:
        """Have an item wait. Displays that it replaces or clears need not be sent any more."""
        if isinstance(item, Clear):
            self.displays = _CappedDisplays()
        self._waiting.add(arrived, item)

    def add_text(self, number: Callable[[], int], worker: int, name: Literal["stdout", "stderr"], text: str) -> None:
        """Have text wait, as a part of the last item if that is text of the same stream."""
        items = self._waiting.items
        _, last = items[-1] if items else (0, None)
        for at in range(0, len(text), _PIECE):
            piece = Text((worker,), name, text[at : at + _PIECE], self.area)
            is_same = isinstance(last, Text) and (last.stream, last.area) == (name, self.area)
            if isinstance(last, Text) and is_same and len(last.text) + len(piece.text) <= _PIECE:
                items[-1] = items[-1][0], msgspec.structs.replace(last, text=last.text + piece.text)
            else:
                self.add(number(), piece)
            last = items[-1][1]

    def add_comm(self, number: Callable[[], int], worker: int, message: KernelMessage) -> None:
        """Have a comm's message wait, in parts if it is large.

        An output widget begins to capture when its state gets a message's id, and ends when that is empty. Of a
        widget's updates of the same traits to numbers and texts, the newest stands for all. Other values may be
        commands, such as those that change a figure of plotly's, which are set and then reset.
        """
        comm = read_content(message, CommMessage)
        state = comm.state_set() if message.kind == "comm_msg" else {}
        if "msg_id" in state:
            self.area = comm.comm_id if state["msg_id"] else ""
        if state.get("outputs"):  # what a front end shows that has no widgets of ranks
            self.add(number(), Display((worker,), {WIDGET_VIEW: {}, "text/plain": "Output"}, area=self.area))
        kind: Any = message.kind.removeprefix("comm_")
        content = CommContent(kind, comm.target_name, bytes(comm.data), message.buffers)
        data = msgspec.msgpack.encode(content)
        parts = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
        is_plain = all(isinstance(value, int | float) or (value and isinstance(value, str)) for value in state.values())
        replaces = f"{comm.comm_id} {' '.join(sorted(state))}" if state and is_plain else ""
        for part in parts[:-1]:
            self.add(number(), CommSent((worker,), comm.comm_id, part, has_more=True))
        self.add(number(), CommSent((worker,), comm.comm_id, parts[-1], replaces if len(parts) == 1 else ""))

    def collect(self, worker: int) -> list[Arrived]:
        items, self._waiting = self._waiting.items, WaitingOutput()
        capped = (stream.tail(worker, name) for name, stream in self.streams.items() if stream.has_new_tail)
        return items + [(math.inf, tail) for tail in capped]

    def take_points(self) -> list[MetricPoints]:
        """What was logged since the last call."""
        points, self.points = self.points, []
        return points


class _OutputNumbers:
    """Numbers the messages of this agent."""

    def __init__(self) -> None:
        self._agent = secrets.randbits(48)
        self._newest = 0
        self._newest_of: dict[int, int] = {}  # By run.

    def next(self, run: int) -> OutputNumber:
        self._newest += 1
        previous = self._newest_of.pop(run, 0)
        self._newest_of[run] = self._newest
        if len(self._newest_of) > _RUNS:
            del self._newest_of[next(iter(self._newest_of))]
        return OutputNumber(self._agent, self._newest, previous)


class OutputRelay:
    """Gathers output by run and worker; `flush` sends what has gathered."""

    def __init__(self, send: Callable[[Message], object], logs: RankLogs):
        self.line_limit = 2000  # Lines of a rank's stream per run that travel.
        self._send = send
        self._logs = logs
        self._runs: dict[int, dict[int, _RankOutput]] = {}
        self._arrivals = itertools.count()
        self._numbers = _OutputNumbers()

    def record(self, worker: int, message: KernelMessage) -> bool:
        """Gather a kernel's message; True if something waits to be flushed."""
        match message.kind:
            case "stream":
                content = read_content(message, StreamContent)
                self._add_text(worker, message.run, content.name, content.text)
            case "display_data" | "execute_result" | "update_display_data":
                self._add_display(worker, message)
            case "clear_output":
                clear = read_content(message, ClearContent)
                part = self._part(message.run, worker)
                part.add(next(self._arrivals), Clear((worker,), clear.wait, part.area))
            case "comm_open" | "comm_msg" | "comm_close":
                self._part(message.run, worker).add_comm(lambda: next(self._arrivals), worker, message)
            case "jdist_metrics" if message.buffers:
                logged = _metrics(message.buffers[0])
                self._part(logged.run, worker).points += logged.points
            case _:
                return False
        return True

    def flush(self, run: int | None = None) -> None:
        """Send what has gathered, of one run or of all, in messages that the other end takes."""
        for number in [run] if run is not None else list(self._runs):
            parts = self._runs.get(number, {})
            items = merge({worker: part.collect(worker) for worker, part in parts.items()})
            for parcel in _parcels(items):
                has_more = any(not isinstance(item, Tail) for item in parcel)
                self._send(Output(number, tuple(parcel), self._numbers.next(number) if has_more else None))
            points = [each for part in parts.values() for each in part.take_points()]
            if points:
                self._send(MetricsLogged(number, tuple(points)))
        self._logs.flush()

    def end_rank(self, run: int, worker: int) -> None:
        """The rank's part of the run is over; what its threads write later still finds its way."""
        self._runs.get(run, {}).pop(worker, None)
        if not self._runs.get(run):
            self._runs.pop(run, None)

    def _part(self, run: int, worker: int) -> _RankOutput:
        return self._runs.setdefault(run, {}).setdefault(worker, _RankOutput(self.line_limit))

    def _add_text(self, worker: int, run: int, name: Literal["stdout", "stderr"], text: str) -> None:
        self._logs.write(worker, text)
        part = self._part(run, worker)
        part.add_text(lambda: next(self._arrivals), worker, name, part.streams[name].admit(text))

    def _add_display(self, worker: int, message: KernelMessage) -> None:
        content = read_content(message, DisplayContent)
        part = self._part(message.run, worker)
        display_id = str(content.transient.get("display_id", ""))[:_LONGEST_ID]
        shown = _with_short_name(content.data)
        data = part.displays.admit(shown, len(bytes(message.content)), display_id) if shown else {}
        if not data:
            return
        metadata = content.metadata if data is shown else {}
        is_result, is_update = message.kind == "execute_result", message.kind == "update_display_data"
        display = Display((worker,), data, metadata, display_id, is_result, is_update, part.area)
        part.add(next(self._arrivals), _encodable(display))


def _encodable(display: Display) -> Display:
    """The display with what a message can carry of it, and those who decode the message can read."""
    nested: Any = display
    for _ in range(_LEVELS):
        nested = [nested]
    try:
        msgspec.msgpack.encode(nested)
        return display
    except (OverflowError, UnicodeEncodeError, RecursionError):
        pass
    try:
        data, metadata = encodable(display.data), encodable(display.metadata)
    except RecursionError:
        data, metadata = {"text/plain": "[a display that is nested too deeply was left out]"}, {}
    return msgspec.structs.replace(display, data=data, metadata=metadata)


def _with_short_name(data: dict[str, Any]) -> dict[str, Any]:
    """The display, of a widget with the name of its class as text. ``Output()`` is an `Output` that has none yet."""
    if WIDGET_VIEW not in data or data.keys() - {WIDGET_VIEW, "text/plain"}:
        return data
    text = str(data.get("text/plain", ""))
    name = text.partition("(")[0].strip()
    name = name if name.isidentifier() and len(name) <= _LONGEST_NAME else "widget"
    return {**data, "text/plain": "Output()" if name == "Output" and "outputs=" not in text else name}


def merge(by_worker: dict[int, list[Arrived]]) -> list[OutputItem]:
    """All ranks' items in the order of arrival; of ranks that wrote exactly the same, once with all their ranks."""
    alike: dict[bytes, list[int]] = {}
    for worker, arrived in by_worker.items():
        if arrived:
            same = msgspec.msgpack.encode([_with_ranks(item, ()) for _, item in arrived])
            alike.setdefault(same, []).append(worker)
    streams = (_together(sorted(workers), by_worker) for workers in alike.values())
    return [item for _, item in heapq.merge(*streams, key=itemgetter(0))]


def _parcels(items: Iterable[OutputItem]) -> Iterator[list[OutputItem]]:
    """The items in order, as many at a time as one message may carry."""
    parcel: list[OutputItem] = []
    room = _PARCEL
    for item in items:
        parcel.append(item)
        room -= len(item.text) if isinstance(item, Text | Tail) else 0
        room -= len(msgspec.msgpack.encode(item)) if isinstance(item, Display) else 0
        room -= len(item.content) if isinstance(item, CommSent) else 0
        if room < 0:
            yield parcel
            parcel, room = [], _PARCEL
    if parcel:
        yield parcel


def _together(workers: Sequence[int], by_worker: dict[int, list[Arrived]]) -> Iterator[Arrived]:
    """The items of workers that wrote the same, each when the first of them wrote it."""
    for same in zip(*(by_worker[worker] for worker in workers), strict=True):
        yield min(arrival for arrival, _ in same), _with_ranks(same[0][1], workers)


def _with_ranks(item: OutputItem, ranks: Iterable[int]) -> OutputItem:
    return item if isinstance(item, Tail) else msgspec.structs.replace(item, ranks=tuple(ranks))
