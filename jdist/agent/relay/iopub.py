"""Relay: the only translator of Jupyter messages. Kernel messages in, jdist's Output out, merged over the node's ranks.

What several ranks say alike within a moment crosses the network once. A stream that grows past its limit goes on in the
rank's log on this node; from then on only its newest lines travel, with the exact count of what was left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec
from msgspec import Struct

from jdist.core.errors import ProtocolError
from jdist.core.messages.base import MESSAGE_ID, Message
from jdist.core.messages.output import Clear, Display, Output, OutputItem, Tail, Text

_DELIMITER = b"<IDS|MSG>"
_LOG_NAME = re.compile(r"rank-(\d+)((?:\.old)?\.log)")
_TAIL_LINES = 40
_TAIL_CHARS = 8000
_CHARS_PER_LINE = 200
"""The limit on characters is the limit on lines times this."""
_DISPLAY_LIMIT = 4 << 20
"""Bytes of displays of one rank in one run that travel."""
_LOG_LIMIT = 256 << 20
"""Bytes of a rank's log before the older half is dropped."""
_READ_LIMIT = 8 << 20
_READ_STEP = 64 << 10
"""Bytes of a log that are read for an answer: at most, and at a time."""


class _Header(Struct):
    msg_type: str = ""
    msg_id: str = ""


class KernelMessage(Struct, frozen=True):
    """What is read of a Jupyter message."""

    kind: str
    run: int
    content: msgspec.Raw
    buffers: tuple[bytes, ...]


_header = msgspec.json.Decoder(_Header)


def parse(frames: list[bytes]) -> KernelMessage:
    """A message from a kernel's iopub or stdin socket; ``run`` is 0 when no run of ours is its parent.

    Raises ProtocolError for what is none.
    """
    try:
        at = frames.index(_DELIMITER)
        header = _header.decode(frames[at + 2])
        parent = _header.decode(frames[at + 3])
        content = msgspec.Raw(frames[at + 5])
    except (ValueError, IndexError, msgspec.MsgspecError, RecursionError) as e:
        raise ProtocolError(f"not a message of a kernel's: {e}") from None
    run = parent.msg_id.removeprefix(MESSAGE_ID)
    number = int(run) if run != parent.msg_id and run.isdecimal() else 0
    return KernelMessage(header.msg_type, number, content, tuple(frames[at + 6 :]))


class _Stream:
    """One rank's stdout or stderr in one run, against its limit."""

    def __init__(self, limit: int):
        self._lines_left = limit
        self._chars_left = limit * _CHARS_PER_LINE
        self.is_capped = False
        self._withheld_lines = 0
        self._withheld_chars = 0
        self._tail = ""

    def pass_on(self, text: str) -> str:
        """The part of ``text`` within the limit; the rest is counted and the newest of it kept."""
        if self.is_capped:
            self._withhold(text)
            return ""
        head = self._within(text)
        if len(head) < len(text):
            self.is_capped = True
            self._withhold(text[len(head) :])
        return head

    def _within(self, text: str) -> str:
        head = text[: self._chars_left]
        head = head[: _end_of_line(head, self._lines_left)]
        self._chars_left -= len(head)
        self._lines_left -= head.count("\n")
        return head

    def _withhold(self, text: str) -> None:
        self._withheld_lines += text.count("\n")
        self._withheld_chars += len(text)
        self._tail = (self._tail + text)[-_TAIL_CHARS - 1 :]

    def tail(self, rank: int, stream: Literal["stdout", "stderr"]) -> Tail:
        """The newest whole lines, and the count of what is neither in them nor was passed on."""
        lines = self._tail.splitlines(keepends=True)
        if len(self._tail) > _TAIL_CHARS and len(lines) > 1:
            lines = lines[1:]  # its beginning is gone
        shown = "".join(lines[-_TAIL_LINES:])[-_TAIL_CHARS:]
        return Tail(rank, stream, self._withheld_lines - shown.count("\n"), self._withheld_chars - len(shown), shown)


