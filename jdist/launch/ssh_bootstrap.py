"""What runs on a remote host before a process of jdist's. It prepares directory and log, and becomes that process.

It is sent to an interpreter there as text, so it uses the standard library only, and only what Python 3.6 knows, so
that it can report an interpreter that is too old. It reads one line of standard input: the next one is for the agent.
"""

import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from typing import Any

_MADE_FROM = "jdist-made-from"  # In an environment that is whole: the interpreter that it was made from.
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
        python = find_python(given)
        path = log_path(given["log"]) if given["log"] else ""
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600) if path else -1
    except (OSError, ValueError, ImportError) as e:
        write_report(given, {"error": str(e)})
        sys.exit(1)
    write_report(given, {"pid": os.getpid(), "log": path})
    if path:
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.execve(python, [python, "-P", "-m", "jdist", *given["words"]], env)


def prepare(given: Any) -> Any:
    """Change the directory and return the agent's environment. Raises OSError naming what is missing."""
    if given["directory"]:
        os.chdir(os.path.expanduser(given["directory"]))
    sys.path[:0] = [p for p in given["env"].get("PYTHONPATH", "").split(os.pathsep) if p]
    return dict(os.environ, **given["env"])


def find_python(given: Any) -> str:
    """This interpreter, or that of the environment with jdist, which is made if a wheel is offered.

    Raises OSError, ImportError or ValueError naming what is missing.
    """
    is_old = sys.version_info[:2] < tuple(given["python"])
    problem = explain_age(given) if is_old else explain_missing(given)
    if not problem:
        return sys.executable
    share = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    environment = os.path.join(share, "jdist", "venv-" + given["jdist"])
    made_from = ""
    with contextlib.suppress(OSError), open(os.path.join(environment, _MADE_FROM)) as file:
        made_from = file.read()
    if made_from and (not given["named"] or made_from == sys.executable):
        return os.path.join(environment, "bin", "python")
    if is_old or not given["wheel"]:
        raise ValueError(problem)
    if made_from:
        raise ValueError(f"{environment} was made from {made_from}; remove it there, or name that Python")
    return install(given, environment)


def describe_python() -> str:
    """This interpreter, in words."""
    return f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"


def explain_age(given: Any) -> str:
    """That this interpreter is too old, and what to do."""
    needed = ".".join(map(str, given["python"]))
    return f"{describe_python()} is too old for jdist, which needs {needed}; name another: {given['naming']}"


def explain_missing(given: Any) -> str:
    """Why jdist cannot be used by this interpreter, and what to do; "" if it can."""
    where, wanted = describe_python(), given["jdist"]
    try:
        import jdist
    except ImportError as e:
        next_step = f"{given['installing']}, or name the Python that has it: {given['naming']}"
        return f"jdist cannot be imported by {where}: {e}; {next_step}"
    if jdist.__version__ != wanted:
        return f"{where} has jdist {jdist.__version__}, not {wanted} as here: {given['installing']}"
    return ""


def install(given: Any, environment: str) -> str:
    """Ask for the wheel, and have the program in it make the environment; its interpreter."""
    write_report(given, {"wants_wheel": True})
    folder = tempfile.mkdtemp(prefix="jdist-wheel-")
    try:
        wheel, left = os.path.join(folder, given["wheel"]), given["wheel_size"]
        with open(wheel, "wb") as file:
            while left:
                piece = os.read(0, min(left, 1 << 16))
                if not piece:
                    raise OSError("the login has ended")
                left -= file.write(piece)
        for name in [n for n in sys.modules if n.partition(".")[0] == "jdist"]:
            del sys.modules[name]  # another version
        sys.path.insert(0, wheel)
        from jdist.launch import ssh_install

        def tell(text: str) -> None:
            write_report(given, {"progress": text})

        return ssh_install.install(wheel, environment, tell, given["naming"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
