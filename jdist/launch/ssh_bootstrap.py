"""What runs on a remote host before a process of jdist's. It prepares directory and log, and becomes that process.

It is sent to an interpreter there as text, so it uses the standard library only, and only what Python 3.6 knows, so
that it can report an interpreter that is too old. It reads one line of standard input: the next one is for the agent.
"""

import contextlib
import json
import os
import stat
import sys
import tempfile
import time
from typing import Any

_LOG_AGE = 7 * 86400  # Seconds after which old logs are removed.


def main() -> None:
    """Read the request, report on one line that begins with the given mark, and become the agent."""
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # unbuffered: it reads not a byte after the line
        line = stdin.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)
    given = json.loads(line)
    try:
        env = prepare(given)
        path = log_path(given["log"]) if given["log"] else ""
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600) if path else -1
    except (OSError, ValueError) as e:
        write_report(given, {"error": str(e)})
        sys.exit(1)
    write_report(given, {"pid": os.getpid(), "log": path})
    if path:
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "jdist", *given["words"]], env)


def prepare(given: Any) -> Any:
    """Change the directory and return the agent's environment. Raises OSError or ValueError naming what is missing."""
    where = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    if sys.version_info[:2] < tuple(given["python"]):
        needed = ".".join(map(str, given["python"]))
        raise ValueError(f"{where} is too old for jdist, which needs {needed}; name another: {given['naming']}")
    if given["directory"]:
        os.chdir(os.path.expanduser(given["directory"]))
    env = dict(os.environ, **given["env"])
    sys.path[:0] = [p for p in given["env"].get("PYTHONPATH", "").split(os.pathsep) if p]
    wanted = given["jdist"]
    try:
        import jdist
    except ImportError as e:
        raise ValueError(
            f"jdist cannot be imported by {where}: {e}; {given['installing']}, or name the Python that has it: "
            f"{given['naming']}"
        ) from e
    if jdist.__version__ != wanted:
        raise ValueError(f"{where} has jdist {jdist.__version__}, not {wanted} as here: {given['installing']}")
    return env


def log_path(name: str) -> str:
    """Path of a log in a folder that only this user can access. Removes old logs from it."""
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


def write_report(given: Any, report: Any) -> None:
    """Write the report on a line of its own, whatever the login printed before."""
    os.write(1, ("\n" + given["mark"] + json.dumps(report) + "\n").encode())


if __name__ == "__main__":
    main()