def _end_of_line(text: str, number: int) -> int:
    """Where the ``number``-th line of ``text`` ends; the text's end if it has fewer."""
    if number <= 0:
        return 0
    if text.count("\n") < number:
        return len(text)
    at = -1
    for _ in range(number):
        at = text.index("\n", at + 1)
    return at + 1


class _Part:
    """One rank's part of a run, waiting to be sent on."""

    def __init__(self, limit: int):
        self.items: list[OutputItem] = []
        self.streams = {"stdout": _Stream(limit), "stderr": _Stream(limit)}
        self.changed: set[str] = set()
        self.display_bytes = 0
        self.display_sizes: dict[str, int] = {}


class Relay:
    """Gathers output by run and rank; :meth:`flush` sends what has gathered."""

    def __init__(self, send: Callable[[Message], object], log_directory: Path):
        self._send = send
        self._directory = log_directory
        self._limit = 2000
        self._parts: dict[int, dict[int, _Part]] = {}
        self._logs: dict[int, BinaryIO] = {}

    def set_limit(self, lines: int) -> None:
        """Lines of a rank's stream per run that travel."""
        self._limit = lines

    def log_path(self, rank: int) -> Path:
        """Where all that the rank wrote lies."""
        return self._directory / f"rank-{rank}.log"

    def take(self, rank: int, message: KernelMessage) -> bool:
        """Note a kernel's message; True if there is something to flush."""
        match message.kind:
            case "stream":
                content = _read(message.content, _StreamContent)
                self._text(rank, message.run, content.name, content.text)
            case "display_data" | "execute_result" | "update_display_data":
                self._display(rank, message)
            case "clear_output":
                clear = _read(message.content, _ClearContent)
                part = self._part(message.run, rank)
                part.items.append(Clear((rank,), clear.wait))
                part.display_bytes, part.display_sizes = 0, {}
            case _:
                return False
        return True

    def flush(self, run: int | None = None) -> None:
        """Send what has gathered, of one run or of all."""
        for number in [run] if run is not None else list(self._parts):
            parts = self._parts.get(number, {})
            items = merge({rank: self._collect(rank, part) for rank, part in parts.items()})
            if items:
                self._send(Output(number, tuple(items)))
        for log in self._logs.values():
            log.flush()

    def forget(self, run: int, rank: int) -> None:
        """The rank's part of the run is over; late words of its threads still find their way."""
        parts = self._parts.get(run, {})
        parts.pop(rank, None)
        if not parts:
            self._parts.pop(run, None)

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Ranks have other numbers, ``{old: new}``; the logs follow, and those of ranks that are not named go."""
        self.flush()
        self.close()
        for run, parts in list(self._parts.items()):
            self._parts[run] = {numbers[rank]: part for rank, part in parts.items() if rank in numbers}
        logs = [(path, _LOG_NAME.fullmatch(path.name)) for path in self._directory.iterdir()]
        aside = [(path.rename(path.with_name(f"{path.name}.aside")), name) for path, name in logs if name is not None]
        for path, name in aside:
            rank = numbers.get(int(name[1]))
            if rank is None:
                path.unlink()
            else:
                path.rename(self._directory / f"rank-{rank}{name[2]}")

    def read_log(self, rank: int, lines: int) -> str:
        """The newest lines of the rank's log, ``\\r`` applied."""
        path = self.log_path(rank)
        if lines <= 0 or not path.exists():
            return ""
        if rank in self._logs:
            self._logs[rank].flush()
        rows = _end_of_file(path, lines).decode(errors="replace").removesuffix("\n").split("\n")
        return "\n".join(row.rstrip("\r").rpartition("\r")[2] for row in rows[-lines:])

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _part(self, run: int, rank: int) -> _Part:
        return self._parts.setdefault(run, {}).setdefault(rank, _Part(self._limit))

    def _text(self, rank: int, run: int, name: Literal["stdout", "stderr"], text: str) -> None:
        self._write_log(rank, text)
        part = self._part(run, rank)
        stream = part.streams[name]
        passed = stream.pass_on(text)
        if stream.is_capped:
            part.changed.add(name)
        if not passed:
            return
        last = part.items[-1] if part.items else None
        if isinstance(last, Text) and last.stream == name:
            part.items[-1] = Text((rank,), name, last.text + passed)
        else:
            part.items.append(Text((rank,), name, passed))

    def _display(self, rank: int, message: KernelMessage) -> None:
        content = _read(message.content, _DisplayContent)
        part = self._part(message.run, rank)
        size = len(bytes(message.content))
        display_id = str(content.transient.get("display_id", ""))
        if display_id:  # what is shown again takes the place of what it replaces
            part.display_bytes -= part.display_sizes.get(display_id, 0)
            part.display_sizes[display_id] = size
        part.display_bytes += size
        data = content.data
        if part.display_bytes > _DISPLAY_LIMIT:
            data = {
                "text/plain": f"[a display of {size} bytes was left out: this rank showed more than 4 MB in this run]"
            }
        part.items.append(
            Display(
                (rank,),
                data,
                content.metadata,
                display_id,
                is_result=message.kind == "execute_result",
                is_update=message.kind == "update_display_data",
            )
        )

    def _collect(self, rank: int, part: _Part) -> list[OutputItem]:
        items, part.items = part.items, []
        for name in ("stdout", "stderr"):
            if name in part.changed:
                items.append(part.streams[name].tail(rank, name))
        part.changed = set()
        return items

    def _write_log(self, rank: int, text: str) -> None:
        log = self._logs.get(rank)
        if log is None:
            log = self._logs[rank] = self.log_path(rank).open("ab")
        log.write(text.encode(errors="replace"))
        if log.tell() > _LOG_LIMIT:
            log.close()
            self.log_path(rank).replace(self.log_path(rank).with_suffix(".old.log"))
            del self._logs[rank]


