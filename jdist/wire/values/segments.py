"""Segments: files in shared memory through which bulk values pass between processes of one host.

The sender creates a segment, fills it, and sends its path and size; the receiver maps it and builds tensors on the
mapping. It is filled by writes to the file, not to a mapping: they release the GIL, a full file system is an OSError
instead of a SIGBUS, and writing 100 MB to new pages takes about half the time of page faults. The standard library's
shared memory is not used, since its resource tracker unlinks segments that other processes still need.
Files are named ``jdist-<cluster>-<owner><hex>``, belong to the user alone (mode 0600), and can be swept by cluster or
by owner, so that a process that is killed before it has handed a segment over leaves nothing behind.
"""

import contextlib
import mmap
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from jdist.core.errors import ProtocolError, UsageError, ValueFailed
from jdist.core.messages.base import ProbeWire
from jdist.wire.own_files import distrust, is_own, open_own, write_at
from jdist.wire.processes import has_ended, pid_namespace

ALIGNMENT = 64  # Every buffer begins at a multiple of so many bytes, which suits every dtype and a cache line.
SLICE = 32 << 20  # Bytes copied between two reports of progress.
_SHARED_MEMORY = "/dev/shm"
_MARGIN = 256 << 20  # Bytes that stay free of a file system, or a tenth of it if that is less.
_NONCE = 32  # Bytes of a probe's nonce; its file holds it in hexadecimal.
_CLUSTER = r"[A-Za-z0-9_.-]+"
_NAME = re.compile(rf"jdist-{_CLUSTER}-[0-9a-f]{{32}}")

Progress = Callable[[int], None]  # Called with the bytes copied so far, after every slice.


