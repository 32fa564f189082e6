"""Known hosts: the names in the user's configuration of ssh by which hosts can be reached."""

import contextlib
import glob
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

_DEEPEST = 16  # Files that include each other, as ssh counts them.
_PATTERN = frozenset("*?!")


def configured_hosts(command: str = "ssh") -> list[str]:
    """The hosts that the configuration names, in its order; ``command``: ssh's command line, which may have ``-F``."""
    words = shlex.split(command)
    named = words[words.index("-F") + 1 :] if "-F" in words else []
    path = Path(named[0]) if named else Path.home() / ".ssh" / "config"
    return list(dict.fromkeys(_names(path.expanduser(), _DEEPEST)))


def _names(path: Path, depth: int) -> Iterator[str]:
    """The names in a file and in those that it includes; none of one that cannot be read."""
    text = ""
    with contextlib.suppress(OSError):
        text = path.read_text(errors="replace")
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a quote is not closed
            keyword, *words = shlex.split(line.replace("=", " ", 1), comments=True) or [""]
            if keyword.lower() == "host":
                yield from (word for word in words if not _PATTERN & set(word))
            elif keyword.lower() == "include" and depth > 0:
                for word in words:  # relative to the user's folder, whichever file it is in
                    for found in sorted(glob.glob(os.path.join(Path.home(), ".ssh", os.path.expanduser(word)))):
                        yield from _names(Path(found), depth - 1)
