"""Give jdist's own processes names and standard streams that take any text, and end them with their parent.

The kernel ends a child when its parent dies, on Linux.
"""

import asyncio
import contextlib
import ctypes
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_START_TIME = 19  # Place of the start time in a process's ``stat``, counted from its state.
_JOB_END = ("SIGTERM", "SIGUSR1", "SIGUSR2")


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, to reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(by: str = "SIGKILL") -> None:
    """Have the kernel send this process a signal when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.Signals[by])


def outlive_job_end() -> None:
    """Take no notice of the signals by which schedulers announce the end of a job: this process ends with its parent.

    The processes that it starts take none either, until :func:`end_with_job`.
    """
    for name in _JOB_END:
        signal.signal(signal.Signals[name], signal.SIG_IGN)


def end_with_job() -> None:
    """End by those signals, as any process does."""
    for name in _JOB_END:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def set_name(name: str) -> None:
    """Set the name that ``top`` and ``ps -o comm`` show for this process, of up to 15 characters; from any thread."""
    with contextlib.suppress(OSError):  # no /proc: the name only helps people
        Path(f"/proc/self/task/{os.getpid()}/comm").write_bytes(name.encode()[:15])


def has_ended(pid: int, started: int = 0) -> bool:
    """Whether a process of this host has ended, even if its parent has not waited for it yet.

    ``started``: its `start_time`, if that is known; a process with another has only been given the same number.
    """
    try:
        fields = _stat(pid)
        return fields[0] in (b"Z", b"X") or started not in (0, int(fields[_START_TIME]))
    except (FileNotFoundError, ProcessLookupError):  # the second, if it is reaped after the file was opened
        import psutil

        return os.path.exists("/proc/self/stat") or not psutil.pid_exists(pid)
    except OSError:
        return False


def start_time(pid: int) -> int:
    """When a process of this host was started, in clock ticks since the boot; 0 if that cannot be had."""
    try:
        return int(_stat(pid)[_START_TIME])
    except OSError:
        return 0


def _stat(pid: int) -> list[bytes]:
    """The fields of a process's ``stat``, from its state on. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as f:
        return f.read().rpartition(b")")[2].split()


def on_exit(pid: int, callback: Callable[[], None]) -> None:
    """Call ``callback`` once on the running loop when the process has ended."""
    if sys.platform != "linux":
        raise OSError("the end of a process is an event on Linux only")
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(callback)
        return

    def handle_exit() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        callback()

    loop.add_reader(pidfd, handle_exit)


def surroundings(pid: int) -> tuple[str, dict[str, str]]:
    """The working directory of a process of this user and host, and the environment that it was started with.

    Raises OSError if the process has ended, or is not this user's.
    """
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    named = (os.fsdecode(each).partition("=") for each in variables if each)
    return os.readlink(f"/proc/{pid}/cwd"), {name: value for name, _, value in named}


def host_id() -> str:
    """Where this process's numbers of processes and its loopback addresses are valid; "" if that is unknown.

    This is a boot of a host, a pid namespace and a network namespace. The name of a host does not say as much: a
    container that is made again has the same name, but other processes.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{boot}/{pid_namespace():x}/{_namespace('net'):x}"


def pid_namespace() -> int:
    """The 32-bit inode number of this process's pid namespace; 0 where there is none."""
    # Containers may share /tmp or /dev/shm and number their processes separately.
    return _namespace("pid")


def _namespace(kind: str) -> int:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino & 0xFFFFFFFF
    except OSError:
        return 0


_FAILING = ("strict", "surrogateescape", "surrogatepass")  # Error handlers that raise for a character or another.


def say(text: str) -> None:
    """Write a line to standard error, if anybody can read it there; what is done must not depend on that."""
    with contextlib.suppress(OSError, ValueError):  # a pipe whose reader has gone, a full disk, a stream that is closed
        print(text, file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Have standard output and error replace what their encoding lacks, instead of raising UnicodeEncodeError.

    What is written to a closed stream is lost. Streams that are not Python's own, such as a kernel's, and those
    for which the user has chosen another error handler stay as they are.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
            stream.reconfigure(errors="replace")
