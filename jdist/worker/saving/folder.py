"""The folder of saves: ``DIR/save-000001``, ``save-000002``, … each complete, for it gets its name as the last step.

::

    DIR/save-000007/manifest.json           what it holds, for people
                    names/all.msgpack       pickles of the names that are equal on all ranks
                    names/rank-3.msgpack    rank 3's other names, and where its tensors are
                    tensors/                a checkpoint of torch.distributed.checkpoint
    DIR/.writing-ID/                        the same while it is being written
"""

import contextlib
import os
import re
import shutil
import stat
import time
from pathlib import Path

from jdist.core.errors import UsageError
from jdist.core.manifest import MANIFEST

_SAVE = re.compile(r"save-(\d{6,})")
_WRITING = ".writing-"
_COMPLETING = "parts.complete"
_STALE = 24 * 3600.0  # Seconds after which what has not been completed is taken for abandoned.

TENSORS = "tensors"
ALL = "names/all.msgpack"


def rank_file(rank: int) -> str:
    """The file of one rank's names."""
    return f"names/rank-{rank}.msgpack"


def part_file(rank: int) -> str:
    """The file by which a rank tells the others that its part has been written."""
    return f"parts/{rank}"


def begin(directory: Path, save: str) -> tuple[Path, Path]:
    """Make the folder to write to; it, and what it will be called. Raises UsageError."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_own(directory)
        writing = directory / f"{_WRITING}{save}"
        for inner in (writing, writing / "names", writing / "parts", writing / TENSORS):
            inner.mkdir(mode=0o700)
    except OSError as e:
        raise UsageError(f"{directory} cannot be written to: {e.strerror or e}") from e
    numbers = [number for number, _ in saves(directory)]
    return writing, directory / f"save-{max(numbers, default=0) + 1:06d}"


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


def commit(writing: Path, final: Path, keep: int) -> None:
    """Give a folder that is completely written its name, and remove the oldest saves."""
    shutil.rmtree(writing / "parts", ignore_errors=True)
    (writing / _COMPLETING).unlink()
    for path in [*writing.rglob("*"), writing]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        if path.is_dir():
            _sync(path)
    writing.rename(final)
    _sync(final.parent)
    for _, old in saves(final.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    for left in final.parent.glob(f"{_WRITING}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)


def discard(writing: Path) -> None:
    """Remove what has been written of a save that failed."""
    shutil.rmtree(writing, ignore_errors=True)


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


def check_trusted(folder: Path) -> None:
    """Raises UsageError unless only the user can have changed a save: loading pickles runs what is in them."""
    for path in (folder.parent, folder, *folder.rglob("*")):
        check_own(path)


def check_own(path: Path) -> None:
    """Raises UsageError for a file or folder that is not the user's own, or that others may change."""
    found = path.lstat()
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to user {found.st_uid}, and loading it would run its code; copy it first")
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"{path} is a link; name the folder to which it leads")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may change {path}, and loading it would run their code; chmod go-w {path}")
