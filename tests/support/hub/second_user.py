"""Second user: a server of the tests' Hub becomes another Unix user, who reaches this Python wherever it lies.

Run as root: ``second_user.py FOLDER UID COMMAND…``. In a mount namespace of its own, folders on the way to Python and
jdist that are closed to others are replaced by ones that hold nothing else; FOLDER is empty, and stays so for others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_OTHERS_MAY_PASS = 0o001


def as_second_user(folder: Path, uid: int) -> list[str]:
    """What to put before a command."""
    own = [sys.executable, str(Path(__file__).resolve()), str(folder), str(uid)]
    return ["unshare", "--mount", "--propagation", "private", *own]


def closed_above(path: Path) -> Path | None:
    """The topmost folder on the way to ``path`` that others cannot pass."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & _OTHERS_MAY_PASS), None)


def main(folder: Path, uid: int, command: list[str]) -> None:
    tools = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, ROOT)}
    behind = {tool: top for tool in sorted(tools) if (top := closed_above(tool)) is not None}
    kept = {tool: folder / str(number) for number, tool in enumerate(behind)}
    for tool, place in kept.items():
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", tool, place], check=True)
    for top in set(behind.values()):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", top], check=True)
    for tool, place in kept.items():
        tool.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", place, tool], check=True)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
