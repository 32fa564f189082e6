"""Foothold: what runs on another host before its agent does. It finds the place and the log, and becomes the agent.

Sent to an interpreter there as text, so it uses nothing but the standard library, and what Python 3.6 knows, if only to
say that this one is too old. Standard input is read no further than the line that is for it: the next is the agent's.
"""

import contextlib
import json
import os
import stat
import sys
import tempfile
import time
from typing import Any

_LOG_AGE = 7 * 86400
"""Seconds for which a log is kept that nobody has removed."""


def main() -> None:
    """Read what is wanted, and say what came of it in one line that begins with the mark that was given."""
    given = json.loads(read_line())
    try:
        env = prepare(given)
        path = log_path(given["log"])
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except (OSError, ValueError) as e:
        say(given, {"error": str(e)})
        sys.exit(1)
    say(given, {"pid": os.getpid(), "log": path})
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "jdist", *given["words"]], env)


def prepare(given: Any) -> Any:
    """Go to the directory; the agent's environment. Raises OSError, ValueError saying what is missing."""
    where = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    if sys.version_info[:2] < tuple(given["python"]):
        raise ValueError(f"{where} is too old for jdist, which needs {'.'.join(map(str, given['python']))}")
    if given["directory"]:
        os.chdir(os.path.expanduser(given["directory"]))
    env = dict(os.environ, **given["env"])
    sys.path[:0] = [p for p in given["env"].get("PYTHONPATH", "").split(os.pathsep) if p]
    wanted = given["jdist"]
    try:
        import jdist
    except ImportError as e:
        raise ValueError(
            f"jdist cannot be imported by {where}: {e}; pip install jdist=={wanted} there, or name the Python that "
            "has it: -- --python PATH, or python=PATH in the hostfile"
        ) from e
    if jdist.__version__ != wanted:
        raise ValueError(f"{where} has jdist {jdist.__version__}, not {wanted} as here: pip install jdist=={wanted}")
    return env


def log_path(name: str) -> str:
    """In a folder of this user's alone, from which old logs are removed on the way."""
    folder = os.path.join(tempfile.gettempdir(), f"jdist-logs-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is there, and is no folder of this user's")
    for entry in os.scandir(folder):
        if entry.stat(follow_symlinks=False).st_mtime < time.time() - _LOG_AGE:
            os.unlink(entry.path)
    return os.path.join(folder, f"{name}-{os.getpid()}.log")


def read_line() -> bytes:
    """One line of standard input, and not a byte more."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line


def say(given: Any, report: Any) -> None:
    """In a line of its own, whatever a login prints before."""
    os.write(1, ("\n" + given["mark"] + json.dumps(report) + "\n").encode())


if __name__ == "__main__":
    main()
