"""Memory without a name, in which names pass from one process to the next: pickles, then buffers, then an index."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from jdist.core.errors import ProtocolError
from jdist.core.quantities import format_bytes
from jdist.wire.values.segments import ALIGNMENT, SLICE

_PROGRESS_EVERY = 0.5  # Seconds.
_MARGIN = 0.05  # Share of the memory that has to stay free.
_ALWAYS = 256 << 20  # Bytes that pickles may take where little memory counts as free.


class Index(Struct, frozen=True):
    """What the memory holds, and where."""

    names: tuple[tuple[str, int], ...]  # Each name, and where its pickle begins.
    end: int  # Where the last pickle ends.
    buffers: tuple[tuple[int, int], ...]  # Beginning and length of each buffer.
    losses: tuple[tuple[str, str], ...]  # What could not be carried, and why: `("gen", "a generator")`.


class NamesWriter:
    """The memory as it is written, a file for a pickler; calls ``report`` now and then while that makes progress."""

    def __init__(self, report: Callable[[], None]):
        self.fd = os.memfd_create("jdist-names", os.MFD_CLOEXEC)
        self._limit = max(_ALWAYS, free_memory())
        self._report = report
        self._reported = time.monotonic()
        self._is_discarded = False
        self.end = 0
        self.written = 0  # Bytes so far, also of a write that goes on.

    def write(self, data: Any) -> int:
        """Append to the pickles. Raises MemoryError when they take more than there is."""
        if self.end + memoryview(data).nbytes > self._limit:
            raise MemoryError(f"it takes more than the {format_bytes(self._limit)} of memory that are free")
        written = self._write_at(self.end, memoryview(data).cast("B"))
        self.end += written
        return written

    def discard(self) -> None:
        """Give the memory back; what is written from now on raises ValueError. The process is about to end."""
        self._is_discarded = True
        os.ftruncate(self.fd, 0)  # closing it would let another file take its number while a thread still writes

    def finish(
        self,
        names: Sequence[tuple[str, int]],
        buffers: Sequence[tuple[int, Callable[[], memoryview]]],
        losses: Sequence[tuple[str, str]],
    ) -> int:
        """Write the buffers, each with its length, and the index; the number of bytes in all."""
        places, at = [], self.end
        for nbytes, view in buffers:
            at = -(-at // ALIGNMENT) * ALIGNMENT
            places.append((at, nbytes))
            if nbytes:
                self._write_at(at, view())
            at += nbytes
        index = msgspec.msgpack.encode(Index(tuple(names), self.end, tuple(places), tuple(losses)))
        self._write_at(at, memoryview(index + len(index).to_bytes(8, "little")))
        return at + len(index) + 8

    def _write_at(self, offset: int, data: memoryview) -> int:
        if self._is_discarded:
            raise ValueError("what is written is not wanted any more")
        done = 0
        while done < len(data):
            count = os.pwrite(self.fd, data[done : done + SLICE], offset + done)
            done += count
            self.written += count
            if time.monotonic() - self._reported >= _PROGRESS_EVERY:
                self._reported = time.monotonic()
                self._report()
        return done


class NamesReader:
    """The memory as it is read.

    Behind what was written, a reader notes which name it is about to load. A name at which two processes have ended is
    not loaded by the next.
    """

    def __init__(self, fd: int, nbytes: int):
        self._fd = fd
        self.has_read = 0  # Bytes of buffers, so far.
        length = int.from_bytes(self._read(nbytes - 8, 8), "little")
        self.index = msgspec.msgpack.decode(self._read(nbytes - 8 - length, length), type=Index)

        notes = os.pread(fd, 1 << 16, nbytes)
        self._own_note = nbytes + len(notes)
        ended_at = Counter(int.from_bytes(notes[at : at + 4], "little") for at in range(0, len(notes), 4))
        self.deadly = {number for number, times in ended_at.items() if times > 1}

    def note(self, number: int) -> None:
        """The name of this number is about to be loaded."""
        os.pwrite(self._fd, number.to_bytes(4, "little"), self._own_note)

    def pickle_of(self, number: int) -> bytes:
        """The pickle of a name, by its number in the index."""
        begin = self.index.names[number][1]
        following = self.index.names[number + 1 :]
        return self._read(begin, (following[0][1] if following else self.index.end) - begin)

    def read_buffer(self, number: int, target: memoryview) -> None:
        """Read a buffer into memory of its length."""
        at, nbytes = self.index.buffers[number]
        if nbytes != len(target):
            raise ProtocolError(f"buffer {number} has {nbytes} bytes where {len(target)} were expected")
        done = 0
        while done < nbytes:
            read = os.preadv(self._fd, [target[done : done + SLICE]], at + done)
            if not read:
                raise ProtocolError(f"buffer {number} ends after {done} of {nbytes} bytes")
            done += read
            self.has_read += read

    def _read(self, at: int, nbytes: int) -> bytes:
        data = os.pread(self._fd, nbytes, at) if at >= 0 and nbytes >= 0 else b""
        while data and len(data) < nbytes:
            more = os.pread(self._fd, nbytes - len(data), at + len(data))
            if not more:
                break
            data += more
        if len(data) != nbytes:
            raise ProtocolError(f"{len(data)} bytes were read where {nbytes} were expected")
        return data


def free_memory() -> int:
    """Bytes that this process may take without running out of memory, by the machine's and its cgroup's counts."""
    machine = psutil.virtual_memory()
    free = int(machine.available - _MARGIN * machine.total)
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        inside = next(line for line in lines if line.startswith("0::"))[3:].lstrip("/")
        folder = Path("/sys/fs/cgroup") / inside
        limit, used = (int((folder / f"memory.{what}").read_text()) for what in ("max", "current"))
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used -= int(counts.get("inactive_file", 0))  # cached files, which make room
        free = min(free, int(limit * (1 - _MARGIN)) - used)
    return free
