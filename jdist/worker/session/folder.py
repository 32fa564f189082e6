"""The folder of saves: ``DIR/save-000001``, ``save-000002``, … each complete, for it gets its name as the last step.

::

    DIR/save-000007/manifest.json           what it holds, for people
                    names/all.msgpack       pickles of the names that are equal on all ranks
                    names/rank-3.msgpack    rank 3's other names, and where its tensors are
                    tensors/                a checkpoint of torch.distributed.checkpoint
    DIR/.writing-ID/                        the same while it is being written
    DIR/.given-up-ID/                       the same while it is being removed

Each rank that writes holds a shared lock on a file in ``.writing-ID``. A folder that no rank holds is abandoned: its
ranks have died, and whoever begins the next save there removes it. A save gets its number at its end, so that two
clusters may save into one folder. It is completed, or given up, by renaming: of two that try, one succeeds.
"""

import contextlib
import errno
import fcntl
import math
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from jdist.core.errors import UsageError
from jdist.core.messages.saving import MANIFEST
from jdist.wire.processes import host_id

_SAVE = re.compile(r"save-(\d{6,})")
_WRITING = ".writing-"
_GIVEN_UP = ".given-up-"
_COMPLETING = "parts.complete"
_IN_USE = "in-use"
_QUIET = 300.0  # Seconds without a change after which what other hosts have written is taken for abandoned.
_STALE = 24 * 3600.0  # Seconds after which it is taken for abandoned where files cannot be locked.

TENSORS = "tensors"
ALL = "names/all.msgpack"


def rank_file(rank: int) -> str:
    """The file of one rank's names."""
    return f"names/rank-{rank}.msgpack"


def part_file(rank: int) -> str:
    """The file by which a rank tells the others that its part has been written."""
    return f"parts/{rank}"


def begin(directory: Path, save: str) -> tuple[Path, Path]:
    """Make the folder to write to; it, and what it will probably be called. Raises UsageError."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_own(directory)
        sweep(directory)
        writing = directory / f"{_WRITING}{save}"
        for inner in (writing, writing / "names", writing / "parts", writing / TENSORS):
            inner.mkdir(mode=0o700)
    except OSError as e:
        raise UsageError(f"{directory} cannot be written to: {e.strerror or e}") from e
    return writing, next_save(directory)


def next_save(directory: Path) -> Path:
    """What the next save in a directory is to be called: one more than any folder there, complete or not."""
    numbers = [int(match[1]) for path in directory.iterdir() if (match := _SAVE.fullmatch(path.name))]
    return directory / f"save-{max(numbers, default=0) + 1:06d}"


def hold(writing: Path) -> int:
    """Hold the folder, as one of those that write to it; a descriptor whose closing ends that. Raises UsageError."""
    try:
        fd = os.open(writing / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise UsageError(f"{socket.gethostname()} cannot write into {writing.parent}: {e.strerror}") from e
    with contextlib.suppress(OSError):  # there are file systems without locks
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if not os.fstat(fd).st_nlink:
        os.close(fd)
        raise UsageError(f"{writing} has been removed")
    os.write(fd, f"{host_id()}\n".encode())
    return fd


def sweep(directory: Path) -> None:
    """Remove what ranks that have died have left of saves that they had not completed."""
    for left in directory.glob(f"{_WRITING}*"):
        if _is_abandoned(left):
            discard(left)
    for left in directory.glob(f"{_GIVEN_UP}*"):
        shutil.rmtree(left, ignore_errors=True)


def _is_abandoned(writing: Path) -> bool:
    try:
        with open(writing / _IN_USE, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hosts = set(file.read().decode().split())
        if hosts == {host_id()}:
            return True
        newest = max(
            map(_modified, writing.rglob("*")), default=_modified(writing)
        )  # locks of other hosts may not show
        return time.time() - newest > _QUIET
    except BlockingIOError:
        return False
    except OSError:  # it is just being made, or its file system has no locks
        return time.time() - _modified(writing) > _STALE


def _modified(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return math.inf


def saves(directory: Path) -> list[tuple[int, Path]]:
    """The complete saves in a directory, oldest first, with their numbers."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in directory.iterdir():
            match = _SAVE.fullmatch(path.name)
            if match and (path / MANIFEST).is_file():
                found.append((int(match[1]), path))
    return sorted(found)


def is_first_to_complete(writing: Path) -> bool:
    """Whether this rank is the one that completes a save whose parts have all been written."""
    try:
        os.close(os.open(writing / _COMPLETING, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except (FileExistsError, FileNotFoundError):
        return False
    return True


def commit(writing: Path, keep: int) -> Path:
    """Give a folder that is completely written its name, and remove the oldest saves; its path from now on."""
    directory = writing.parent
    shutil.rmtree(writing / "parts", ignore_errors=True)
    (writing / _COMPLETING).unlink()
    (writing / _IN_USE).unlink(missing_ok=True)
    for path in [*writing.rglob("*"), writing]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        if path.is_dir():
            _sync(path)
    final = _rename(writing)
    _sync(directory)
    for _, old in saves(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _rename(writing: Path) -> Path:
    while True:
        final = next_save(writing.parent)
        try:
            return writing.rename(final)
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another cluster has just taken that number
                raise


def discard(writing: Path) -> None:
    """Remove what has been written of a save that failed; nothing if it has been completed meanwhile."""
    given_up = writing.with_name(writing.name.replace(_WRITING, _GIVEN_UP))
    with contextlib.suppress(OSError):
        writing.rename(given_up)
        shutil.rmtree(given_up, ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """Write a file that is on the disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def newest(directory: Path) -> Path:
    """The newest complete save in a directory, or the directory itself if it is one. Raises UsageError."""
    if (directory / MANIFEST).is_file():
        return directory
    found = saves(directory)
    if not found:
        what = "saved session in" if directory.is_dir() else "folder"
        raise UsageError(f"there is no {what} {directory}; name the folder that was given to save")
    return found[-1][1]


@contextlib.contextmanager
def opened(save: Path) -> Iterator[Path]:
    """A path that leads to this very folder while it is open, whatever is renamed. Raises UsageError as `check_own`.

    Only the user can have changed what is read by that path: loading pickles runs what is in them.
    """
    check_own(save.parent)
    try:
        fd = os.open(save, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        check_own(save)  # says that it is a link
        raise UsageError(f"{save} cannot be read: {e.strerror}") from e
    try:
        _check_own(save, os.fstat(fd))
        inside = Path(f"/proc/self/fd/{fd}")
        for path in inside.rglob("*"):
            _check_own(save / path.relative_to(inside), path.lstat())
        yield inside
    finally:
        os.close(fd)


def check_own(path: Path) -> None:
    """Raises UsageError for a file or folder that is not the user's own, or that others may change."""
    _check_own(path, path.lstat())


def _check_own(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to user {found.st_uid}, and loading it would run its code; copy it first")
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"{path} is a link; name the folder to which it leads")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may change {path}, and loading it would run their code; chmod go-w {path}")