def _end_of_file(path: Path, lines: int) -> bytes:
    """The end of a file with its last ``lines`` lines in it, as far as one message can carry them."""
    data = b""
    with path.open("rb") as f:
        start = f.seek(0, os.SEEK_END)
        while start and data.count(b"\n") <= lines and len(data) < _READ_LIMIT:
            step = min(start, _READ_STEP)
            start = f.seek(start - step)
            data = f.read(step) + data
    return data


class _StreamContent(Struct):
    name: Literal["stdout", "stderr"]
    text: str


class _DisplayContent(Struct):
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class _RequestContent(Struct):
    prompt: str = ""
    password: bool = False


class _ClearContent(Struct):
    wait: bool = False


_C = TypeVar("_C", bound=Struct)


def _read(content: msgspec.Raw, kind: type[_C]) -> _C:
    """A message's content. What a cell printed that is no UTF-8 (a file name, say) the kernel sends as it is."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (UnicodeDecodeError, msgspec.DecodeError):
        try:
            return msgspec.json.decode(bytes(content).decode(errors="replace"), type=kind)
        except (msgspec.DecodeError, RecursionError) as e:
            raise ProtocolError(f"not what a kernel shows: {e}") from None


def read_request(content: msgspec.Raw) -> tuple[str, bool]:
    """The prompt of a kernel's request for input, and whether what is typed is a password."""
    request = _read(content, _RequestContent)
    return request.prompt, request.password


def merge(by_rank: dict[int, list[OutputItem]]) -> list[OutputItem]:
    """Items of ranks that said exactly the same, once with all their ranks; each rank's order is kept."""
    alike: dict[bytes, list[int]] = {}
    for rank, items in by_rank.items():
        if items:
            alike.setdefault(_signature(items), []).append(rank)
    merged: list[OutputItem] = []
    for ranks in alike.values():
        merged.extend(_with_ranks(by_rank[ranks[0]], tuple(sorted(ranks))))
    return merged


def _signature(items: Iterable[OutputItem]) -> bytes:
    neutral = [i if isinstance(i, Tail) else msgspec.structs.replace(i, ranks=()) for i in items]
    return msgspec.msgpack.encode(neutral)


def _with_ranks(items: Iterable[OutputItem], ranks: tuple[int, ...]) -> Iterable[OutputItem]:
    for item in items:
        yield item if isinstance(item, Tail) else msgspec.structs.replace(item, ranks=ranks)