def layout(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Offsets at which buffers of these byte lengths lie in one segment, and the segment's length in bytes."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        end = start + size
    return tuple(offsets), end


def split(view: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """The buffers that :func:`layout` placed in ``view``, as views on it. Raises ProtocolError if it is too short."""
    offsets, total = layout(sizes)
    if len(view) < total:
        raise ProtocolError(f"{len(view)} bytes arrived where {total} were announced; ask for the value again")
    return [view[start : start + size] for start, size in zip(offsets, sizes, strict=True)]


def new_memory(nbytes: int) -> memoryview:
    """``nbytes`` writable zero bytes of this process, page-aligned, freed with the last tensor that is built on them.

    No page is touched yet. Huge pages are used if possible: for 100 MB, faults of small ones take as long as the copy.
    """
    if nbytes == 0:
        return memoryview(bytearray())
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, nbytes))
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # this kernel was built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class Segment:
    """A named file in shared memory and its mapping in this process.

    ``close`` releases this process's mapping; the memory itself lives until the last tensor built on ``view`` is gone.
    ``unlink`` removes the name; a process that has the file open keeps it.
    """

    def __init__(self, path: str, fd: int, nbytes: int, private: bool):
        self.path = path
        self.nbytes = nbytes
        self._fd = fd
        self._writing = threading.Lock()
        self._access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @classmethod
    def create(cls, cluster: str, nbytes: int) -> Self:
        """Reserve ``nbytes`` in shared memory or the temporary directory. Raises ValueFailed if neither has room."""
        refused: list[str] = []
        for directory in _directories():
            disk = shutil.disk_usage(directory)
            if nbytes + min(_MARGIN, disk.total // 10) > disk.free:
                refused.append(f"{directory} has too little room")
                continue
            try:
                return cls(*_new_file(directory, cluster, nbytes), nbytes, private=False)
            except OSError as e:
                refused.append(f"{directory}: {e.strerror}")
        raise ValueFailed(
            f"no room on this host for {nbytes:,} bytes of a value on their way ({'; '.join(refused)}); "
            "free some there, set TMPDIR to a larger disk, or move a smaller part of the value"
        )

    @classmethod
    def open(cls, path: str, nbytes: int, private: bool = True) -> Self:
        """Open a segment that another process of this user created.

        With ``private``, writes to ``view`` stay in this process (copy on write), so several ranks may build tensors on
        one segment; without it they cost no copy, which is right for a single reader.
        Raises ProtocolError if the file is not such a segment (name, owner, kind, size), ValueFailed if it is gone.
        """
        if _NAME.fullmatch(os.path.basename(path)) is None:
            raise ProtocolError(f"{path!r} is no segment of jdist")
        try:
            fd = open_own(path, os.O_RDWR)
        except OSError as e:
            raise ValueFailed(f"shared memory {path} cannot be opened on this host: {e.strerror}") from e
        found = os.fstat(fd)
        reason = distrust(found)
        if not reason and found.st_size != nbytes:
            reason = f"it has {found.st_size} bytes where {nbytes} were announced"
        if reason:
            os.close(fd)
            raise ProtocolError(f"shared memory {path} is refused: {reason}")
        return cls(path, fd, nbytes, private)

    @property
    def view(self) -> memoryview:
        """All bytes, writable; :func:`jdist.wire.values.objects.decode` builds values on views of it."""
        if self._view is None:
            if self._fd < 0:
                raise ValueError(f"segment {self.path} is closed")
            if self.nbytes:
                self._map = mmap.mmap(self._fd, self.nbytes, access=self._access)
            self._view = memoryview(self._map or bytearray())
        return self._view

    def fill(self, buffers: Sequence[memoryview], progress: Progress | None = None) -> None:
        """Write ``buffers`` as in :func:`layout`, without the GIL. Raises UsageError if they do not fit, or OSError."""
        offsets, total = layout([b.nbytes for b in buffers])
        if total > self.nbytes:
            raise UsageError(f"{total} bytes do not fit a segment of {self.nbytes}")
        done = 0
        for start, buffer in zip(offsets, buffers, strict=True):
            flat = buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")
            for at in range(0, len(flat), SLICE):
                piece = flat[at : at + SLICE]
                self.write(start + at, piece)
                done += len(piece)
                if progress is not None:
                    progress(done)

    def write(self, offset: int, piece: memoryview) -> None:
        """Write bytes at ``offset``, without holding the GIL. Raises OSError when the disk fails."""
        written = 0
        while written < len(piece):
            with self._writing:  # else a cancelled sender could close it meanwhile, and its number be another file's
                written += write_at(self._fd, piece[written:], offset + written)

    def hand_over(self, receiver: str) -> None:
        """Give the segment to the process that made the probe at ``receiver``, which is to unlink it from now on.

        Raises ValueFailed if that process has removed the probe, as it no longer waits for the value.
        """
        path = f"{self.path[:-32]}{_mark(receiver)}{self.path[-8:]}"
        os.rename(self.path, path)
        self.path = path
        # After the rename: the receiver removes its probe first and looks for segments afterwards. So either it finds
        # this one, or the probe is missing here, and the sender unlinks the segment.
        if not os.path.exists(receiver):
            raise ValueFailed("nobody waits for the value any more")

    def unlink(self) -> None:
        """Remove the name, if it is still there."""
        Path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the mapping and the file descriptor; may be called again."""
        if self._view is not None:
            with contextlib.suppress(BufferError):  # a tensor is still built on the memory; the last one unmaps it
                self._view.release()
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
        self._view = self._map = None
        with self._writing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def create_probe(cluster: str) -> ProbeWire:
    """A random nonce in a tiny file, to be sent to peers: one that can read it is this user's, on this host."""
    nonce = secrets.token_hex(_NONCE)
    with Segment.create(cluster, len(nonce)) as segment:
        segment.fill([memoryview(nonce.encode())])
        return ProbeWire(segment.path, nonce)


@contextlib.contextmanager
def receiving(cluster: str) -> Iterator[ProbeWire]:
    """A probe for receiving one segment.

    On exit the probe is removed, and so is a segment that was handed over to it, even if the message with the segment's
    path has not arrived.
    """
    probe = create_probe(cluster)
    try:
        yield probe
    finally:
        Path(probe.path).unlink(missing_ok=True)
        _sweep(cluster, lambda _owner, path: _mark(path.name) == _mark(probe.path))


def shares_memory(probe: ProbeWire | None) -> bool:
    """Whether this process sees the file that the sender of the probe wrote; False without a probe."""
    if probe is None:
        return False
    nonce = probe.nonce.encode()
    try:
        with Segment.open(probe.path, len(nonce)) as segment:
            return secrets.compare_digest(bytes(segment.view), nonce)
    except (ProtocolError, ValueFailed):
        return False


def sweep(cluster: str) -> list[str]:
    """Unlink every segment and probe of this user's ``cluster`` on this host; returns the paths."""
    return _sweep(cluster, lambda _owner, _path: True)


def sweep_dead(cluster: str = "") -> list[str]:
    """Unlink the segments and probes of this user's ``cluster`` whose owners have ended; returns the paths.

    Without a cluster, those of all: of one that was killed as a whole, no process is left to do it.
    """
    space = f"{pid_namespace():08x}"  # owners in other pid namespaces cannot be checked, and keep theirs
    return _sweep(cluster, lambda owner, _: owner[:8] == space and has_ended(int(owner[8:], 16)))


def sweep_handed_over(cluster: str) -> list[str]:
    """Unlink the segments that this process owns and has not opened; returns the paths. Its probes stay."""
    # The process has lost its controller, and so does not know what ranks handed over to it in the meantime.
    own = _own_owner()
    return _sweep(cluster, lambda owner, path: owner == own and path.stat().st_size > 2 * _NONCE)


def _sweep(cluster: str, is_to_go: Callable[[str, Path], bool]) -> list[str]:
    """Unlink this user's files of which ``is_to_go(owner, path)`` is true."""
    name = re.escape(_checked(cluster)) if cluster else _CLUSTER
    pattern = re.compile(rf"jdist-{name}-([0-9a-f]{{16}})[0-9a-f]{{16}}")
    swept: list[str] = []
    for path in (path for directory in _directories() for path in Path(directory).glob("jdist-*")):
        found = pattern.fullmatch(path.name)
        with contextlib.suppress(FileNotFoundError):  # another process has unlinked it
            if found is not None and is_own(path.lstat()) and is_to_go(found[1], path):
                path.unlink()
                swept.append(str(path))
    return sorted(swept)


def _mark(path: str) -> str:
    """The part of a probe's file name that segments get in theirs when they are handed over to it.

    It consists of the owner's id and half of the probe's random digits.
    """
    return path[-32:-8]


def _own_owner() -> str:
    return f"{pid_namespace():08x}{os.getpid():08x}"


def _directories() -> list[str]:
    """Shared memory first, the temporary directory second."""
    return list(dict.fromkeys(d for d in (_SHARED_MEMORY, tempfile.gettempdir()) if Path(d).is_dir()))


def _checked(cluster: str) -> str:
    if re.fullmatch(_CLUSTER, cluster) is None:
        raise UsageError(f"cluster name {cluster!r} has characters other than letters, digits and _ . -")
    return cluster


def _new_file(directory: str, cluster: str, nbytes: int) -> tuple[str, int]:
    path = os.path.join(directory, f"jdist-{_checked(cluster)}-{_own_owner()}{secrets.token_hex(8)}")
    fd = open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        if nbytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)  # reserves the pages: no later write can find the file system full
        else:
            os.ftruncate(fd, nbytes)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return path, fd
