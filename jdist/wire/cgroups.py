"""Memory cgroups: where the kernel counts and limits the memory of a process, in both versions of control groups."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) .*?(\S+)$", re.MULTILINE)
# The memory cgroup's line in /proc/PID/cgroup, by the version of cgroups.
_CGROUP = {
    "1": re.compile(r"^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:(.*)$", re.MULTILINE),
    "2": re.compile(r"^0::(.*)$", re.MULTILINE),
}


class MemoryCgroup(Struct, frozen=True):
    """A process's memory cgroup in one version of control groups, of which a machine may have both."""

    version: str  # "1" or "2".
    inside: str  # The cgroup's path in its hierarchy.
    mount: Path
    folder: Path


class MemoryCgroups:
    """The memory cgroups of this machine; ``root`` is where "proc" and "sys" are found."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._mounts = find_mounts(_read(root / "proc/self/mountinfo"))

    def of(self, pid: int) -> Iterator[MemoryCgroup]:
        """Those of a process, version 2 first. The folder need not exist: the memory may be counted in the other."""
        text = _read(self._root / f"proc/{pid}/cgroup")
        for version in ("2", "1"):
            inside = find_cgroup(text, version)
            if inside is None or version not in self._mounts:
                continue
            at, part = self._mounts[version]
            mount = self._root / at.lstrip("/")
            below = inside.removeprefix(part.rstrip("/")).lstrip("/")
            yield MemoryCgroup(version, inside, mount, mount / below)


def find_mounts(mountinfo: str) -> dict[str, tuple[str, str]]:
    """``{"1" or "2": (mount point, what part of the hierarchy it shows)}`` of the memory cgroups, from mountinfo."""
    return {
        "2" if kind == "cgroup2" else "1": (place, part)
        for part, place, kind, options in _MOUNT.findall(mountinfo)
        if kind == "cgroup2" or "memory" in options.split(",")
    }


def find_cgroup(text: str, version: str) -> str | None:
    """The memory cgroup in ``/proc/PID/cgroup`` ("0::/a/b", "4:memory:/a/b"), or None."""
    found = _CGROUP[version].search(text)
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
