"""Open files that belong to this user alone, on every system on which a client runs.

Windows has neither numbers of users nor modes that say who may read a file: there, a user's own folders are closed to
others. Opening a file follows no symbolic link and waits for no pipe, so it does not matter who may write to a folder.
"""

import os
import stat

# O_BINARY: else Windows changes the ends of lines.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """A file's descriptor; a file that is created has mode 0600. Raises OSError."""
    return os.open(path, flags | _FLAGS, 0o600)


def is_own(found: os.stat_result) -> bool:
    """Whether a file belongs to this user."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def distrust(found: os.stat_result) -> str:
    """Why a file may be another user's work, or ""."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if not is_own(found):
        return f"it belongs to user {found.st_uid}"
    if hasattr(os, "geteuid") and found.st_mode & 0o077:
        return "others may read or write it"
    return ""


def write_at(fd: int, piece: memoryview, offset: int) -> int:
    """Write bytes at ``offset`` without holding the GIL, in one thread at a time; returns how many. Raises OSError."""
    if hasattr(os, "pwrite"):
        written: int = os.pwrite(fd, piece, offset)
        return written
    os.lseek(fd, offset, os.SEEK_SET)
    return os.write(fd, piece)
